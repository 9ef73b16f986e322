// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import org.djlx.nativeops.host.CallingThread;

/**
 * Makes a CUDA stream the calling thread's current stream in libtorch until closed; see {@link
 * Torch#cudaStreamGuard(ai.djl.Device, long)}. Guards nest: close them in reverse order, on the
 * thread that opened them, as a try-with-resources statement does. The guard does not own the
 * stream.
 */
public final class CudaStreamGuard implements AutoCloseable {

    private final Thread owner = Thread.currentThread();
    private final long guard;
    private final Object held; // by CurrentStreams.hold(), which this guard overrides
    private boolean closed;

    CudaStreamGuard(long guard) {
        this.guard = guard;
        held = CallingThread.get().stream;
        CallingThread.get().stream = null;
    }

    /**
     * Restores the device and stream that were current before. Idempotent.
     *
     * @throws IllegalStateException if called by another thread than the one that opened the guard
     */
    @Override
    public void close() {
        if (Thread.currentThread() != owner) {
            throw new IllegalStateException(
                    "a stream guard of thread %s must be closed by it, not by thread %s"
                            .formatted(owner.getName(), Thread.currentThread().getName()));
        }
        if (!closed) {
            closed = true;
            CallingThread.get().stream = held;
            AotiTorch.check(
                    AotiTorchCuda.aoti_torch_delete_cuda_stream_guard(guard),
                    "CudaStreamGuard.close");
        }
    }
}
