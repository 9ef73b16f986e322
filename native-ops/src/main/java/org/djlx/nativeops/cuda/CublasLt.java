// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import ai.djl.engine.EngineException;
import java.util.Optional;
import java.util.function.IntSupplier;
import org.bytedeco.cuda.cublas.cublasLtContext;
import org.bytedeco.cuda.global.cublas;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.NativeCalls;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Matrix products on one GPU with cuBLASLt. A plan is made once for given layouts; cuBLASLt then
 * chooses an algorithm. Running a plan is one call that neither allocates nor blocks.
 *
 * <p>All plans share a workspace on the GPU, so products must run one after the other: on one
 * stream, or on streams ordered by events. Only one thread at a time may create this object or
 * plan.
 */
public final class CublasLt implements AutoCloseable {

    // NVIDIA's recommendation, as in libtorch: 32 MiB from Hopper on, 4 MiB before.
    private static final long HOPPER_WORKSPACE = 32L << 20;
    private static final long WORKSPACE = 4L << 20;
    private static final int HOPPER = 9;

    private final CudaDevice device;
    private final cublasLtContext context = new cublasLtContext();
    private final NativeMemory workspace;
    private boolean closed;

    private CublasLt(CudaDevice device) {
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

    /**
     * Opens cuBLASLt.
     *
     * @return cuBLASLt; the caller closes it
     * @throws UnsatisfiedLinkError if {@link NativeLibrary#CUBLASLT} is not available
     * @throws CudaException if GPU memory for the workspace runs out
     */
    public static CublasLt create(CudaDevice device) {
        NativeLibrary.CUBLASLT.ensureAvailability();
        return new CublasLt(device);
    }

    /**
     * Plans {@code out = a b} and {@code out += a b}. Products of 16-bit types and float32 are
     * accumulated in float32, without TF32; products of float64 in float64.
     *
     * @param type the element type of both operands: float16, bfloat16, float32 or float64
     * @param outType the element type of the product: the same, or float32 for 16-bit operands
     * @param out the layout of the product, row-major, not empty
     * @param a the layout of the left operand, row-major or transposed
     * @param b the layout of the right operand, row-major or transposed; not empty
     * @param alignment the alignment of the three addresses in bytes, a power of two up to 256
     * @return the plan, to be closed before this object; empty if cuBLASLt has no algorithm for it
     * @throws IllegalArgumentException if the sizes or types do not match
     */
    public Optional<CublasLtMatmul> plan(
            ScalarType type,
            ScalarType outType,
            MatrixLayout out,
            MatrixLayout a,
            MatrixLayout b,
            int alignment) {
        return plan(type, outType, out, a, b, alignment, false, false);
    }

    /**
     * Plans {@code out = (aScale a) (bScale b)} in bfloat16 for float8 (e4m3) operands, to be run
     * with {@link CublasLtMatmul#runScaled}.
     *
     * @param out the layout of the product, row-major, not empty
     * @param a the layout of the left operand, row-major
     * @param b the layout of the right operand, column-major
     * @param alignment the alignment of all addresses in bytes, a power of two from 16 to 256
     * @param byRow whether each row of a and each column of b has a scale. Needs cuBLAS 12.9
     * @param fast whether the tensor cores of Hopper add all products, in fewer bits than float32;
     *     otherwise sums of 128 products are added in float32
     * @return the plan, to be closed before this object; empty if cuBLASLt has no algorithm for it
     * @throws IllegalArgumentException if the sizes do not match
     */
    public Optional<CublasLtMatmul> planScaled(
            MatrixLayout out,
            MatrixLayout a,
            MatrixLayout b,
            int alignment,
            boolean byRow,
            boolean fast) {
        return byRow && !CublasLtMatmul.scalesByRow()
                ? Optional.empty()
                : plan(
                        ScalarType.FLOAT8_E4M3FN,
                        ScalarType.BFLOAT16,
                        out,
                        a,
                        b,
                        alignment,
                        byRow,
                        fast);
    }

    private Optional<CublasLtMatmul> plan(
            ScalarType type,
            ScalarType outType,
            MatrixLayout out,
            MatrixLayout a,
            MatrixLayout b,
            int alignment,
            boolean byRow,
            boolean fast) {
        if (out.rows() != a.rows() || out.columns() != b.columns() || a.columns() != b.rows()) {
            throw new IllegalArgumentException(out + " is not the product of " + a + " and " + b);
        }
        boolean isWidened = outType == ScalarType.FLOAT32 && type.itemSize() == Short.BYTES;
        boolean isScaled = type == ScalarType.FLOAT8_E4M3FN && outType == ScalarType.BFLOAT16;
        if (outType != type && !isWidened && !isScaled) {
            throw new IllegalArgumentException(
                    "a product of matrices of " + type + " cannot have the type " + outType);
        }
        boolean possible =
                out.isRowMajor()
                        && (a.isRowMajor() || a.transposed().isRowMajor())
                        && (b.isRowMajor() || b.transposed().isRowMajor());
        return possible
                ? CublasLtMatmul.plan(this, type, outType, out, a, b, alignment, byRow, fast)
                : Optional.empty();
    }

    /** Frees the workspace. No product may be running. Idempotent. */
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
