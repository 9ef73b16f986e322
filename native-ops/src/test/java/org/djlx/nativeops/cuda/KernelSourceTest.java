// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;
import java.util.stream.Stream;
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

    /** All modules with the same kernels would share them: {@link CudaModule}. */
    @Test
    void kernelsKeepNothingInGlobalVariables() throws Exception {
        Pattern variable = Pattern.compile("(?m)^(?:static )?__(?:device|managed)__ [^({]*[;=]");
        assertTrue(variable.matcher("\n__device__ int counts[72];\n").find());
        Path sources = Path.of(NativeLibrary.class.getResource("element.cuh").toURI()).getParent();
        List<Path> files;
        try (Stream<Path> all = Files.walk(sources)) {
            files = all.filter(file -> file.toString().matches(".*\\.cuh?")).toList();
        }
        assertTrue(files.size() > 10, sources.toString());
        for (Path file : files) {
            assertFalse(variable.matcher(Files.readString(file)).find(), file.toString());
        }
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
