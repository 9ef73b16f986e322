// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.List;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * The open tensors of one operation. {@link #close} closes all of them, also after opening one has
 * failed.
 */
final class HostTensors implements AutoCloseable {

    private final NDManager manager;
    private final List<HostTensor> open = new ArrayList<>();

    HostTensors(NDManager manager) {
        this.manager = manager;
    }

    HostTensor input(NDArray tensor, TensorInfo info) {
        return add(HostTensor.input(manager, tensor, info));
    }

    HostTensor output(NDArray tensor, TensorInfo info) {
        return add(HostTensor.output(manager, tensor, info));
    }

    List<HostTensor> inputs(List<NDArray> tensors) {
        return open(tensors, null, true);
    }

    List<HostTensor> outputs(List<NDArray> tensors) {
        return open(tensors, null, false);
    }

    List<HostTensor> inputs(List<NDArray> tensors, List<TensorInfo> infos) {
        return open(tensors, infos, true);
    }

    List<HostTensor> outputs(List<NDArray> tensors, List<TensorInfo> infos) {
        return open(tensors, infos, false);
    }

    /** Opens tensors; queries their properties if {@code infos} is null. */
    private List<HostTensor> open(List<NDArray> tensors, List<TensorInfo> infos, boolean input) {
        List<HostTensor> hosts = new ArrayList<>(tensors.size());
        for (int i = 0; i < tensors.size(); i++) {
            NDArray tensor = tensors.get(i);
            TensorInfo info = infos == null ? Torch.info(tensor) : infos.get(i);
            hosts.add(input ? input(tensor, info) : output(tensor, info));
        }
        return hosts;
    }

    /** See {@link HostTensor#load}. */
    void load() {
        open.forEach(HostTensor::load);
    }

    /** See {@link HostTensor#leak}. */
    void leak() {
        open.forEach(HostTensor::leak);
    }

    private HostTensor add(HostTensor tensor) {
        open.add(tensor);
        return tensor;
    }

    /** Closes all tensors, even if closing one throws. Called once. */
    @Override
    public void close() {
        Throwable failure = null;
        for (HostTensor tensor : open) {
            try {
                tensor.close();
            } catch (RuntimeException | Error e) {
                if (failure == null) {
                    failure = e;
                } else {
                    failure.addSuppressed(e);
                }
            }
        }
        if (failure instanceof Error error) {
            throw error;
        }
        if (failure != null) {
            throw (RuntimeException) failure;
        }
    }
}
