/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import ai.djl.engine.EngineException;

/** A call of one of CUDA's libraries (the driver, NVRTC, NVML) that failed. */
public class CudaException extends EngineException {

    private static final long serialVersionUID = 1L;

    /** The function that failed. */
    private final String call;

    /** The library's name of the error. */
    private final String errorName;

    /** The number of the error. */
    private final int code;

    /**
     * Describes a failed call.
     *
     * @param call the function that was called, for example {@code cuMemAlloc}
     * @param errorName the library's name of the error, for example {@code
     *     CUDA_ERROR_OUT_OF_MEMORY}
     * @param code the number of the error
     * @param detail what else is known: the library's description, a compiler's log
     */
    public CudaException(String call, String errorName, int code, String detail) {
        super(call + " failed with " + errorName + " (" + code + "): " + detail);
        this.call = call;
        this.errorName = errorName;
        this.code = code;
    }

    /**
     * Returns the function that failed.
     *
     * @return its name, for example {@code cuMemAlloc}
     */
    public String call() {
        return call;
    }

    /**
     * Returns the library's name of the error.
     *
     * @return the name, for example {@code CUDA_ERROR_OUT_OF_MEMORY}
     */
    public String errorName() {
        return errorName;
    }

    /**
     * Returns the number of the error.
     *
     * @return what the function returned
     */
    public int code() {
        return code;
    }
}
