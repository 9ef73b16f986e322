// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

/** Rounds float32 to 16-bit types, to nearest even, as libtorch does. */
public final class HalfBits {

    private HalfBits() {}

    /** Rounds to bfloat16: the upper half of the float32's bits, rounded. */
    public static short bfloat16(float value) {
        if (Float.isNaN(value)) {
            return 0x7fc0;
        }
        int bits = Float.floatToRawIntBits(value);
        int even = bits >>> 16 & 1;
        return (short) (bits + 0x7fff + even >>> 16);
    }

    /**
     * Rounds to float16; infinite from 65520 on. Float additions do the rounding, as in
     * Maratyszcza's <a href="https://github.com/Maratyszcza/FP16">FP16</a>, which libtorch uses.
     */
    public static short float16(float value) {
        int bits = Float.floatToRawIntBits(value);
        int sign = bits >>> 16 & 0x8000;
        if (Float.isNaN(value)) {
            return (short) (sign | 0x7e00);
        }
        float infiniteIfLarge = Math.abs(value) * 0x1.0p112f;
        float scaled = infiniteIfLarge * 0x1.0p-110f;
        // Adding this power of two leaves as many fraction bits as the float16 has; a subnormal
        // float16 has fewer.
        int exponent = Math.max(bits & 0x7f800000, 0x38800000);
        int sum = Float.floatToRawIntBits(Float.intBitsToFloat(exponent + 0x07800000) + scaled);
        return (short) (sign | (sum >>> 13 & 0x7c00) + (sum & 0xfff));
    }
}
