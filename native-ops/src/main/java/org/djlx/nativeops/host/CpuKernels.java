// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import com.sun.jna.Native;
import com.sun.jna.NativeLibrary;
import com.sun.jna.Pointer;
import org.djlx.nativeops.LoadedLibraries;

/**
 * Kernels of decode steps, encoders and optimizers on a CPU, compiled from {@code src/main/cpp}.
 * The comments of {@code cpu_kernels.cpp} have the layout of all arguments. The {@code type} of
 * weights and of the KV cache is the {@code ScalarType.code()} of float32, float16 or bfloat16;
 * weights may also be {@link #INT8}, {@link #INT4} or packed blocks: {@link #INT4_ZEROS}, or those
 * of GGUF. Positions and slots are ints, parts and indices longs, other arrays float32. Neither
 * addresses nor sizes are checked.
 *
 * <p>Loops are divided among {@code threads} threads, at least 1, of the OpenMP pool that libtorch
 * uses; all have finished when a method returns. Results depend on neither the number of threads
 * nor, for each row, on other rows. Available if {@link
 * org.djlx.nativeops.NativeLibrary#CPU_KERNELS} is.
 */
public final class CpuKernels {

    /** The type of weights of 8 bits: a scale for each group of 128 inputs of an output. */
    public static final int INT8 = 1;

    /** The type of weights of 4 bits: a scale for each group of 128 inputs of an output. */
    public static final int INT4 = 16;

    /**
     * The type of packed blocks of 4 bits: 32 weights {@code scale * (q - zero)}. A block that is
     * to be packed has 20 bytes, as Q4_1 of GGUF: the scale and the zero in float16, then 16 bytes,
     * with the first 16 numbers {@code q} in their lower halves.
     */
    public static final int INT4_ZEROS = 17;

    /** Packed blocks of GGUF have the type GGML plus their code in {@code ggml_type}. */
    public static final int GGML = 32;

    /** The longs of a part of a product: type, outputs, stride, weights, bias. */
    public static final int PART_LONGS = 5;

    /** The longs of a layer: inputs, outputs, activation (0 for none), split weights, bias. */
    public static final int LAYER_LONGS = 5;

    // Activations of layers.
    public static final int GELU = 1;
    public static final int GELU_TANH = 2;
    public static final int RELU = 3;
    public static final int SILU = 4;

    private static final int LANES;

    static {
        Native.register(CpuKernels.class, LoadedLibraries.own());
        LANES = useAvx512(true);
        if (LANES == 0) {
            throw new UnsatisfiedLinkError("the CPU has not all of AVX2, FMA and F16C");
        }
    }

    private CpuKernels() {}

    /**
     * Chooses the instruction set; returns the floats of a vector, or 0 if the CPU lacks AVX2, FMA
     * or F16C. AVX-512 and AMX are used if the CPU has them and they are allowed; false is for
     * tests.
     */
    public static int useAvx512(boolean allowed) {
        return initialize(allowed ? 2 : 0);
    }

    /** As {@link #useAvx512}, for AMX; AVX-512 is allowed. */
    public static int useAmx(boolean allowed) {
        return initialize(allowed ? 2 : 1);
    }

    private static int initialize(int level) {
        NativeLibrary torch = NativeLibrary.getInstance(LoadedLibraries.find("libtorch_cpu.so"));
        // A symbol of a library that libtorch links to.
        Pointer parallel = torch.getFunction("GOMP_parallel");
        long sqrt;
        try {
            sqrt = Pointer.nativeValue(torch.getFunction("vmsSqrt"));
        } catch (UnsatisfiedLinkError e) {
            sqrt = 0; // This libtorch has no MKL.
        }
        return djlx_cpu_init(Pointer.nativeValue(parallel), sqrt, level);
    }

    public static boolean hasAvx512() {
        return LANES == 16;
    }

    private static native int djlx_cpu_init(long parallel, long sqrt, int level);

    /**
     * {@return the bytes of packed weights, with their scales; outputs are rounded up to a multiple
     * of 16}
     */
    public static native long djlx_cpu_quantized_bytes(int type, long outputs, long inputs);

    /**
     * Packs blocks for products, without rounding.
     *
     * @param type {@link #INT4_ZEROS}, or {@link #GGML} plus the code of Q4_0, Q4_1, Q5_0, Q5_1,
     *     Q8_0 or Q2_K to Q6_K
     * @param inputs the length of a row, a multiple of the type's block
     * @param rows address of longs: the address of each output's first block, 0 for a row of zeros
     * @param packed address of {@link #djlx_cpu_quantized_bytes} bytes, aligned to 64 bytes
     */
    public static native void djlx_cpu_pack(
            int threads, int type, long outputs, long inputs, long rows, long packed);

    /**
     * Quantizes weights, rounding to nearest. Where one is NaN or infinite, so are products with
     * its scale.
     *
     * @param type the type of the result: {@link #INT8} or {@link #INT4}
     * @param from the type of the weights
     * @param weights of shape (outputs, inputs), contiguous
     * @param quantized {@link #djlx_cpu_quantized_bytes} bytes, aligned to 4 bytes
     */
    public static native void djlx_cpu_quantize(
            int threads,
            int type,
            int from,
            long outputs,
            long inputs,
            long weights,
            long quantized);

