// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.llm.model.BlockFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;

/**
 * How a rank stores the weights of projections.
 *
 * @param group on a GPU the inputs of a group of {@link Quantization#INT4} numbers that the files
 *     have, with a zero: 32, 64 or 128. Projections that the files have in 16 bits then keep them.
 *     0 for weights that this library quantizes, or that are not quantized
 */
public record WeightFormat(Quantization quantization, int group) {

    /** Weights that this library quantizes, or that are not quantized. */
    public WeightFormat(Quantization quantization) {
        this(quantization, 0);
    }

    /**
     * Returns how ranks store the weights of files: if one GPU computes an unquantized model, and
     * has kernels for it, the files' own 4-bit numbers.
     */
    public static WeightFormat of(
            ModelConfig config,
            Device device,
            int ranks,
            Quantization quantization,
            TensorFiles files) {
        WeightFormat own = new WeightFormat(quantization);
        boolean mayBeOfFiles = quantization == Quantization.NONE && device.isGpu() && ranks == 1;
        if (!mayBeOfFiles || !(files instanceof BlockFiles blocks)) {
            return own;
        }
        WeightFormat ofFiles = new WeightFormat(Quantization.INT4, blocks.int4Group());
        return ofFiles.isOfFiles() && ModelKernels.isPossible(config, device, ofFiles)
                ? ofFiles
                : own;
    }

    boolean isOfFiles() {
        return group > 0;
    }

    /** Returns the bits of a weight on GPUs, without scales. */
    int bits() {
        return quantization.gpuBits();
    }

    /** Returns the options with which kernels are compiled for the weights. */
    String[] options() {
        return new String[] {"-DWEIGHT_BITS=" + bits(), "-DZERO_GROUP=" + group};
    }

    /** Returns the bytes of the elements of a quantized row. */
    long rowBytes(long depth) {
        return bits() == 8 ? depth : sets(depth) * QuantizeKernels.SET / 2;
    }

    /** Returns the number of scales of a quantized row. */
    long rowScales(long depth) {
        int groups = isOfFiles() ? QuantizeKernels.SET / group : 1;
        return bits() == 8 ? 1 : sets(depth) * groups;
    }

    private static long sets(long depth) {
        return (depth + QuantizeKernels.SET - 1) / QuantizeKernels.SET;
    }
}
