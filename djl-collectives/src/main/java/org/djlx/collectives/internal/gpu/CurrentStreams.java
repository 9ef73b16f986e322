/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.gpu;

import ai.djl.Device;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.Torch;

/** The streams that libtorch has made current, of one GPU. */
public final class CurrentStreams implements AutoCloseable {

    private final CudaDevice cuda;
    private final Device device;
    private final Map<Long, CudaStream> streams = new ConcurrentHashMap<>(); // by their handles
    private volatile CudaStream last;

    /**
     * Creates it.
     *
     * @param cuda the GPU
     */
    public CurrentStreams(CudaDevice cuda) {
        this.cuda = cuda;
        this.device = cuda.device();
    }

    /**
     * Returns the calling thread's current stream.
     *
     * @return the stream, not to be closed
     */
    public CudaStream get() {
        long handle = Torch.currentCudaStream(device);
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