    /**
     * Computes {@code out = x weights^T + bias}; or, if {@code factor} is not 0, adds {@code
     * factor} times that to {@code out}. With quantized weights, {@code x} is rounded to 8 bits, in
     * groups of 128 inputs with a scale each.
     *
     * @param x of shape (rows, inputs)
     * @param weights of shape (outputs, inputs), with rows {@code stride} elements apart; or
     *     quantized, where {@code stride} is not read
     * @param bias of shape (outputs); 0 for none
     * @param out of shape (rows, outputs), with rows {@code width} elements apart
     */
    public static native void djlx_cpu_product(
            int threads,
            int type,
            long rows,
            long inputs,
            long outputs,
            long stride,
            long width,
            long x,
            long weights,
            long bias,
            float factor,
            long out);

    /**
     * As {@link #djlx_cpu_product} of each part, with the columns of {@code out} next to each
     * other. Threads share one loop, so they wait for each other once.
     *
     * @param count the number of parts, at least 1
     * @param parts {@link #PART_LONGS} longs for each. All are quantized, or none is; of quantized
     *     ones all but the last have a multiple of 16 outputs
     */
    public static native void djlx_cpu_products(
            int threads,
            long rows,
            long inputs,
            long count,
            long parts,
            long width,
            long x,
            float factor,
            long out);

    /**
     * {@return the bytes of weights of shape (outputs, inputs) for {@link #djlx_cpu_layers}; 0 if
     * the CPU has no AMX for bfloat16}
     */
    public static native long djlx_cpu_split_bytes(long outputs, long inputs);

    /**
     * Splits float32 weights into three bfloat16 each, for {@link #djlx_cpu_layers}.
     *
     * @param split address of {@link #djlx_cpu_split_bytes} bytes, aligned to 64 bytes
     */
    public static native void djlx_cpu_split(
            int threads, long outputs, long inputs, long weights, long split);

    /**
     * Computes {@code norm(layers(x) + residual)}, as close to the exact result as with float32.
     *
     * @param count the number of layers, at least 1, one after the other
     * @param layers {@link #LAYER_LONGS} longs for each
     * @param residual of the shape of {@code out}; 0 for none
     * @param normWeight the weight of a layer norm; 0 for no norm
     */
    public static native void djlx_cpu_layers(
            int threads,
            long rows,
            long count,
            long layers,
            long x,
            long residual,
            long normWeight,
            long normBias,
            float epsilon,
            long out);

    /**
     * Adds {@code delta} to {@code x}, unless {@code delta} is 0. Then writes the RMSNorm of {@code
     * x} to {@code out}, unless {@code out} is 0; {@code out} may be {@code x}.
     */
    public static native void djlx_cpu_rms_norm(
            int threads,
            long rows,
            long size,
            long x,
            long delta,
            long weight,
            float epsilon,
            long out);

    /**
     * Computes {@code activation(gate) up}.
     *
     * @param gelu 1 for GELU approximated by tanh, 0 for SiLU
     * @param gateUp of shape (rows, 2 inner): the gates of a row, then its ups
     */
    public static native void djlx_cpu_gate(
            int threads, long rows, long inner, int gelu, long gateUp, long out);

    /**
     * Normalises heads, unless {@code queryNorm} is 0, and rotates them, in place; writes keys and
     * values to the cache; and computes attention of each token over its sequence.
     *
     * @param maxLength the slots of a sequence in {@code slots}; 0 if all rows are adjacent tokens
     *     of one sequence, whose slots are all of {@code slots}: faster than a row for each, with
     *     other roundings
     * @param window the most tokens that a token attends to; 0 for all
     * @param cap the limit of scores; 0 for none
     */
    public static native void djlx_cpu_attention(
            int threads,
            int type,
            long rows,
            long queryHeads,
            long kvHeads,
            long headSize,
            long maxLength,
            long window,
            float scale,
            float cap,
            float epsilon,
            long qkv,
            long queryNorm,
            long keyNorm,
            long cosines,
            long sines,
            long positions,
            long slots,
            long keys,
            long values,
            long out);

    /**
     * Computes attention within sequences, in both directions.
     *
     * @param starts longs: the first token of each sequence, then the number of all tokens
     * @param qkv of shape (tokens, 3, heads, size): queries, keys, values
     * @param out of shape (tokens, heads, size)
     */
    public static native void djlx_cpu_encoder_attention(
            int threads,
            long sequences,
            long heads,
            long size,
            long starts,
            float scale,
            long qkv,
            long out);

    /**
     * Computes the argmax of each row, its maximum, and the sum of the exponentials of {@code x -
     * maximum}.
     *
     * @param x of shape (rows, size), contiguous
     * @param indices of shape (rows), longs: the first index of the maximum
     * @param maxima of shape (rows)
     * @param sums of shape (rows): NaN if an element is NaN or the maximum is infinite
     */
    public static native void djlx_cpu_argmax(
            int threads, long rows, long size, long x, long indices, long maxima, long sums);

    /**
     * Updates a parameter, and its optimizer state, from its gradient by DJL's SGD, Adam or AdamW.
     * Each address is that of {@code size} floats.
     *
     * @param first SGD's momentum buffer ({@code beta1} is the momentum) or Adam's mean; 0 for none
     * @param second Adam's variance; 0 for SGD
     * @param corrected Adam's learning rate with bias correction
     * @param clip the largest gradient; negative for no limit
     * @param decoupled 1 for AdamW, 0 otherwise
     */
    public static native void djlx_cpu_update(
            int threads,
            long size,
            long weight,
            long gradient,
            long first,
            long second,
            float rate,
            float corrected,
            float decay,
            float rescale,
            float clip,
            float beta1,
            float beta2,
            float epsilon,
            int decoupled);

    /** Writes {@code factor} times {@code x}, as float32. */
    public static native void djlx_cpu_widen(int type, long size, float factor, long x, long out);
}
