// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.spi.cpu.HostTensor.Access;
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

    HostTensor tensor(NDArray tensor, TensorInfo info, Access access) {
        HostTensor host = new HostTensor(manager, tensor, info, access);
        open.add(host);
        return host;
    }

    List<HostTensor> tensors(List<NDArray> tensors, Access access) {
        return tensors.stream().map(each -> tensor(each, Torch.info(each), access)).toList();
    }

    List<HostTensor> tensors(List<NDArray> tensors, List<TensorInfo> infos, Access access) {
        return IntStream.range(0, tensors.size())
                .mapToObj(i -> tensor(tensors.get(i), infos.get(i), access))
                .toList();
    }

    /** See {@link HostTensor#load}. */
    void load() {
        open.forEach(HostTensor::load);
    }

    /** See {@link HostTensor#flush}. */
    void flush() {
        open.forEach(HostTensor::flush);
    }

    /** See {@link HostTensor#leak}. */
    void leak() {
        open.forEach(HostTensor::leak);
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
