// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import java.nio.ByteBuffer;
import java.util.Arrays;

/**
 * The types of tensors in GGUF files. A quantized type stores blocks of numbers: {@code scale * q},
 * {@code scale * (q - middle)} or {@code scale * q + minimum}. Types of 256 numbers a block (K)
 * have scales of 16 or 32 numbers, which are themselves quantized.
 */
enum GgufType {
    F32(0, 1, 4, (b, out, at) -> out[at] = b.getFloat(0)),
    F16(1, 1, 2, (b, out, at) -> out[at] = half(b, 0)),
    BF16(30, 1, 2, (b, out, at) -> out[at] = Float.intBitsToFloat(b.getShort(0) << 16)),
    Q4_0(2, 32, 18, (b, out, at) -> nibbles(b, half(b, 0), -8, -0f, 2, -1, out, at)),
    Q4_1(3, 32, 20, (b, out, at) -> nibbles(b, half(b, 0), 0, half(b, 2), 4, -1, out, at)),
    Q5_0(6, 32, 22, (b, out, at) -> nibbles(b, half(b, 0), -16, -0f, 6, 2, out, at)),
    Q5_1(7, 32, 24, (b, out, at) -> nibbles(b, half(b, 0), 0, half(b, 2), 8, 4, out, at)),
    Q8_0(8, 32, 34, GgufType::bytes),
    Q2_K(10, 256, 84, GgufType::q2),
    Q3_K(11, 256, 110, GgufType::q3),
    Q4_K(12, 256, 144, GgufType::q4),
    Q5_K(13, 256, 176, GgufType::q5),
    Q6_K(14, 256, 210, GgufType::q6);

    /** Computes the numbers of the block that begins at index 0 of a buffer. */
    private interface Block {

        void dequantize(ByteBuffer block, float[] out, int at);
    }

    final int code; // ggml's
    final int blockSize; // numbers
    final int blockBytes;
    private final Block block;

    GgufType(int code, int blockSize, int blockBytes, Block block) {
        this.code = code;
        this.blockSize = blockSize;
        this.blockBytes = blockBytes;
        this.block = block;
    }

    /** Throws an IllegalArgumentException if the type is not supported. */
    static GgufType of(int code) {
        return Arrays.stream(values())
                .filter(type -> type.code == code)
                .findFirst()
                .orElseThrow(
                        () ->
                                new IllegalArgumentException(
                                        ("the type %s is not supported; supported are %s; quantize"
                                                        + " the model to one of these")
                                                .formatted(
                                                        Integer.toUnsignedString(code),
                                                        Arrays.toString(values()))));
    }

    boolean isQuantized() {
        return blockSize > 1;
    }

    /** Computes {@code count} numbers, a multiple of the block, from little-endian bytes. */
    void dequantize(ByteBuffer bytes, int offset, int count, float[] out, int at) {
        for (int i = 0; i < count / blockSize; i++) {
            block.dequantize(
                    bytes.slice(offset + i * blockBytes, blockBytes).order(bytes.order()),
                    out,
                    at + i * blockSize);
        }
    }

    private static float half(ByteBuffer b, int index) {
        int bits = b.getShort(index);
        int exponent = bits >> 10 & 31;
        int fraction = bits & 1023;
        float magnitude =
                switch (exponent) {
                    case 0 -> fraction * 0x1p-24f;
                    case 31 -> fraction == 0 ? Float.POSITIVE_INFINITY : Float.NaN;
                    default -> Float.intBitsToFloat(exponent + 112 << 23 | fraction << 13);
                };
        return bits < 0 ? -magnitude : magnitude;
    }

    private static int unsigned(ByteBuffer b, int index) {
        return b.get(index) & 255;
    }

