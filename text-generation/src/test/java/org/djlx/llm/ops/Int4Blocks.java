// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

/**
 * Rows of 4-bit numbers in groups with a scale and a zero, as AWQ and GPTQ files have them.
 *
 * @param words the blocks of {@code CpuKernels.INT4_ZEROS}
 * @param values what the numbers stand for, without rounding
 */
record Int4Blocks(int[] words, double[] values) {

    private static final int BLOCK = 32;
    private static final int BLOCK_WORDS = 5;

    /** Rounds rows, whose depth is a multiple of 32. Scales have 8 bits, and are 0.0001 or more. */
    static Int4Blocks of(double[] rows, int depth, int group) {
        int[] words = new int[rows.length / BLOCK * BLOCK_WORDS];
        double[] values = new double[rows.length];
        for (int row = 0; row < rows.length; row += depth) {
            for (int begin = row; begin < row + depth; begin += group) {
                int end = Math.min(begin + group, row + depth);
                double least = 0;
                double most = 1e-3;
                for (int i = begin; i < end; i++) {
                    least = Math.min(least, rows[i]);
                    most = Math.max(most, rows[i]);
                }
                double unit = Math.scalb(1.0, Math.getExponent((most - least) / 15) - 7);
                double scale = Math.ceil((most - least) / 15 / unit) * unit;
                int zero = (int) Math.rint(-least / scale);
                for (int i = begin; i < end; i++) {
                    int number = (int) Math.rint(rows[i] / scale) + zero;
                    number = Math.max(0, Math.min(15, number));
                    values[i] = (number - zero) * scale;
                    int at = i / BLOCK * BLOCK_WORDS;
                    int in = i % BLOCK;
                    words[at] = half(scale) | half(zero) << 16;
                    words[at + 1 + in % 16 / 4] |= number << in % 4 * 8 + in / 16 * 4;
                }
            }
        }
        return new Int4Blocks(words, values);
    }

    /** Returns the bits of a number in float16 that needs no rounding, 0 or from 2^-14 on. */
    private static int half(double value) {
        return value == 0 ? 0 : (Float.floatToIntBits((float) value) >> 13) - (112 << 10);
    }
}
