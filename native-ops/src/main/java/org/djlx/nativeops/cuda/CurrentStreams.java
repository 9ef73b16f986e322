// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import ai.djl.Device;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.nativeops.host.CallingThread;
import org.djlx.nativeops.torch.AotiTorch;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchChecks;

/** Caches one wrapper for each of libtorch's current streams of one GPU. Thread-safe. */
public final class CurrentStreams implements AutoCloseable {

    private final CudaDevice cuda;
    private final int ordinal;
    private final Map<Long, CudaStream> streams = new ConcurrentHashMap<>(); // by their handles
    private volatile CudaStream last;

    /** Creates the cache of wrapped streams. */
    public CurrentStreams(CudaDevice cuda) {
        this.cuda = cuda;
        TorchChecks.usableGpu(cuda.device());
        this.ordinal = cuda.device().getDeviceId();
    }

    /**
     * Waits on the host for the calling thread's current stream of a GPU; a no-op for a CPU. Call
     * it before a copy from the GPU to memory that is not pinned: while such a copy waits for its
     * stream, it keeps other threads from launching on the GPU, and so a rank that shares it from
     * the work for which the stream waits.
     */
    public static void await(Device device) {
        if (device.isGpu()) {
            try (CudaDevice cuda = CudaDevice.open(device);
                    CudaStream stream = CudaStream.wrap(cuda, Torch.currentCudaStream(device))) {
                stream.synchronize();
            }
        }
    }

    /** {@return the calling thread's current stream; the caller must not close it} */
    public CudaStream get() {
        CudaStream held = (CudaStream) CallingThread.get().stream;
        if (held != null && held.device().isSame(cuda)) {
            return held;
        }
        // As Torch.currentCudaStream, without checking the device again.
        long handle = AotiTorch.currentCudaStream(ordinal);
        CudaStream stream = last;
        if (stream == null || stream.handle() != handle) {
            stream = streams.computeIfAbsent(handle, h -> CudaStream.wrap(cuda, h));
            last = stream;
        }
        return stream;
    }

    /**
     * Reads the calling thread's current stream, and whether it is being captured, once for all
     * calls on this thread until the scope is closed. Makes the GPU's context current, too. Within
     * the scope, only a {@link org.djlx.nativeops.torch.CudaStreamGuard} may switch the stream, and
     * its capture may neither begin nor end.
     *
     * @return the scope; to be closed on this thread
     */
    public Scope hold() {
        Scope scope = new Scope();
        try {
            CudaStream stream = get();
            boolean capturing = stream.isCapturing();
            scope.thread.stream = stream;
            scope.thread.capturing = capturing;
            return scope;
        } catch (Throwable e) {
            scope.close();
            throw e;
        }
    }

    /** The scope of {@link #hold}. */
    public final class Scope implements AutoCloseable {

        private final CallingThread thread = CallingThread.get();
        private final Object stream = thread.stream;
        private final boolean capturing = thread.capturing;
        private final long context = thread.context;
        private final boolean pushed = CudaDriver.enter(thread, cuda.context);

        private Scope() {
            thread.context = cuda.context.address();
        }

        /** {@return the current stream; the caller must not close it} */
        public CudaStream stream() {
            return (CudaStream) thread.stream;
        }

        @Override
        public void close() {
            thread.stream = stream;
            thread.capturing = capturing;
            thread.context = context;
            CudaDriver.leave(thread, pushed);
        }
    }

    @Override
    public void close() {
        streams.values().forEach(CudaStream::close);
    }
}
