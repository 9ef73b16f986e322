// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

/** Conversions between float32 and narrower types, written independently of libtorch. */
final class TestFloats {

    private TestFloats() {}

    static float fromBfloat16(short bits) {
        return Float.intBitsToFloat(bits << 16);
    }

    /** Rounds to nearest, ties to even, as IEEE 754 does. */
    static short toBfloat16(float value) {
        int bits = Float.floatToRawIntBits(value);
        if (Float.isNaN(value)) {
            return 0x7fc0;
        }
        int lower = bits & 0xffff;
        int upper = bits >>> 16;
        if (lower > 0x8000 || lower == 0x8000 && (upper & 1) == 1) {
            upper++;
        }
        return (short) upper;
    }

    /** Decodes a floating-point number of at most 16 bits without infinities and NaN. */
    static double decode(int bits, int exponentBits, int fractionBits, int bias) {
        int fraction = bits & ((1 << fractionBits) - 1);
        int exponent = bits >> fractionBits & ((1 << exponentBits) - 1);
        double sign = bits >> fractionBits + exponentBits == 0 ? 1 : -1;
        double scale = Math.scalb(1.0, -fractionBits);
        return exponent == 0
                ? sign * Math.scalb(fraction * scale, 1 - bias)
                : sign * Math.scalb(1 + fraction * scale, exponent - bias);
    }

    static float fromFloat16(short bits) {
        return (float) decode(bits & 0xffff, 5, 10, 15);
    }

    /** Returns the bits of the float16 nearest to a finite number in its range. */
    static short toFloat16(double value) {
        int best = 0;
        double bestError = Double.POSITIVE_INFINITY;
        for (int bits = 0; bits < 0x7c00; bits++) {
            double error = Math.abs(decode(bits, 5, 10, 15) - Math.abs(value));
            if (error < bestError || error == bestError && (bits & 1) == 0) {
                best = bits;
                bestError = error;
            }
        }
        return (short) (Math.copySign(1, value) < 0 ? best | 0x8000 : best);
    }
}