    /**
     * 32 numbers of 4 bits from {@code from} on, the first 16 in the low halves of bytes; {@code
     * fifth} is the index of 32 bits that are the fifth of each number, -1 for none. A minimum of
     * -0 changes no number.
     */
    private static void nibbles(
            ByteBuffer b,
            float scale,
            int added,
            float minimum,
            int from,
            int fifth,
            float[] out,
            int at) {
        int high = fifth < 0 ? 0 : b.getInt(fifth);
        for (int i = 0; i < 32; i++) {
            int q = (unsigned(b, from + i % 16) >> i / 16 * 4 & 15) | (high >>> i & 1) << 4;
            out[at + i] = scale * (q + added) + minimum;
        }
    }

    private static void bytes(ByteBuffer b, float[] out, int at) {
        float scale = half(b, 0);
        for (int i = 0; i < 32; i++) {
            out[at + i] = scale * b.get(2 + i);
        }
    }

    private static void q2(ByteBuffer b, float[] out, int at) {
        float scale = half(b, 80);
        float minimum = half(b, 82);
        for (int i = 0; i < 256; i++) {
            int scales = unsigned(b, i / 16);
            int q = unsigned(b, 16 + i / 128 * 32 + i % 32) >> i % 128 / 32 * 2 & 3;
            out[at + i] = scale * (scales & 15) * q - minimum * (scales >> 4);
        }
    }

    private static void q3(ByteBuffer b, float[] out, int at) {
        float scale = half(b, 108);
        for (int i = 0; i < 256; i++) {
            int group = i / 16;
            // 16 scales of 6 bits: 4 low bits each in 8 bytes, then 2 high bits each in 4 bytes.
            int low = unsigned(b, 96 + group % 8) >> group / 8 * 4 & 15;
            int high = unsigned(b, 104 + group % 4) >> group / 4 * 2 & 3;
            int q = unsigned(b, 32 + i / 128 * 32 + i % 32) >> i % 128 / 32 * 2 & 3;
            int third = unsigned(b, i % 32) >> i / 32 & 1;
            out[at + i] = scale * ((low | high << 4) - 32) * (q - 4 + 4 * third);
        }
    }

    private static void q4(ByteBuffer b, float[] out, int at) {
        for (int group = 0; group < 8; group++) {
            float scale = half(b, 0) * scale(b, group, 0);
            float minimum = half(b, 2) * scale(b, group, 4);
            for (int i = 0; i < 32; i++) {
                int q = unsigned(b, 16 + group / 2 * 32 + i) >> group % 2 * 4 & 15;
                out[at + group * 32 + i] = scale * q - minimum;
            }
        }
    }

    private static void q5(ByteBuffer b, float[] out, int at) {
        for (int group = 0; group < 8; group++) {
            float scale = half(b, 0) * scale(b, group, 0);
            float minimum = half(b, 2) * scale(b, group, 4);
            for (int i = 0; i < 32; i++) {
                int low = unsigned(b, 48 + group / 2 * 32 + i) >> group % 2 * 4 & 15;
                int q = low | (unsigned(b, 16 + i) >> group & 1) << 4;
                out[at + group * 32 + i] = scale * q - minimum;
            }
        }
    }

    /**
     * Returns a scale of 6 bits of Q4_K and Q5_K, or a minimum if {@code kind} is 4. In 12 bytes
     * from index 4 on: 4 scales, 4 minimums, then the low halves of 4 more of both; their high bits
     * are the upper two of the first 8.
     */
    private static int scale(ByteBuffer b, int group, int kind) {
        int first = unsigned(b, 4 + kind + group % 4);
        return group < 4 ? first & 63 : (unsigned(b, 8 + group) >> kind & 15) | first >> 6 << 4;
    }

    private static void q6(ByteBuffer b, float[] out, int at) {
        float scale = half(b, 208);
        for (int i = 0; i < 256; i++) {
            int half = i / 128;
            int low = unsigned(b, half * 64 + i % 64) >> i % 128 / 64 * 4 & 15;
            int high = unsigned(b, 128 + half * 32 + i % 32) >> i % 128 / 32 * 2 & 3;
            out[at + i] = scale * b.get(192 + i / 16) * ((low | high << 4) - 32);
        }
    }
}
