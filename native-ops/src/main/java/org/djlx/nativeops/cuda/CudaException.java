// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import ai.djl.engine.EngineException;

/** A failed call of one of CUDA's libraries: the driver, NVRTC or NVML. */
public class CudaException extends EngineException {

    private static final long serialVersionUID = 1L;

    private final String call;

    private final String errorName;

    private final int code;

    public CudaException(String call, String errorName, int code, String detail) {
        super(call + " failed with " + errorName + " (" + code + "): " + detail);
        this.call = call;
        this.errorName = errorName;
        this.code = code;
    }

    /** {@return the function that failed, for example {@code cuMemAlloc}} */
    public String call() {
        return call;
    }

    /** {@return the library's name for the error, for example {@code CUDA_ERROR_OUT_OF_MEMORY}} */
    public String errorName() {
        return errorName;
    }

    public int code() {
        return code;
    }
}
