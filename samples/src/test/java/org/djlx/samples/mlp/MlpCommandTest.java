// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.mlp;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.launch.Launch;
import org.djlx.fusedops.FusedOps;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.samples.CommandTest;
import org.djlx.samples.Main;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(200)
class MlpCommandTest extends CommandTest {

    @TempDir private Path folder;
    private Path text;

    @BeforeEach
    void writeText() throws IOException {
        text = folder.resolve("text.txt");
        Files.writeString(text, "The quick brown fox jumps over the lazy dog. ".repeat(10));
    }

    @ParameterizedTest
    @CsvSource({"1, float32", "2, bfloat16", "3, float32", "4, bfloat16"})
    void passesWithRanksAsThreads(int ranks, String dtype) {
        int code = run("mlp", "--ranks", ranks, "--dtype", dtype, "--text", text);
        assertEquals(0, code, () -> out + "\n" + err);
        assertTrue(out.toString().contains("PASSED"), out::toString);
        // Small operands are sent at once; a single rank sends nothing.
        String path = ranks == 1 ? "pipelined (parts" : "gathered (all";
        long rows = out.toString().lines().filter(line -> line.contains(path)).count();
        assertEquals(2, rows, out::toString);
    }

    @Test
    void showsTheFallback() {
        try (FusedOps.Scope forced = FusedOps.forceFallback()) {
            assertEquals(0, run("mlp", "--ranks", 2, "--text", text), forced::toString);
        }
        long rows =
                out.toString().lines().filter(line -> line.contains("fallback (FORCED)")).count();
        assertEquals(2, rows, out::toString);
    }

    @Test
    void failsIfTheErrorIsTooLarge() {
        assertEquals(1, run("mlp", "--ranks", 2, "--text", text, "--tolerance", "1e-12"));
        assertTrue(out.toString().contains("FAILED: the largest error"), out::toString);
    }

    @Test
    @Tag("slow")
    void passesWithRanksAsProcesses() throws Exception {
        // The ranks' output goes to this JVM's stdout, which belongs to the test runner.
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (PrintStream sink = new PrintStream(bytes, true)) {
            String[] mlp = {Main.class.getName(), "mlp", "--ranks", "2", "--text", "" + text};
            int code = launch(sink, "2", mlp);
            assertEquals(0, code, bytes::toString);
        }
        String output = bytes.toString();
        assertTrue(output.contains("[0] PASSED"), output);
        assertTrue(!output.contains("[1] PASSED"), output);
    }

    @Test
    @Tag("slow")
    void refusesProcessesInARank() throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (PrintStream sink = new PrintStream(bytes, true)) {
            String[] mlp = {Main.class.getName(), "mlp", "--processes", "--text", "" + text};
            assertEquals(2, launch(sink, "1", mlp), bytes::toString);
        }
        assertTrue(bytes.toString().contains("error: --processes starts"), bytes::toString);
    }

    private static int launch(PrintStream sink, String ranks, String... program) {
        List<String> args = new ArrayList<>(List.of("--nproc", ranks));
        args.addAll(List.of(program));
        return Launch.run(sink, sink, args);
    }

    @Test
    void saysWhyThereIsNoGpu() {
        Throwable cause = NativeLibrary.CUDA_PRESETS.unavailabilityCause();
        assumeTrue(cause != null, "there are GPUs");
        assertEquals(1, run("mlp", "--device", "gpu", "--ranks", 2, "--text", text));
        assertTrue(
                err.toString().startsWith("error: no GPU can be used: " + cause.getMessage()),
                err::toString);
        assertEquals("", out.toString());
    }

    @ParameterizedTest
    @ValueSource(strings = {"float32", "bfloat16"})
    @Tag("gpu")
    void passesOnGpus(String dtype) {
        Throwable cause = NativeLibrary.CUDA_PRESETS.unavailabilityCause();
        assumeTrue(cause == null, () -> cause.getMessage());
        int ranks = Math.min(8, CudaDevice.count());
        int code =
                run("mlp", "--device", "gpu", "--ranks", ranks, "--dtype", dtype, "--text", text);
        assertEquals(0, code, () -> out + "\n" + err);
        assertTrue(out.toString().contains("PASSED"), out::toString);
        if (ranks > 1) {
            String table = out.toString();
            // With 4 or more GPUs, NCCL may be faster for these small shapes.
            assertTrue(
                    table.matches(
                            "(?s).*(gathered|pipelined|fused|fallback \\(NCCL_IS_FASTER\\)).*"),
                    table);
        }
    }

    @Test
    @Tag("gpu")
    void needsAGpuForEachRank() {
        Throwable cause = NativeLibrary.CUDA_PRESETS.unavailabilityCause();
        assumeTrue(cause == null, () -> cause.getMessage());
        int ranks = CudaDevice.count() + 1;
        assertEquals(1, run("mlp", "--device", "gpu", "--ranks", ranks, "--text", text));
        assertTrue(err.toString().contains("for " + ranks + " ranks"), err::toString);
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "--ranks 0",
                "--ranks -1",
                "--ranks 1025",
                "--tolerance -1",
                "--tolerance NaN",
                "--ranks many",
                "--dtype float8",
                "--device tpu",
                "--text /does/not/exist",
                "--text /proc",
                "--text /dev/null"
            })
    void badArgumentsGiveOneErrorAndAHint(String args) {
        assertEquals(2, run((Object[]) ("mlp " + args).split(" ")));
        assertTrue(err.toString().startsWith("error: "), err::toString);
        assertEquals("", out.toString());
    }

    @Test
    void anEmptyTextIsRejected() throws IOException {
        Files.writeString(text, "");
        assertEquals(2, run("mlp", "--text", text));
        assertTrue(err.toString().contains("is empty"), err::toString);
    }

    @Test
    void aTextWithFewerBytesThanRanksIsRejected() throws IOException {
        Files.writeString(text, "ab");
        assertEquals(1, run("mlp", "--ranks", 3, "--text", text));
        assertTrue(err.toString().contains("fewer than there are ranks"), err::toString);
    }
}
