// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.engine.Engine;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.zip.ZipEntry;
import java.util.zip.ZipInputStream;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.torch.InstalledTorch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** DJL on PyTorch 2.10's libtorch, as pip would have installed it. */
@Tag("slow")
@Timeout(180)
class InstalledTorchTest {

    private static final Path JARS = Path.of("target", "peer");
    private static final Pattern EXPORT = Pattern.compile("export (\\w+)='(.*)'");

    @TempDir private Path directory;

    @Test
    void djlRunsOnNewerTorch() throws Exception {
        Path libraries = unpack("pytorch", "libtorch.so|libtorch_cpu.so|libc10.so", "of torch/lib");
        Path others =
                unpack("openblas", "libopenblas.so.0|libgfortran.so.5|libquadmath.so.0", "others");
        unpack("pytorch", "libgomp.so.1", "others");
        Path python =
                script(
                        "echo a warning; echo InstalledTorch:; echo 2.10.0; echo; echo '"
                                + libraries
                                + "'; echo '"
                                + others
                                + "'");

        Map<String, String> variables = new HashMap<>();
        String exports = run(Map.of(), InstalledTorch.class.getName(), python.toString());
        for (String line : exports.lines().toList()) {
            Matcher export = EXPORT.matcher(line);
            assertTrue(export.matches(), exports);
            variables.put(export.group(1), export.group(2));
        }
        assertEquals("cpu", variables.get("RUST_FLAVOR"));
        assertEquals(
                List.of(
                        "version 2.10.0",
                        "installed true",
                        "slice [4.0, 5.0]",
                        "transposed [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]",
                        "product [46.0, 28.0, 118.0, 73.0]",
                        "types [9.0, 8.0, 7.0, 6.0, 5.0, 4.0]"
                                + "[false, false, false, true, true, true][7, -1]",
                        "bfloat16 [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]",
                        "gradient [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]",
                        "sums [3.0, 3.0]"),
                run(variables, InstalledTorchMain.class.getName()).lines().toList());
    }

    @Test
    void withoutTorchTheErrorNamesThePython() throws Exception {
        Path python = script("exit 1");
        ProcessBuilder builder = java(Map.of(), InstalledTorch.class.getName(), python.toString());
        Process process = builder.start();
        String error = new String(process.getErrorStream().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals(1, process.waitFor());
        assertTrue(error.contains("error: " + python + " has no PyTorch"), error);
    }

    /** DJL cannot download: the proxy's port takes no connections. */
    @Test
    void withoutLibtorchErrorsNameTheJars() throws Exception {
        List<String> lines =
                run(
                                Map.of(),
                                "-Dhttps.proxyHost=127.0.0.1",
                                "-Dhttps.proxyPort=1",
                                MissingTorchMain.class.getName())
                        .lines()
                        .toList();
        assertEquals(3, lines.size(), lines.toString());
        for (String line : lines) {
            assertTrue(line.contains("EngineException: DJL's PyTorch engine cannot load"), line);
            assertTrue(line.contains("ai.djl.pytorch:pytorch-jni:2.7.1-0.36.0"), line);
            assertTrue(line.contains("ai.djl.pytorch:pytorch-native-cpu:linux-x86_64:2.7.1"), line);
        }
    }

    /** Prints the errors of calls that need libtorch. */
    static final class MissingTorchMain {

        public static void main(String[] args) {
            print(() -> Engine.getEngine(P2pEngine.NAME));
            print(() -> Engine.getEngine(P2pEngine.NAME)); // the second one, too
            print(() -> ProcessGroups.local(1));
        }

        private static void print(Runnable call) {
            try {
                call.run();
            } catch (Throwable t) {
                System.out.println(t.toString().replace('\n', ' '));
            }
        }
    }

    /** Unpacks files of a peer's native jar into a folder. */
    private Path unpack(String artifact, String names, String folder) throws IOException {
        Path to = Files.createDirectories(directory.resolve(folder));
        List<Path> jars = new ArrayList<>();
        if (Files.isDirectory(JARS)) {
            try (var files = Files.newDirectoryStream(JARS, artifact + "-*-linux-x86_64.jar")) {
                files.forEach(jars::add);
            }
        }
        assumeTrue(jars.size() == 1, "Maven puts the peer's jars into " + JARS.toAbsolutePath());
        try (ZipInputStream in = new ZipInputStream(Files.newInputStream(jars.get(0)))) {
            for (ZipEntry entry = in.getNextEntry(); entry != null; entry = in.getNextEntry()) {
                String name = Path.of(entry.getName()).getFileName().toString();
                if (name.matches(names)) {
                    Files.copy((InputStream) in, to.resolve(name));
                }
            }
        }
        return to;
    }

    private Path script(String body) throws IOException {
        Path file = directory.resolve("python");
        Files.writeString(file, "#!/bin/sh\n" + body + "\n");
        assertTrue(file.toFile().setExecutable(true));
        return file;
    }

    /** Prepares a JVM without the libtorch of the class path, and with a cache of its own. */
    private ProcessBuilder java(Map<String, String> variables, String... arguments) {
        String classPath =
                Arrays.stream(System.getProperty("java.class.path").split(File.pathSeparator))
                        .filter(entry -> !entry.contains("pytorch-native"))
                        .collect(Collectors.joining(File.pathSeparator));
        List<String> command =
                new ArrayList<>(
                        List.of(
                                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                                "-XX:TieredStopAtLevel=1",
                                "-cp",
                                classPath));
        command.addAll(List.of(arguments));
        ProcessBuilder builder = new ProcessBuilder(command);
        builder.environment().putAll(variables);
        builder.environment().put("DJL_CACHE_DIR", directory.resolve("cache").toString());
        builder.environment().remove("ENGINE_CACHE_DIR");
        return builder;
    }

    private String run(Map<String, String> variables, String... arguments) throws Exception {
        ProcessBuilder builder = java(variables, arguments);
        Process process = builder.redirectError(ProcessBuilder.Redirect.INHERIT).start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertTrue(process.waitFor(60, TimeUnit.SECONDS));
        assertEquals(0, process.exitValue(), output);
        return output;
    }
}
