// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import ai.djl.engine.EngineException;
import java.util.function.IntSupplier;
import org.bytedeco.cuda.cublas.cublasLtContext;
import org.bytedeco.cuda.global.cublas;
import org.djlx.nativeops.host.NativeCalls;
import org.djlx.nativeops.host.NativeMemory;

/** A cuBLASLt handle on one GPU, with the workspace of its matmuls. */
final class CublasLtHandle implements AutoCloseable {

    // NVIDIA's recommendation, as in libtorch: 32 MiB from Hopper on, 4 MiB before.
    private static final long HOPPER_WORKSPACE = 32L << 20;
    private static final long WORKSPACE = 4L << 20;
    private static final int HOPPER = 9;

    private final CudaDevice device;
    private final cublasLtContext context = new cublasLtContext();
    private final NativeMemory workspace;
    private boolean closed;

    CublasLtHandle(CudaDevice device) {
        this.device = device;
        int major = device.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR);
        workspace = CudaMemory.allocate(device, major >= HOPPER ? HOPPER_WORKSPACE : WORKSPACE);
        device.retain();
        try {
            call("cublasLtCreate", () -> cublas.cublasLtCreate(context));
        } catch (Throwable e) {
            workspace.close();
            device.release();
            throw e;
        }
    }

    CudaDevice device() {
        return device;
    }

    cublasLtContext context() {
        return context;
    }

    NativeMemory workspace() {
        return workspace;
    }

    /** Calls a function with the GPU's context current, and checks its result. */
    void call(String function, IntSupplier call) {
        check(in(call), function);
    }

    /** Calls a function with the GPU's context current, and returns its result. */
    int in(IntSupplier call) {
        NativeCalls.countOther();
        return device.inContext(call);
    }

    static void check(int status, String function) {
        if (status != cublas.CUBLAS_STATUS_SUCCESS) {
            throw new EngineException(
                    "%s failed with status %s of cublasStatus_t, version %s"
                            .formatted(function, status, cublas.cublasLtGetVersion()));
        }
    }

    @Override
    public synchronized void close() {
        if (closed) {
            return;
        }
        closed = true;
        try {
            call("cublasLtDestroy", () -> cublas.cublasLtDestroy(context));
        } finally {
            workspace.close();
            device.release();
        }
    }
}
