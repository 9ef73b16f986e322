// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.util.Locale;

/**
 * How the weights of projections are stored. Loading a model rounds them to the nearest number. The
 * embedding, routers, norms and biases keep the model's type, and {@link KvCacheDtype} says how
 * keys and values are stored; an embedding that is also the output matrix is stored twice.
 * Activations are rounded, too:
 *
 * <ul>
 *   <li>on CPUs to 8 bits, in groups of 128, for each product; sums of a group are exact
 *   <li>on GPUs, with FP8, to e4m3 with a scale for each token: in prefills, and in decode steps of
 *       more than 8 rows unless the engine is batch-invariant
 *   <li>on GPUs, with INT4: not
 * </ul>
 *
 * <p>On GPUs, quantization needs one rank and a model that has kernels.
 */
public enum Quantization {
    /** In the model's type. */
    NONE,
    /**
     * Float8 (e4m3), with a scale for each output. For GPUs of compute capability 9.0 or later, and
     * models in bfloat16.
     */
    FP8,
    /**
     * 8-bit integers, with a scale for each 128 inputs of an output: 8.25 bits a weight. For CPUs.
     */
    INT8,
    /** 4-bit integers, with a scale for each 128 inputs of an output: 4.25 bits a weight. */
    INT4;

    /** {@return the bits of a weight on GPUs, without scales} */
    public int gpuBits() {
        return this == NONE ? 16 : this == FP8 ? 8 : 4;
    }

    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }
}
