// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import org.djlx.fusedops.cost.FusedMatmulModel;
import org.djlx.fusedops.internal.fused.FusedMatmul;
import org.djlx.fusedops.kernel.RankOrderReducer;
import org.djlx.fusedops.kernel.RmsNormKernels;
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
    void normRows() {
        KernelConstants norm = constants("all_reduce_rms_norm/all_reduce_rms_norm.cu");
        assertEquals(
                List.of(
                        "new_residual",
                        "norm",
                        "partial",
                        "residual",
                        "weight",
                        "rows",
                        "hidden",
                        "scales"),
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
                        FusedMatmul.class,
                        GatheredExchange.class,
                        RankOrderReducer.class,
                        RmsNormKernels.class)) {
            Class.forName(launcher.getName());
        }
    }
}
