// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

/**
 * The memory layout of a matrix: the strides are the distances of adjacent rows and columns, in
 * elements.
 */
public record MatrixLayout(long rows, long columns, long rowStride, long columnStride) {

    /** {@return the layout of a contiguous row-major matrix} */
    public static MatrixLayout contiguous(long rows, long columns) {
        return new MatrixLayout(rows, columns, Math.max(columns, 1), 1);
    }

    /** {@return whether rows are contiguous and do not overlap} */
    public boolean isRowMajor() {
        return (columnStride == 1 || columns <= 1) && (rows <= 1 || rowStride >= columns);
    }

    /** {@return the layout of the transposed matrix in the same memory} */
    public MatrixLayout transposed() {
        return new MatrixLayout(columns, rows, columnStride, rowStride);
    }

    /** Returns the leading dimension of a {@linkplain #isRowMajor row-major} matrix. */
    long leadingDimension() {
        return Math.max(1, rows <= 1 ? columns : rowStride);
    }
}
