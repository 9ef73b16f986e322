/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

import java.util.Arrays;
import java.util.Optional;
import org.bytedeco.cuda.cudart.CUmod_st;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.Pointer;

/**
 * Compiled kernels, loaded onto a GPU. Close it when no work of its kernels is queued any more;
 * they cannot be launched afterwards.
 */
public final class CudaModule extends CudaResource {

    private final CUmod_st module = new CUmod_st();

    private CudaModule(CudaDevice device, Pointer image) {
        super(device);
        create("cuModuleLoadData", () -> cudart.cuModuleLoadData(module, image));
    }

    /**
     * Loads compiled kernels. This may wait for the GPU.
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
        // PTX is text, which ends with a zero; the other forms know their size.
        try (Pointer terminated = CudaDriver.copy(Arrays.copyOf(image, image.length + 1))) {
            return new CudaModule(device, terminated);
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
        return module;
    }

    @Override
    void destroy() {
        device().call("cuModuleUnload", () -> cudart.cuModuleUnload(module));
    }
}
