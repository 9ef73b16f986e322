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
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
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
        Process process = script(visible).start();
        process.getOutputStream().close();
        String printed =
                new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        return printed + process.waitFor();
    }

    private ProcessBuilder script(String visible) {
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
        return script.redirectErrorStream(true);
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
        assertEquals(5, runs.size(), lines::toString);
        Set<String> folders = new HashSet<>();
        for (String beside : runs.subList(0, 3)) {
            assertTrue(beside.startsWith("[ 32] "), beside);
            assertTrue(beside.contains("(beside)"), beside);
            folders.add(beside.replaceAll(".* -Djava.io.tmpdir=(\\S+) .*", "$1"));
        }
        assertEquals(3, folders.size(), folders::toString);
        for (String other : runs.subList(3, 5)) {
            assertTrue(other.startsWith("[EAGER 32] "), other);
            assertTrue(other.contains("beside & !alone)") || other.contains("(alone)"), other);
            assertFalse(other.contains("-Djava.io.tmpdir="), other);
        }
        assertEquals("0", lines.get(lines.size() - 1));
    }

    /** The tests of a run that is cut off would keep its GPUs. */
    @Test
    @Timeout(value = 1, unit = TimeUnit.MINUTES)
    void endsItsTestsWhenItIsEnded() throws Exception {
        program(
                folder.resolve("jdk/bin/java"),
                "touch '%s'/started-$$; exec sleep 1000".formatted(folder));
        Process process = script("2").start();
        List<ProcessHandle> tests = List.of();
        while (tests.size() < 4) {
            Thread.sleep(20);
            try (Stream<Path> files = Files.list(folder)) {
                tests =
                        files.map(file -> file.getFileName().toString())
                                .filter(name -> name.startsWith("started-"))
                                .map(name -> Long.valueOf(name.substring("started-".length())))
                                .flatMap(pid -> ProcessHandle.of(pid).stream())
                                .toList();
            }
        }
        process.destroy();
        process.waitFor();
        try {
            for (ProcessHandle test : tests) {
                test.onExit().get(10, TimeUnit.SECONDS);
            }
        } finally {
            tests.forEach(ProcessHandle::destroyForcibly);
        }
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
