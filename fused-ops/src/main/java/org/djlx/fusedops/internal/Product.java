// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal;

/**
 * A matmul of matrices with given layouts. On a GPU it runs on the calling thread's current stream,
 * on the CPU on the calling thread.
 */
public interface Product extends AutoCloseable {

    /**
     * Multiplies.
     *
     * @param out the address of the product, which must not overlap an operand
     * @param a the address of the left operand
     * @param b the address of the right operand
     */
    void run(long out, long a, long b);

    @Override
    void close();
}
