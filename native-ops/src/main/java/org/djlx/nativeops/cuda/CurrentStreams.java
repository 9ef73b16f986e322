// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.nativeops.torch.AotiTorch;
import org.djlx.nativeops.torch.TorchChecks;

/** Caches one wrapper for each of libtorch's current streams of one GPU. Thread-safe. */
public final class CurrentStreams implements AutoCloseable {

    private final CudaDevice cuda;
    private final int ordinal;
    private final Map<Long, CudaStream> streams = new ConcurrentHashMap<>(); // by their handles
    private volatile CudaStream last;

    /**
     * Creates the cache of wrapped streams.
     *
     * @param cuda the GPU
     */
    public CurrentStreams(CudaDevice cuda) {
        this.cuda = cuda;
        TorchChecks.usableGpu(cuda.device());
        this.ordinal = cuda.device().getDeviceId();
    }

    /** {@return the calling thread's current stream; the caller must not close it} */
    public CudaStream get() {
        // As Torch.currentCudaStream, without checking the device again.
        long handle = AotiTorch.currentCudaStream(ordinal);
        CudaStream stream = last;
        if (stream == null || stream.handle() != handle) {
            stream = streams.computeIfAbsent(handle, h -> CudaStream.wrap(cuda, h));
            last = stream;
        }
        return stream;
    }

    @Override
    public void close() {
        streams.values().forEach(CudaStream::close);
    }
}
