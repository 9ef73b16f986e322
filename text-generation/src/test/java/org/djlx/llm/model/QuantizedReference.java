// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.util.Arrays;

/** Rounds weights as {@link Quantization} says, by a table of all e4m3 and by integers. */
public final class QuantizedReference {

    private static final int GROUP = 128;
    private static final double[] E4M3 = new double[127]; // from 0 to 448

    static {
        for (int i = 0; i < E4M3.length; i++) {
            int exponent = i >> 3;
            double mantissa = (i & 7) / 8.0;
            E4M3[i] =
                    exponent == 0 ? mantissa * 0x1p-6 : (1 + mantissa) * Math.pow(2, exponent - 7);
        }
    }

    private QuantizedReference() {}

    /** Returns rows of e4m3 with a scale each, as values. */
    public static double[] fp8(double[] rows, int depth) {
        double[] values = new double[rows.length];
        for (int begin = 0; begin < rows.length; begin += depth) {
            float most = 0;
            for (int i = begin; i < begin + depth; i++) {
                most = Math.max(most, (float) Math.abs(rows[i]));
            }
            float scale = most / 448;
            float inverse = most > 0 ? 448 / most : 0;
            for (int i = begin; i < begin + depth; i++) {
                values[i] = nearestE4m3((float) rows[i] * inverse) * scale;
            }
        }
        return values;
    }

    /** Returns the nearest e4m3, of two equally near the one with an even last bit. */
    private static double nearestE4m3(float x) {
        double magnitude = Math.min(Math.abs(x), 448);
        int found = Arrays.binarySearch(E4M3, magnitude);
        if (found < 0) {
            int above = -found - 1;
            double further = 2 * magnitude - E4M3[above] - E4M3[above - 1];
            found = further > 0 || further == 0 && above % 2 == 0 ? above : above - 1;
        }
        return Math.copySign(E4M3[found], x);
    }

    /** Returns rows of groups of 4-bit integers with a scale each, as values. */
    public static double[] int4(double[] rows, int depth) {
        double[] values = new double[rows.length];
        for (int row = 0; row < rows.length; row += depth) {
            for (int begin = row; begin < row + depth; begin += GROUP) {
                int end = Math.min(begin + GROUP, row + depth);
                float most = 0;
                for (int i = begin; i < end; i++) {
                    most = Math.abs(rows[i]) > Math.abs(most) ? (float) rows[i] : most;
                }
                float scale = most / -8;
                for (int i = begin; i < end; i++) {
                    double q = most == 0 ? 0 : Math.rint((float) rows[i] / scale);
                    values[i] = Math.min(q, 7) * scale;
                }
            }
        }
        return values;
    }

    /** Returns a matrix as it is stored, as values. */
    public static double[] rounded(double[] rows, int depth, Quantization quantization) {
        return switch (quantization) {
            case FP8 -> fp8(rows, depth);
            case INT4 -> int4(rows, depth);
            default -> rows;
        };
    }
}
