/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

/**
 * Where the elements of a matrix lie, apart from its address.
 *
 * @param rows the number of rows
 * @param columns the number of columns
 * @param rowStride from an element to that below it, in elements
 * @param columnStride from an element to the next in its row, in elements
 */
public record MatrixLayout(long rows, long columns, long rowStride, long columnStride) {

    /**
     * Returns the layout of a matrix whose elements lie one after the other, row by row.
     *
     * @param rows the number of rows
     * @param columns the number of columns
     * @return the layout
     */
    public static MatrixLayout contiguous(long rows, long columns) {
        return new MatrixLayout(rows, columns, Math.max(columns, 1), 1);
    }

    /**
     * Tells whether rows are contiguous and do not overlap.
     *
     * @return whether they are
     */
    public boolean isRowMajor() {
        return (columnStride == 1 || columns <= 1) && (rows <= 1 || rowStride >= columns);
    }

    /**
     * Returns the layout of the transposed matrix.
     *
     * @return the layout, of the same elements
     */
    public MatrixLayout transposed() {
        return new MatrixLayout(columns, rows, columnStride, rowStride);
    }

    /** From one row to the next of a matrix that is {@linkplain #isRowMajor row-major}. */
    long leadingDimension() {
        return Math.max(1, rows <= 1 ? columns : rowStride);
    }
}
