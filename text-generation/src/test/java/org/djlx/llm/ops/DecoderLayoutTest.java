// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.LongStream;
import org.djlx.llm.model.LoraConfig;
import org.djlx.llm.sampling.LogitEdits;
import org.djlx.llm.sampling.SamplingParameters;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.junit.jupiter.api.Test;

/** What Java repeats of the CUDA sources equals them; no GPU is needed. */
class DecoderLayoutTest {

    private static KernelConstants constants(String file, String... options) {
        return new KernelConstants(KernelSource.ofResource(NativeLibrary.class, file), options);
    }

    @Test
    void constantsAndStructsMatch() {
        KernelConstants attention = constants("decoder/decoder.cu", "-DHEAD_SIZE=128");
        assertEquals(attention.value("CHUNK"), DecoderKernels.CHUNK);
        assertEquals(
                List.of("keys", "values", "key_scales", "value_scales"),
                List.copyOf(attention.struct("Cache").offsets().keySet()));
        KernelConstants llama = constants("decoder/sampling.cu");
        assertEquals(llama.value("TOP_BLOCKS"), DecoderKernels.TOP_BLOCKS);
        assertEquals(llama.value("SAMPLED"), DecoderKernels.LAST_SAMPLED);
        assertEquals(llama.struct("Edit").byteSize(), LogitEdits.ENTRY * Integer.BYTES);
        assertEquals(llama.value("IN_PROMPT"), LogitEdits.IN_PROMPT);
        assertEquals(llama.struct("Most").byteSize(), DecoderKernels.MOST_BYTES);
        assertEquals(llama.value("MAX_TOP_LOGPROBS"), DecoderKernels.MAX_TOP_LOGPROBS);
        assertEquals(llama.struct("Top").byteSize(), DecoderKernels.TOP_FLOATS * Float.BYTES);
        KernelConstants lora = constants("decoder/lora.cu");
        assertEquals(lora.value("MAX_LOW"), lora.value("MAX_SLICES") * LoraConfig.MAX_RANK);
        assertEquals(
                DecoderKernels.MATMUL_ROWS,
                constants("decoder/matmul.cu").calls("MATMUL").stream()
                        .mapToInt(call -> call[0])
                        .max()
                        .orElseThrow());
        assertEquals(
                List.of(WideMatmul.MAX_ROWS / 2, WideMatmul.MAX_ROWS),
                constants("decoder/wide_matmul.cu").calls("WIDE_MATMUL").stream()
                        .map(call -> call[0])
                        .distinct()
                        .toList());
    }

    @Test
    void expertKernelsTakeAllRowsAndEachVariant() {
        assertEquals(ExpertKernels.MAX_PAIRS, DecoderKernels.MAX_ROWS * ExpertKernels.MAX_CHOSEN);
        assertEquals(
                List.of(8, 16, 32, 64),
                constants("decoder/experts.cu").calls("EXPERT_MATMUL").stream()
                        .map(call -> call[0])
                        .distinct()
                        .toList());
    }

    @Test
    void expertTilesOfPrefillsHaveTheRowsAndColumnsThatTheHostExpects() {
        List<int[]> calls = constants("decoder/wide_experts.cu").calls("EXPERT_TILES");
        assertEquals(
                List.of(WideMatmul.MAX_ROWS / 2, WideMatmul.MAX_ROWS),
                calls.stream().map(call -> call[0]).toList());
        assertEquals(1, calls.stream().map(call -> call[1]).distinct().count());
    }

    @Test
    void bothMatmulsTakeAnAddend() {
        KernelConstants.Layout few = constants("decoder/matmul.cu").struct("Matmul");
        KernelConstants.Layout many = constants("decoder/wide_matmul.cu").struct("WideMatmul");
        for (KernelConstants.Layout layout : List.of(few, many)) {
            int begin = layout.offset("addend");
            List<Integer> offsets = new ArrayList<>();
            DecoderKernels.Addend.NONE.putTo((member, value) -> offsets.add(layout.offset(member)));
            assertEquals(List.of(begin, begin + 8, begin + 16), offsets);
        }
    }

