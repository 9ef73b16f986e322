// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.model;

import java.util.Locale;

/**
 * How the weights of projections are stored. They are rounded to the nearest number while they are
 * read; activations are rounded to 8 bits, in groups of 128, for each product. Sums of a group are
 * exact. The embedding, routers, norms, biases and the KV cache keep the model's type; an embedding
 * that is also the output matrix is stored twice. CPUs only.
 */
public enum Quantization {
    /** In the model's type. */
    NONE,
    /** 8 bits, with a scale for each output. */
    INT8,
    /** 4 bits, with a scale for each 128 inputs of an output: 4.25 bits a weight. */
    INT4;

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
