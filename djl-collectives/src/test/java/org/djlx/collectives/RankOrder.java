// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.util.function.DoubleBinaryOperator;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Reduces in plain Java, element by element: in double precision, and step by step in the precision
 * and order that the contract promises.
 */
final class RankOrder {

    private RankOrder() {}

    /** The result in double precision, and the tolerance of a correct result. */
    static double exact(double[] parts, ReduceOp op) {
        double result = parts[0] * op.factor();
        for (int i = 1; i < parts.length; i++) {
            result = operator(op).applyAsDouble(result, parts[i] * op.factor());
        }
        return op == ReduceOp.AVG ? result / parts.length : result;
    }

    /** The result as the contract defines it, to the bit. */
    static double rounded(double[] parts, ReduceOp op, ScalarType type) {
        double factor = accumulator(op.factor(), type);
        double result = accumulator(parts[0] * factor, type);
        for (int i = 1; i < parts.length; i++) {
            double term = accumulator(parts[i] * factor, type);
            result = accumulator(operator(op).applyAsDouble(result, term), type);
        }
        if (op == ReduceOp.AVG) {
            result = accumulator(result / parts.length, type);
        }
        return round(result, type);
    }

    private static DoubleBinaryOperator operator(ReduceOp op) {
        return switch (op.kind()) {
            case SUM, AVG, PREMUL_SUM -> Double::sum;
            case PRODUCT -> (a, b) -> a * b;
            case MIN -> Math::min;
            case MAX -> Math::max;
            case BAND -> (a, b) -> (long) a & (long) b;
            case BOR -> (a, b) -> (long) a | (long) b;
            case BXOR -> (a, b) -> (long) a ^ (long) b;
        };
    }

    /** One step: the sum or product of two floats, rounded from double to float, is IEEE's. */
    private static double accumulator(double value, ScalarType type) {
        return switch (type) {
            case FLOAT32, FLOAT16, BFLOAT16 -> (float) value;
            case INT8 -> (byte) (long) value;
            case UINT8 -> (long) value & 0xff;
            case INT16 -> (short) (long) value;
            case BOOL -> value == 0 ? 0 : 1;
            default -> value;
        };
    }

    private static double round(double value, ScalarType type) {
        return switch (type) {
            case BFLOAT16 -> toBfloat16((float) value);
            case FLOAT16 -> toFloat16((float) value);
            default -> value;
        };
    }

    private static float toBfloat16(float value) {
        int bits = Float.floatToIntBits(value);
        int even = bits >>> 16 & 1;
        return Float.intBitsToFloat(bits + 0x7fff + even & 0xffff0000);
    }

    /** Rounds to eleven significant bits, fewer below the smallest normal number, 2⁻¹⁴. */
    private static double toFloat16(float value) {
        if (value == 0 || Float.isNaN(value) || Float.isInfinite(value)) {
            return value;
        }
        int exponent = Math.max(Math.getExponent(value), -14);
        double unit = Math.scalb(1.0, exponent - 10);
        double rounded = Math.rint(value / unit) * unit;
        return Math.abs(rounded) > 65504 ? Math.signum(value) * Double.POSITIVE_INFINITY : rounded;
    }
}
