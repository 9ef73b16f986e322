// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import org.djlx.fusedops.cost.FusedMatmulModel;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.junit.jupiter.api.Test;

/** What Java repeats of the CUDA sources equals them; no GPU is needed. */
class KernelLayoutTest {

    private static KernelConstants constants(String file, String... options) {
        return new KernelConstants(KernelSource.ofResource(NativeLibrary.class, file), options);
    }

    @Test
    void llama() {
        KernelConstants attention = constants("decoder/decoder.cu", "-DHEAD_SIZE=128");
        assertEquals(attention.value("CHUNK"), DecoderKernels.CHUNK);
        assertEquals(
                List.of("keys", "values", "key_scales", "value_scales"),
                List.copyOf(attention.struct("Cache").offsets().keySet()));
        KernelConstants llama = constants("decoder/sampling.cu");
        assertEquals(llama.value("TOP_BLOCKS"), DecoderKernels.TOP_BLOCKS);
        assertEquals(llama.value("SAMPLED"), DecoderKernels.LAST_SAMPLED);
        assertEquals(llama.struct("SamplingParameters").byteSize(), DecoderKernels.SAMPLING_BYTES);
        assertEquals(llama.struct("Edit").byteSize(), DecoderKernels.EDIT_BYTES);
        assertEquals(llama.value("IN_PROMPT"), DecoderKernels.IN_PROMPT);
        assertEquals(llama.struct("Most").byteSize(), DecoderKernels.MOST_BYTES);
        assertEquals(llama.value("MAX_MOST"), DecoderKernels.MAX_MOST);
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

    @Test
    void normRows() {
        KernelConstants norm = constants("all_reduce_rms_norm/all_reduce_rms_norm.cu");
        assertEquals(
                List.of("new_residual", "norm", "partial", "residual", "weight", "rows", "hidden"),
                List.copyOf(norm.struct("Rows").offsets().keySet()));
    }

    @Test
    void fusedMatmul() {
        for (int columns : FusedMatmulModel.TILE_COLUMNS) {
            KernelConstants fused =
                    constants("fused_matmul/fused_matmul.cu", "-DTILE_N=" + columns, "-DGATED=0");
            assertEquals(columns, fused.value("OUT_N"));
        }
    }

    /** Initializing a launcher reads its constants, which must exist. */
    @Test
    void launchers() throws ClassNotFoundException {
        for (Class<?> launcher :
                List.of(
                        BlockKernels.class,
                        FusedMatmul.class,
                        GatheredExchange.class,
                        DecoderKernels.class,
                        MatmulChain.class,
                        RankOrderReducer.class,
                        RmsNormKernels.class,
                        VdevKernels.class,
                        WideMatmul.class)) {
            Class.forName(launcher.getName());
        }
    }
}
