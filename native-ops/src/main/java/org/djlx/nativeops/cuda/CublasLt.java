/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import java.util.Optional;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Matrix products on one GPU by cuBLASLt. A product is planned once for its layouts, which is when
 * cuBLASLt chooses an algorithm; running it is then one call that neither allocates nor waits.
 *
 * <p>All plans share a workspace on the GPU. So products run one after the other: on one stream, or
 * on streams that are ordered by events. Creating this object and planning may be done by any
 * thread, one at a time; running is up to who orders the streams.
 */
public final class CublasLt implements AutoCloseable {

    private final CublasLtHandle handle;

    private CublasLt(CublasLtHandle handle) {
        this.handle = handle;
    }

    /**
     * Opens cuBLASLt.
     *
     * @param device the GPU
     * @return the library, to be closed by the caller
     * @throws UnsatisfiedLinkError if it cannot be used; see {@link NativeLibrary#CUBLASLT}
     * @throws CudaException if there is no memory for the workspace
     */
    public static CublasLt create(CudaDevice device) {
        NativeLibrary.CUBLASLT.ensureAvailability();
        return new CublasLt(new CublasLtHandle(device));
    }

    /**
     * Plans {@code out = a b} and {@code out += a b}. 16-bit types and float32 are accumulated in
     * float32, the latter without TF32; float64 in float64.
     *
     * @param type the element type of both operands: float16, bfloat16, float32 or float64
     * @param outType that of the product: the same, or float32 for 16-bit operands
     * @param out the layout of the product, row-major, not empty
     * @param a the layout of the left operand, row-major or transposed
     * @param b the layout of the right operand, row-major or transposed; not empty
     * @param alignment a power of two up to 256 of which the three addresses are multiples, in
     *     bytes
     * @return the plan, to be closed before this object; empty if cuBLASLt has no algorithm for it
     * @throws IllegalArgumentException if the sizes or types do not fit together
     */
    public Optional<CublasLtMatmul> plan(
            ScalarType type,
            ScalarType outType,
            MatrixLayout out,
            MatrixLayout a,
            MatrixLayout b,
            int alignment) {
        if (out.rows() != a.rows() || out.columns() != b.columns() || a.columns() != b.rows()) {
            throw new IllegalArgumentException(out + " is not the product of " + a + " and " + b);
        }
        boolean isWidened = outType == ScalarType.FLOAT32 && type.itemSize() == Short.BYTES;
        if (outType != type && !isWidened) {
            throw new IllegalArgumentException(
                    "a product of matrices of " + type + " cannot be one of " + outType);
        }
        boolean possible =
                out.isRowMajor()
                        && (a.isRowMajor() || a.transposed().isRowMajor())
                        && (b.isRowMajor() || b.transposed().isRowMajor());
        return possible
                ? CublasLtMatmul.plan(handle, type, outType, out, a, b, alignment)
                : Optional.empty();
    }

    /** Frees the workspace; no product may be under way any more. Idempotent. */
    @Override
    public void close() {
        handle.close();
    }
}
