// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.Map;
import java.util.Set;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.Test;

class KernelSourceTest {

    @Test
    void readsIncludedFiles() {
        KernelSource source = KernelSource.ofResource(NativeLibrary.class, "scale.cu");
        assertEquals("scale.cu", source.name());
        assertTrue(source.text().contains("__global__"));
        assertEquals(Set.of("scale.cuh", "scale_type.cuh"), source.headers().keySet());
        assertTrue(source.headers().get("scale_type.cuh").contains("using Element"));
    }

    @Test
    void foldersShareHeaders() {
        Set<String> element = Set.of("element.cuh");
        Set<String> both = Set.of("element.cuh", "signal.cuh");
        Set<String> oneShot = Set.of("element.cuh", "signal.cuh", "one_shot.cuh");
        Set<String> norm =
                Set.of(
                        "element.cuh",
                        "signal.cuh",
                        "one_shot.cuh",
                        "block_sum.cuh",
                        "e4m3.cuh",
                        "e4m3_row.cuh",
                        "rms_norm.cuh");
        Map.of(
                        "reduce", element,
                        "signals", both,
                        "all_to_all_vdev", both,
                        "all_reduce", oneShot,
                        "all_reduce_rms_norm", norm)
                .forEach(
                        (operator, headers) -> {
                            KernelSource source =
                                    KernelSource.ofResource(
                                            NativeLibrary.class, operator + "/" + operator + ".cu");
                            assertEquals(operator + ".cu", source.name());
                            assertEquals(headers, source.headers().keySet());
                        });
    }

    @Test
    void missingFilesAreNamed() {
        var e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> KernelSource.ofResource(NativeLibrary.class, "absent.cu"));
        assertTrue(e.getMessage().contains("absent.cu"), e.getMessage());
        assertThrows(
                IllegalArgumentException.class,
                () -> KernelSource.ofResource(NativeLibrary.class, "../scale.cu"));
        assertThrows(
                IllegalArgumentException.class,
                () -> KernelSource.ofResource(NativeLibrary.class, "/org/scale.cu"));
    }
}
