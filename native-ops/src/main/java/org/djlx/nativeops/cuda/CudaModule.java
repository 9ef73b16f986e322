/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import org.bytedeco.cuda.cudart.CUmod_st;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.Pointer;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.Torch;

/**
 * Compiled kernels, loaded onto a GPU. Close it when no work of its kernels is queued any more;
 * they cannot be launched afterwards. The same kernels are loaded once, however many modules of a
 * process have them.
 */
public final class CudaModule extends CudaResource {

    private static final Map<Key, Loaded> ALL = new HashMap<>();

    private final Key key;
    private final Loaded loaded;

    private record Key(int device, ByteBuffer image) {}

    /** What modules of the same kernels share. */
    private static final class Loaded {

        final CUmod_st module = new CUmod_st();
        int users; // under the lock of all
        volatile boolean done;

        synchronized int load(ByteBuffer image) {
            if (done) {
                return cudart.CUDA_SUCCESS;
            }
            // PTX is text, which ends with a zero; the other forms know their size.
            byte[] bytes = Arrays.copyOf(image.array(), image.capacity() + 1);
            try (Pointer terminated = CudaDriver.copy(bytes)) {
                int result = cudart.cuModuleLoadData(module, terminated);
                done = result == cudart.CUDA_SUCCESS;
                return result;
            }
        }
    }

    private CudaModule(CudaDevice device, Key key) {
        super(device);
        this.key = key;
        synchronized (ALL) {
            loaded = ALL.computeIfAbsent(key, k -> new Loaded());
            loaded.users++;
        }
        boolean done = false;
        try {
            create("cuModuleLoadData", () -> loaded.load(key.image));
            done = true;
        } finally {
            if (!done) {
                leave();
            }
        }
    }

    /**
     * Loads compiled kernels. Unless they are loaded already, this waits for the calling thread's
     * current stream, unless that is captured, and may wait for the whole GPU.
     *
     * @param device the GPU
     * @param image a cubin for its architecture, a fat binary or PTX
     * @return the module, to be closed by the caller
     * @throws CudaException with {@code CUDA_ERROR_INVALID_IMAGE} if it is none of them, {@code
     *     CUDA_ERROR_NO_BINARY_FOR_GPU} if it is for other GPUs
     */
    public static CudaModule load(CudaDevice device, byte[] image) {
        if (image.length == 0) {
            throw new IllegalArgumentException("the image is empty");
        }
        Key key = new Key(device.device().getDeviceId(), ByteBuffer.wrap(image.clone()));
        if (!isLoaded(key)) {
            awaitCurrentStream(device);
        }
        return new CudaModule(device, key);
    }

    private static boolean isLoaded(Key key) {
        synchronized (ALL) {
            Loaded loaded = ALL.get(key);
            return loaded != null && loaded.done;
        }
    }

    /**
     * Waits for what the calling thread has queued. The driver waits for running kernels before it
     * loads others, and takes no calls for that GPU meanwhile: not even those of a rank that shares
     * it and has yet to launch what a kernel of this rank waits for.
     */
    private static void awaitCurrentStream(CudaDevice device) {
        if (!NativeLibrary.LIBTORCH.isAvailable()) {
            return; // Then there are no ranks.
        }
        try (CudaStream stream =
                CudaStream.wrap(device, Torch.currentCudaStream(device.device()))) {
            if (!stream.isCapturing()) {
                stream.synchronize();
            }
        }
    }

    /**
     * Returns a kernel of this module, loaded: its launch never waits for the GPU.
     *
     * @param name its name, which is that in the source if it is {@code extern "C"}
     * @return the kernel, which lives as long as the module
     * @throws CudaException with {@code CUDA_ERROR_NOT_FOUND} if there is none of that name
     */
    public CudaKernel kernel(String name) {
        return new CudaKernel(this, name);
    }

    /**
     * As {@link #kernel}, for a kernel that the source has for some GPUs only.
     *
     * @param name its name
     * @return the kernel; empty if there is none of that name
     */
    public Optional<CudaKernel> findKernel(String name) {
        try {
            return Optional.of(kernel(name));
        } catch (CudaException e) {
            if (e.code() == cudart.CUDA_ERROR_NOT_FOUND) {
                return Optional.empty();
            }
            throw e;
        }
    }

    CUmod_st module() {
        requireOpen();
        return loaded.module;
    }

    /** Tells whether nothing else has what is loaded, which is forgotten then. */
    private boolean leave() {
        synchronized (ALL) {
            boolean last = --loaded.users == 0;
            if (last) {
                ALL.remove(key);
            }
            return last;
        }
    }

    @Override
    void destroy() {
        if (leave()) {
            device().call("cuModuleUnload", () -> cudart.cuModuleUnload(loaded.module));
        }
    }
}
