// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import java.util.Optional;
import org.bytedeco.cuda.cublas.cublasLtMatmulAlgo_t;
import org.bytedeco.cuda.cublas.cublasLtMatmulDescOpaque_t;
import org.bytedeco.cuda.cublas.cublasLtMatmulHeuristicResult_t;
import org.bytedeco.cuda.cublas.cublasLtMatmulPreferenceOpaque_t;
import org.bytedeco.cuda.cublas.cublasLtMatrixLayoutOpaque_t;
import org.bytedeco.cuda.global.cublas;
import org.bytedeco.cuda.global.cudart;
import org.bytedeco.javacpp.BytePointer;
import org.bytedeco.javacpp.DoublePointer;
import org.bytedeco.javacpp.FloatPointer;
import org.bytedeco.javacpp.IntPointer;
import org.bytedeco.javacpp.LongPointer;
import org.bytedeco.javacpp.Pointer;
import org.djlx.nativeops.torch.ScalarType;

/**
 * A planned matrix product; see {@link CublasLt#plan}. Not thread-safe.
 *
 * <p>cuBLASLt's matrices are column-major. A row-major matrix is the transpose of a column-major
 * matrix in the same memory, so cuBLASLt computes {@code outᵀ = bᵀ aᵀ}: its first operand is {@code
 * b}.
 */
public final class CublasLtMatmul implements AutoCloseable {

    private static final long SCALES_BY_ROW = 120900; // the version of cuBLAS

    private final CublasLt handle;
    private final cublasLtMatmulDescOpaque_t descriptor = new cublasLtMatmulDescOpaque_t();
    private final cublasLtMatrixLayoutOpaque_t first = new cublasLtMatrixLayoutOpaque_t();
    private final cublasLtMatrixLayoutOpaque_t second = new cublasLtMatrixLayoutOpaque_t();
    private final cublasLtMatrixLayoutOpaque_t result = new cublasLtMatrixLayoutOpaque_t();
    private final cublasLtMatmulHeuristicResult_t heuristic = new cublasLtMatmulHeuristicResult_t();
    private final Pointer one; // alpha, in the compute type; beta of add()
    private final Pointer zero; // beta of run()
    private final LongPointer scale = new LongPointer(1);
    private final CudaDriver.Address firstAddress = new CudaDriver.Address(0);
    private final CudaDriver.Address secondAddress = new CudaDriver.Address(0);
    private final CudaDriver.Address resultAddress = new CudaDriver.Address(0);
    private final CudaDriver.Address workspace;
    private final long workspaceSize;
    private cublasLtMatmulAlgo_t algorithm;

    private CublasLtMatmul(CublasLt handle, ScalarType type) {
        this.handle = handle;
        boolean wide = type == ScalarType.FLOAT64;
        one = wide ? new DoublePointer(1.0) : new FloatPointer(1f);
        zero = wide ? new DoublePointer(0.0) : new FloatPointer(0f);
        workspace = new CudaDriver.Address(handle.workspace().address());
        workspaceSize = handle.workspace().byteSize();
    }

