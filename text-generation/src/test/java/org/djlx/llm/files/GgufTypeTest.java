// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Map;
import java.util.Random;
import java.util.zip.CRC32;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CpuKernels;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class GgufTypeTest {

    private static final int BLOCKS = 64;

    @BeforeAll
    static void available() {
        NativeLibrary.CPU_KERNELS.ensureAvailability();
    }

    /** The bytes of a block that are float16 numbers, by the first byte of each. */
    private static final Map<GgufType, int[]> HALVES =
            Map.ofEntries(
                    Map.entry(GgufType.F16, new int[] {0}),
                    Map.entry(GgufType.BF16, new int[] {0}),
                    Map.entry(GgufType.Q4_0, new int[] {0}),
                    Map.entry(GgufType.Q4_1, new int[] {0, 2}),
                    Map.entry(GgufType.Q5_0, new int[] {0}),
                    Map.entry(GgufType.Q5_1, new int[] {0, 2}),
                    Map.entry(GgufType.Q8_0, new int[] {0}),
                    Map.entry(GgufType.Q2_K, new int[] {80, 82}),
                    Map.entry(GgufType.Q3_K, new int[] {108}),
                    Map.entry(GgufType.Q4_K, new int[] {0, 2}),
                    Map.entry(GgufType.Q5_K, new int[] {0, 2}),
                    Map.entry(GgufType.Q6_K, new int[] {208}));

    /** CRC-32 of the float32 numbers that ggml's dequantize_row functions write for the blocks. */
    private static final Map<GgufType, Long> GGML =
            Map.ofEntries(
                    Map.entry(GgufType.F32, 2889476494L),
                    Map.entry(GgufType.F16, 4249037595L),
                    Map.entry(GgufType.BF16, 3570942822L),
                    Map.entry(GgufType.Q4_0, 320754925L),
                    Map.entry(GgufType.Q4_1, 4129189453L),
                    Map.entry(GgufType.Q5_0, 2143437590L),
                    Map.entry(GgufType.Q5_1, 2900684625L),
                    Map.entry(GgufType.Q8_0, 2837630282L),
                    Map.entry(GgufType.Q2_K, 2795010879L),
                    Map.entry(GgufType.Q3_K, 215846954L),
                    Map.entry(GgufType.Q4_K, 4289306761L),
                    Map.entry(GgufType.Q5_K, 1340260850L),
                    Map.entry(GgufType.Q6_K, 1414528441L));

    /** Returns blocks of random bytes; scales are finite, some of them subnormal or negative. */
    static byte[] blocks(GgufType type, int count) {
        byte[] bytes = new byte[count * type.blockBytes];
        Random random = new Random(type.ordinal());
        random.nextBytes(bytes);
        ByteBuffer buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN);
        for (int i = 0; i < count; i++) {
            if (type == GgufType.F32) {
                buffer.putFloat(4 * i, random.nextFloat() - 0.5f);
                continue;
            }
            for (int at : HALVES.get(type)) {
                int exponent = random.nextInt(20);
                int sign = random.nextInt(2) << 15;
                int number = sign | exponent << 10 | random.nextInt(1024);
                buffer.putShort(i * type.blockBytes + at, (short) number);
            }
        }
        return bytes;
    }

    @ParameterizedTest
    @EnumSource
    void dequantizesTheNumbersOfGgml(GgufType type) {
        float[] numbers = new float[BLOCKS * type.blockSize];
        ByteBuffer bytes = ByteBuffer.wrap(blocks(type, BLOCKS)).order(ByteOrder.LITTLE_ENDIAN);
        type.dequantize(bytes, 0, numbers.length, numbers, 0);
        CRC32 crc = new CRC32();
        crc.update(GgufWriter.floats(numbers));
        assertEquals(GGML.get(type), crc.getValue());
    }

    /** x has integers that 8 bits hold exactly. One row is null, and the last panel is partial. */
    @ParameterizedTest
    @EnumSource
    void packedProductsEqualThoseOfDequantizedWeights(GgufType type) {
        if (!type.isQuantized()) {
            return;
        }
        int inputs = type.blockSize == 32 ? 160 : 512; // the first is no whole group of 128
        int outputs = 37;
        int rows = 45; // from 16 on, those of whole tiles are multiplied by AMX if the CPU has it
        int rowBytes = inputs / type.blockSize * type.blockBytes;
        byte[] blocks = blocks(type, inputs / type.blockSize * outputs);
        float[] numbers = new float[outputs * inputs];
        ByteBuffer bytes = ByteBuffer.wrap(blocks).order(ByteOrder.LITTLE_ENDIAN);
        type.dequantize(bytes, 0, numbers.length, numbers, 0);
        Random random = new Random(1);
        float[] x = new float[rows * inputs];
        for (int i = 0; i < x.length; i++) {
            x[i] = i % inputs % 32 == 5 ? 127 : random.nextInt(255) - 127;
        }
        int code = CpuKernels.GGML + type.code;
        try (Memory stored = new Memory(blocks.length);
                Memory addresses = new Memory(8L * outputs);
                Memory packed =
                        new Memory(CpuKernels.djlx_cpu_quantized_bytes(code, outputs, inputs));
                Memory in = new Memory(4L * x.length);
                Memory out = new Memory(4L * rows * outputs)) {
            stored.write(0, blocks, 0, blocks.length);
            in.write(0, x, 0, x.length);
            for (int i = 0; i < outputs; i++) {
                long address = Pointer.nativeValue(stored) + (long) i * rowBytes;
                addresses.setLong(8L * i, i == 30 ? 0 : address);
            }
            CpuKernels.djlx_cpu_pack(2, code, outputs, inputs, at(addresses), at(packed));
            for (boolean avx512 : new boolean[] {true, false}) {
                CpuKernels.useAvx512(avx512);
                float[] all = null;
                for (int count : new int[] {rows, 1, 6}) {
                    CpuKernels.djlx_cpu_product(
                            2,
                            code,
                            count,
                            inputs,
                            outputs,
                            0,
                            outputs,
                            at(in),
                            at(packed),
                            0,
                            0,
                            at(out));
                    float[] result = out.getFloatArray(0, count * outputs);
                    all = all == null ? result : all;
                    // The same bits for any number of rows.
                    assertArrayEquals(Arrays.copyOf(all, result.length), result);
                }
                for (int i = 0; i < all.length; i++) {
                    int output = i % outputs;
                    double sum = 0;
                    double size = 0;
                    for (int k = 0; output != 30 && k < inputs; k++) {
                        double term =
                                (double) numbers[output * inputs + k] * x[i / outputs * inputs + k];
                        sum += term;
                        size += Math.abs(term);
                    }
                    assertEquals(sum, all[i], size * 1e-6, type + " " + i);
                }
            }
        } finally {
            CpuKernels.useAvx512(true);
        }
    }

    private static long at(Memory memory) {
        return Pointer.nativeValue(memory);
    }
}
