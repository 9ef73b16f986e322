// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import org.djlx.llm.sampling.LogitEdits;
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
        assertEquals(llama.struct("SamplingParameters").byteSize(), DecoderKernels.SAMPLING_BYTES);
        assertEquals(llama.struct("Edit").byteSize(), LogitEdits.ENTRY * Integer.BYTES);
        assertEquals(llama.value("IN_PROMPT"), LogitEdits.IN_PROMPT);
        assertEquals(llama.struct("Most").byteSize(), DecoderKernels.MOST_BYTES);
        assertEquals(llama.value("MAX_TOP_LOGPROBS"), DecoderKernels.MAX_TOP_LOGPROBS);
        assertEquals(llama.struct("Top").byteSize(), DecoderKernels.TOP_FLOATS * Float.BYTES);
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

    /** Initializing a launcher reads its constants, which must exist. */
    @Test
    void launchersFindTheirConstants() throws ClassNotFoundException {
        for (Class<?> launcher :
                List.of(
                        DecoderKernels.class,
                        MatmulChain.class,
                        QuantizeKernels.class,
                        WideMatmul.class)) {
            Class.forName(launcher.getName());
        }
    }
}