    static Optional<CublasLtMatmul> plan(
            CublasLt handle,
            ScalarType type,
            ScalarType outType,
            MatrixLayout out,
            MatrixLayout a,
            MatrixLayout b,
            int alignment,
            boolean byRow,
            boolean fast) {
        CublasLtMatmul matmul = new CublasLtMatmul(handle, type);
        boolean found = false;
        try {
            matmul.describe(type, outType, out, a, b);
            if (fast) {
                try (BytePointer on = new BytePointer(1L).put((byte) 1)) {
                    matmul.set(cublas.CUBLASLT_MATMUL_DESC_FAST_ACCUM, on, Byte.BYTES);
                }
            }
            if (byRow) {
                // Without scales cuBLASLt finds no algorithm. Any aligned address will do.
                long address = handle.workspace().address();
                matmul.setScales(address, address);
                int mode = cublas.CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
                matmul.set(cublas.CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
                matmul.set(cublas.CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
            }
            found = matmul.choose(alignment);
        } finally {
            if (!found) {
                matmul.close();
            }
        }
        return found ? Optional.of(matmul) : Optional.empty();
    }

    private void describe(
            ScalarType type, ScalarType outType, MatrixLayout out, MatrixLayout a, MatrixLayout b) {
        int cudaType = cudaType(type);
        boolean wide = type == ScalarType.FLOAT64;
        handle.call(
                "cublasLtMatmulDescInit",
                () ->
                        cublas.cublasLtMatmulDescInit(
                                descriptor,
                                wide ? cublas.CUBLAS_COMPUTE_64F : cublas.CUBLAS_COMPUTE_32F,
                                wide ? cudart.CUDA_R_64F : cudart.CUDA_R_32F));
        operand(cublas.CUBLASLT_MATMUL_DESC_TRANSA, first, cudaType, b);
        operand(cublas.CUBLASLT_MATMUL_DESC_TRANSB, second, cudaType, a);
        layout(result, cudaType(outType), out);
    }

    private static int cudaType(ScalarType type) {
        return switch (type) {
            case FLOAT16 -> cudart.CUDA_R_16F;
            case BFLOAT16 -> cudart.CUDA_R_16BF;
            case FLOAT32 -> cudart.CUDA_R_32F;
            case FLOAT64 -> cudart.CUDA_R_64F;
            case FLOAT8_E4M3FN -> cudart.CUDA_R_8F_E4M3;
            default ->
                    throw new IllegalArgumentException(
                            "cuBLASLt plans do not support the element type " + type);
        };
    }

    /** Describes an operand. cuBLASLt transposes it if it is not row-major. */
    private void operand(
            int attribute, cublasLtMatrixLayoutOpaque_t layout, int cudaType, MatrixLayout matrix) {
        boolean transposed = !matrix.isRowMajor();
        layout(layout, cudaType, transposed ? matrix.transposed() : matrix);
        set(attribute, transposed ? cublas.CUBLAS_OP_T : cublas.CUBLAS_OP_N);
    }

    private void set(int attribute, int value) {
        try (IntPointer pointer = word(value)) {
            set(attribute, pointer, Integer.BYTES);
        }
    }

    private void set(int attribute, Pointer value, long size) {
        handle.call(
                "cublasLtMatmulDescSetAttribute",
                () -> cublas.cublasLtMatmulDescSetAttribute(descriptor, attribute, value, size));
    }

    /** Returns whether this cuBLAS multiplies each row and each column by a scale. */
    static boolean scalesByRow() {
        return cublas.cublasLtGetVersion() >= SCALES_BY_ROW;
    }

    /** Returns an int in native memory. (The constructor's number is the size.) */
    private static IntPointer word(int value) {
        return new IntPointer(1).put(value);
    }

    private void layout(cublasLtMatrixLayoutOpaque_t layout, int cudaType, MatrixLayout rowMajor) {
        handle.call(
                "cublasLtMatrixLayoutInit",
                () ->
                        cublas.cublasLtMatrixLayoutInit(
                                layout,
                                cudaType,
                                rowMajor.columns(),
                                rowMajor.rows(),
                                rowMajor.leadingDimension()));
    }

    private boolean choose(int alignment) {
        try (cublasLtMatmulPreferenceOpaque_t preference = new cublasLtMatmulPreferenceOpaque_t();
                LongPointer size = new LongPointer(1).put(workspaceSize);
                IntPointer aligned = word(alignment);
                IntPointer count = word(0)) {
            handle.call(
                    "cublasLtMatmulPreferenceInit",
                    () -> cublas.cublasLtMatmulPreferenceInit(preference));
            prefer(preference, cublas.CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size, Long.BYTES);
            // With split K, partial sums are added in the compute type, not rounded to 16 bits.
            try (IntPointer schemes = word(cublas.CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) {
                prefer(
                        preference,
                        cublas.CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                        schemes,
                        Integer.BYTES);
            }
            for (int attribute :
                    new int[] {
                        cublas.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                        cublas.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                        cublas.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                        cublas.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
                    }) {
                prefer(preference, attribute, aligned, Integer.BYTES);
            }
            int status =
                    handle.in(
                            () ->
                                    cublas.cublasLtMatmulAlgoGetHeuristic(
                                            handle.context(),
                                            descriptor,
                                            first,
                                            second,
                                            result,
                                            result,
                                            preference,
                                            1,
                                            heuristic,
                                            count));
            if (status == cublas.CUBLAS_STATUS_NOT_SUPPORTED || count.get() == 0) {
                return false;
            }
            CublasLt.check(status, "cublasLtMatmulAlgoGetHeuristic");
            algorithm = heuristic.algo();
            return true;
        }
    }

    private void prefer(
            cublasLtMatmulPreferenceOpaque_t preference, int attribute, Pointer value, long size) {
        handle.call(
                "cublasLtMatmulPreferenceSetAttribute",
                () ->
                        cublas.cublasLtMatmulPreferenceSetAttribute(
                                preference, attribute, value, size));
    }

    /**
     * Queues {@code out = a b}, for the addresses of the product and of operands that do not
     * overlap it.
     */
    public void run(CudaStream stream, long out, long a, long b) {
        enqueue(stream, out, a, b, zero);
    }

    /**
     * Queues {@code out = (aScale a) (bScale b)}.
     *
     * @param out the address of the product; must not overlap the operands
     * @param aScale the address of a's scale, or of the scales of its rows; a multiple of 16
     * @param bScale the address of b's scale, or of the scales of its columns; a multiple of 16
     */
    public void runScaled(CudaStream stream, long out, long a, long b, long aScale, long bScale) {
        setScales(aScale, bScale);
        enqueue(stream, out, a, b, zero);
    }

    private void setScales(long ofA, long ofB) {
        set(cublas.CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale.put(ofB), Long.BYTES);
        set(cublas.CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale.put(ofA), Long.BYTES);
    }

    /**
     * Queues {@code out += a b}, for the addresses of the sum and of operands that do not overlap
     * it.
     */
    public void add(CudaStream stream, long out, long a, long b) {
        enqueue(stream, out, a, b, one);
    }

    private void enqueue(CudaStream stream, long out, long a, long b, Pointer beta) {
        handle.device().requireSame(stream.device(), "the stream");
        firstAddress.to(b);
        secondAddress.to(a);
        resultAddress.to(out);
        handle.call(
                "cublasLtMatmul",
                () ->
                        cublas.cublasLtMatmul(
                                handle.context(),
                                descriptor,
                                one,
                                firstAddress,
                                first,
                                secondAddress,
                                second,
                                beta,
                                resultAddress,
                                result,
                                resultAddress,
                                result,
                                algorithm,
                                workspace,
                                workspaceSize,
                                stream.stream()));
    }

    /** Frees the plan. Idempotent. */
    @Override
    public void close() {
        for (Pointer pointer :
                new Pointer[] {descriptor, first, second, result, heuristic, one, zero, scale}) {
            pointer.close();
        }
    }
}
