/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.internal;

/**
 * A product of matrices of certain layouts, on the calling thread's current stream; on the CPU, by
 * the calling thread.
 */
public interface Product extends AutoCloseable {

    /**
     * Multiplies.
     *
     * @param out the address of the product, which overlaps neither operand
     * @param a the address of the left operand
     * @param b the address of the right operand
     */
    void run(long out, long a, long b);

    @Override
    void close();
}
