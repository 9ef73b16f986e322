// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Consumer;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The device, events, streams and memory manager that the queues of one rank share. */
public final class GpuResources implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(GpuResources.class);
    private static final Set<Device> OPENED = new HashSet<>(); // by this process; guarded by itself

    private final Device device;
    private final CudaDevice cuda;
    private final EventPool events;
    private final CurrentStreams current;
    private final NDManager manager;
    private final boolean highPriority;
    private final boolean blocking;

    /**
     * Opens the device; with {@code highPriority}, {@link #createStream} creates streams of the
     * highest priority.
     */
    public GpuResources(Device device, boolean highPriority, boolean blocking, String name) {
        this.device = device;
        cuda = CudaDevice.open(device);
        events = new EventPool(cuda);
        current = new CurrentStreams(cuda);
        manager = NDManager.newBaseManager(device, "PyTorch");
        manager.setName(name);
        this.highPriority = highPriority;
        this.blocking = blocking;
        warnOfEagerLoading(device);
    }

    /** Warns once: when a process opens its second GPU, and CUDA loads kernels eagerly. */
    private static void warnOfEagerLoading(Device device) {
        synchronized (OPENED) {
            if (!OPENED.add(device) || OPENED.size() != 2) {
                return;
            }
        }
        if ("EAGER".equals(System.getenv("CUDA_MODULE_LOADING"))) {
            logger.warn(
                    "CUDA_MODULE_LOADING=EAGER, and this process uses several GPUs: loading a"
                            + " library waits for running kernels of all of them. If such a kernel"
                            + " waits for the rank that loads, its operation times out. Unset the"
                            + " variable, unless several ranks of a group share a GPU");
        }
    }

    public Device device() {
        return device;
    }

    public CudaDevice cuda() {
        return cuda;
    }

    EventPool events() {
        return events;
    }

    CurrentStreams current() {
        return current;
    }

    /** Returns the manager of the tensors that operations hold. */
    public NDManager manager() {
        return manager;
    }

    /** Returns whether {@link org.djlx.collectives.Work#await()} blocks the host. */
    public boolean blocking() {
        return blocking;
    }

    CudaStream createStream() {
        return highPriority
                ? CudaStream.create(cuda, cuda.highestStreamPriority())
                : CudaStream.create(cuda);
    }

    /** Copies inputs that are not contiguous, before the operation, on its stream. */
    public void load(List<DeviceTensor> tensors, CudaStream stream) {
        copy(tensors, DeviceTensor::load, stream);
    }

    /** Copies results to tensors that are not contiguous, after the operation, on its stream. */
    public void flush(List<DeviceTensor> tensors, CudaStream stream) {
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
