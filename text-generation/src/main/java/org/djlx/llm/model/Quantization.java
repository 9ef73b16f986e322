// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.util.Locale;

/**
 * How the weights of projections are stored. Loading a model rounds them to the nearest number. The
 * embedding, routers, norms and biases keep the model's type, and {@link KvCacheDtype} says how
 * keys and values are stored; an embedding that is also the output matrix is stored twice.
 * docs/text-generation.md, GPUs and CPUs, says how activations are rounded and what each type
 * needs.
 */
public enum Quantization {
    /** In the model's type. */
    NONE,
    /** Float8 (e4m3), with a scale for each output. For GPUs. */
    FP8,
    /** 8-bit integers, with a scale for each 128 inputs of an output. For CPUs. */
    INT8,
    /** 4-bit integers, with a scale for each 128 inputs of an output. */
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
