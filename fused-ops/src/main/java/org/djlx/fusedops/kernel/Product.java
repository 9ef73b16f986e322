// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.kernel;

/**
 * A matmul of matrices with given layouts. On a GPU it runs on the calling thread's current stream,
 * on the CPU on the calling thread.
 */
public interface Product extends AutoCloseable {

    /**
     * Multiplies.
     *
     * @param out the address of the product, which must not overlap an operand
     * @param scales the scales of float8 operands; null for other types
     */
    void run(long out, long a, long b, Scales scales);

    /**
     * The float32 scales of float8 operands.
     *
     * @param a the address of A's scale, or of the scale of A's first row
     * @param b the address of B's scale, or of the scale of B's first column
     * @param byRow whether each row of A and each column of B has a scale
     */
    record Scales(long a, long b, boolean byRow) {

        /** Returns the scales for a product of the rows of A from {@code row} on. */
        public static Scales fromRow(Scales scales, long row) {
            return scales != null && scales.byRow
                    ? new Scales(scales.a + row * Float.BYTES, scales.b, true)
                    : scales;
        }
    }

    @Override
    void close();
}