    /** The bytes are those that a compiler lays out: an independent reading of the struct. */
    @Test
    void samplingParametersAreWrittenAsTheStructLiesInMemory() {
        LogitEdits edits = new LogitEdits(1.5f, -0.25f, 0.75f, new int[6], () -> new int[] {1, 2});
        SamplingParameters some = new SamplingParameters(0.5, 7, 0.9, 0.1, -3, 11, 5, edits);
        ByteBuffer actual = ByteBuffer.allocate(3 * 80).order(ByteOrder.nativeOrder());
        Decoder.writeSampling(actual, 0, SamplingParameters.GREEDY, 0);
        Decoder.writeSampling(actual, 1, some, 4096);
        Decoder.writeSampling(actual, 2, SamplingParameters.ofGiven(9, 3), 0);
        ByteBuffer expected = ByteBuffer.allocate(3 * 80).order(ByteOrder.nativeOrder());
        expected.putDouble(0).putDouble(1).putLong(0).putLong(0).putDouble(0).putLong(0).putLong(0);
        expected.putInt(0).putInt(-1).putInt(0).putFloat(1).putFloat(0).putFloat(0);
        expected.putDouble(2 / Math.log(2)).putDouble(0.9).putLong(-3).putLong(7).putDouble(0.1);
        expected.putLong(4096).putLong(4096 + 24).putInt(2).putInt(11).putInt(5);
        expected.putFloat(1.5f).putFloat(-0.25f).putFloat(0.75f);
        expected.putDouble(0).putDouble(1).putLong(0).putLong(0).putDouble(0).putLong(0).putLong(0);
        expected.putInt(0).putInt(9).putInt(3).putFloat(1).putFloat(0).putFloat(0);
        assertEquals(80, DecoderKernels.SAMPLING_PARAMETERS.byteSize());
        assertArrayEquals(expected.array(), actual.array());
    }

    /** Of 10 rows, 9 have the same adapter: one more than a group has. */
    @Test
    void rowsWithTheSameAdapterFormGroups() {
        ByteBuffer actual = ByteBuffer.allocate(12 * 44).order(ByteOrder.nativeOrder());
        actual.asLongBuffer().put(LongStream.generate(() -> 77).limit(66).toArray());
        long[] adapters = {5, 0, 5, 5, 5, 6, 5, 5, 5, 5, 5, 0};
        LoraKernels.writeGroups(actual, adapters);
        assertEquals(actual.capacity(), LoraKernels.groupBytes(12));
        assertEquals(actual.capacity(), actual.position());
        IntBuffer ints = actual.clear().asIntBuffer();
        int[] groups = new int[30];
        ints.get(groups);
        for (int group = 3; group < 12; group++) {
            assertEquals(0, actual.getLong(group * 40)); // A thread block may begin at any group.
        }
        int[] expected = {
            5, 0, 0, 2, 3, 4, 6, 7, 8, 9, // the address in two ints, then the rows
            5, 0, 10, -1, -1, -1, -1, -1, -1, -1, // the ninth row
            6, 0, 5, -1, -1, -1, -1, -1, -1, -1
        };
        assertArrayEquals(expected, groups);
        int[] adapted = new int[12];
        ints.position(120).get(adapted);
        assertArrayEquals(new int[] {1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}, adapted);
    }

    /** Initializing a launcher reads its constants, which must exist. */
    @Test
    void launchersFindTheirConstants() throws ClassNotFoundException {
        for (Class<?> launcher :
                List.of(
                        DecoderKernels.class,
                        ExpertKernels.class,
                        LoraKernels.class,
                        MatmulChain.class,
                        QuantizeKernels.class,
                        WideMatmul.class)) {
            Class.forName(launcher.getName());
        }
    }
}
