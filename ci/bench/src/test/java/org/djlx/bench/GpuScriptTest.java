// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.List;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * The GPUs for which {@code ci/gpu.sh} runs tests, with programs in place of nvidia-smi and Java.
 */
class GpuScriptTest {

    private static final String SMI =
            """
            ids=0,1,2,3
            for argument; do case $argument in --id=*) ids=${argument#--id=} ;; esac; done
            [[ $ids =~ ^[0-3](,[0-3])*$ ]] || { echo "No devices were found"; exit 6; }
            for id in ${ids//,/ }; do echo "NVIDIA H100 80GB HBM3"; done
            """;
    private static final String JAVA =
            "echo \"[$CUDA_MODULE_LOADING $CUDA_DEVICE_MAX_CONNECTIONS] $*\"";

    @TempDir private Path folder;

    @BeforeEach
    void writePrograms() throws IOException {
        program(folder.resolve("nvidia-smi"), SMI);
        program(folder.resolve("java"), JAVA);
        Path bin = Files.createDirectories(folder.resolve("jdk/bin"));
        program(bin.resolve("java"), JAVA);
        program(bin.resolve("javac"), "exit 1");
        Files.writeString(folder.resolve("jdk/release"), "JAVA_VERSION=\"17.0.1\"\n");
    }

    private static void program(Path file, String text) throws IOException {
        Files.writeString(file, "#!/bin/bash\n" + text + "\n");
        Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rwxr-xr-x"));
    }

    /** Returns what the script prints, and its exit status. */
    private String run(String visible) throws IOException, InterruptedException {
        ProcessBuilder script =
                new ProcessBuilder("bash", script().toString(), "--class-path", "none");
        script.environment().put("PATH", folder + ":" + System.getenv("PATH"));
        script.environment().put("JAVA_HOME", folder.resolve("jdk").toString());
        script.environment().put("DJLX_FLIGHT_RECORDER_DIRECTORY", folder.toString());
        script.environment().remove("CUDA_MODULE_LOADING");
        script.environment().remove("CUDA_DEVICE_MAX_CONNECTIONS");
        script.environment().remove("CUDA_VISIBLE_DEVICES");
        if (visible != null) {
            script.environment().put("CUDA_VISIBLE_DEVICES", visible);
        }
        Process process = script.redirectErrorStream(true).start();
        process.getOutputStream().close();
        String printed =
                new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        return printed + process.waitFor();
    }

    private static Path script() {
        Path folder = Path.of("").toAbsolutePath();
        while (!Files.exists(folder.resolve("ci/gpu.sh"))) {
            folder = folder.getParent();
        }
        return folder.resolve("ci/gpu.sh");
    }

    @Test
    void takesAllGpus() throws Exception {
        String printed = run(null);
        assertTrue(printed.contains("/gpu-tests-4xh100.json"), printed);
        assertTrue(printed.startsWith("[ ] "), printed); // Neither is set.
    }

    @Test
    void takesVisibleGpus() throws Exception {
        assertTrue(run("1,3").contains("/gpu-tests-2xh100.json"));
        assertTrue(run("2").contains("/gpu-tests-1xh100.json"));
    }

    /** Only ranks that share a GPU load kernels eagerly; GPUs are leased in the usual folder. */
    @Test
    void runsTestsOfThreeKinds() throws Exception {
        List<String> lines = run("2").lines().toList();
        List<String> runs = lines.stream().filter(line -> line.startsWith("[")).sorted().toList();
        assertEquals(3, runs.size(), lines::toString);
        assertTrue(runs.get(0).startsWith("[ 32] "), runs.get(0));
        assertTrue(runs.get(0).contains("(beside)"), runs.get(0));
        assertTrue(runs.get(0).contains("-Djava.io.tmpdir="), runs.get(0));
        for (String other : runs.subList(1, 3)) {
            assertTrue(other.startsWith("[EAGER 32] "), other);
            assertTrue(other.contains("beside & !alone)") || other.contains("(alone)"), other);
            assertFalse(other.contains("-Djava.io.tmpdir="), other);
        }
        assertEquals("0", lines.get(lines.size() - 1));
    }

    @Test
    void needsAGpu() throws Exception {
        for (String none : new String[] {"", "7"}) {
            assertEquals(
                    "error: no test ran: nvidia-smi shows no GPU of CUDA_VISIBLE_DEVICES='"
                            + none
                            + "'\n1",
                    run(none));
        }
    }
}
