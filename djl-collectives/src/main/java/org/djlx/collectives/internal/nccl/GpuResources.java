/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.nccl;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import java.util.List;
import java.util.function.Consumer;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.internal.gpu.EventPool;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.Torch;

/** What the {@link NcclQueue}s of one backend share on their GPU. */
final class GpuResources implements AutoCloseable {

    private final Device device;
    private final CudaDevice cuda;
    private final EventPool events;
    private final CurrentStreams current;
    private final NDManager manager;
    private final boolean highPriority;
    private final boolean blocking;

    GpuResources(Device device, NcclOptions options, String name) {
        this.device = device;
        cuda = CudaDevice.open(device);
        events = new EventPool(cuda);
        current = new CurrentStreams(cuda);
        manager = NDManager.newBaseManager(device, "PyTorch");
        manager.setName(name);
        highPriority = options.isHighPriorityStream();
        blocking = options.isBlockingWait();
    }

    Device device() {
        return device;
    }

    CudaDevice cuda() {
        return cuda;
    }

    EventPool events() {
        return events;
    }

    CurrentStreams current() {
        return current;
    }

    /** Owns the tensors that operations hold. */
    NDManager manager() {
        return manager;
    }

    /** Whether {@link org.djlx.collectives.Work#await()} blocks the host. */
    boolean blocking() {
        return blocking;
    }

    CudaStream createStream() {
        return highPriority
                ? CudaStream.create(cuda, cuda.highestStreamPriority())
                : CudaStream.create(cuda);
    }

    /** Copies inputs that are not contiguous, before the operation. */
    void load(List<DeviceTensor> tensors, CudaStream stream) {
        copy(tensors, DeviceTensor::load, stream);
    }

    /** Brings results into tensors that are not contiguous, behind the operation. */
    void flush(List<DeviceTensor> tensors, CudaStream stream) {
        copy(tensors, DeviceTensor::flush, stream);
    }

    private void copy(
            List<DeviceTensor> tensors, Consumer<DeviceTensor> copier, CudaStream stream) {
        for (DeviceTensor tensor : tensors) {
            if (tensor.isStaged()) {
                CudaStreamGuard guard = Torch.cudaStreamGuard(device, stream.handle());
                try {
                    copier.accept(tensor);
                } finally {
                    guard.close();
                }
            }
        }
    }

    @Override
    public void close() {
        events.close();
        current.close();
        manager.close();
        cuda.close();
    }
}
