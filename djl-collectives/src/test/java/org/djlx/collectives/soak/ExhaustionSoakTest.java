// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * Heap, file descriptors or threads run out while groups are created and operations run: each ends,
 * with the right result or an exception, and the process does.
 */
@Tag("soak")
class ExhaustionSoakTest {

    private static final int ROUND_SECONDS = 20; // Then another process.
    private static final int PATIENCE_SECONDS = 150;
    private static final Pattern REPORT =
            Pattern.compile("rounds (\\d+) results (\\d+) failures (\\d+)\n");

    @ParameterizedTest
    @EnumSource
    void callsFailOrGiveResultsWhenAResourceRunsOut(Hoard.Kind kind) throws InterruptedException {
        Soak.run(
                "exhaustion of " + kind,
                soak -> {
                    while (soak.nextRound()) {
                        round(soak, kind, new Random(soak.roundSeed()).nextInt(1 << 20));
                    }
                    soak.requireAll(List.of("results", "failures"));
                });
    }

    private static void round(Soak soak, Hoard.Kind kind, int seed) throws Exception {
        Path file = Files.createTempFile("exhaustion-", ".log");
        Process process = start(soak, kind, seed, file);
        try {
            boolean ended = process.waitFor(ROUND_SECONDS + PATIENCE_SECONDS, TimeUnit.SECONDS);
            if (!ended) {
                // Java then prints what its threads do.
                new ProcessBuilder("kill", "-QUIT", "" + process.pid()).start().waitFor();
                process.waitFor(3, TimeUnit.SECONDS);
            }
            String output = Files.readString(file);
            assertTrue(ended, () -> "a process with the seed " + seed + " hangs:\n" + output);
            assertEquals(0, process.exitValue(), () -> "seed " + seed + ":\n" + output);
            assertTrue(output.contains("left:\n"), () -> "seed " + seed + ":\n" + output);
            Matcher report = REPORT.matcher(output);
            assertTrue(report.find(), output);
            soak.add("groups", Long.parseLong(report.group(1)));
            soak.add("results", Long.parseLong(report.group(2)));
            soak.add("failures", Long.parseLong(report.group(3)));
        } finally {
            process.destroyForcibly().waitFor();
            Files.delete(file);
        }
    }

    private static Process start(Soak soak, Hoard.Kind kind, int seed, Path output)
            throws IOException {
        String limit = kind == Hoard.Kind.DESCRIPTORS ? "ulimit -n 300 && " : "";
        ProcessBuilder builder =
                new ProcessBuilder(
                        "sh",
                        "-c",
                        limit + "exec \"$@\"",
                        "sh",
                        Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                        "-Xmx64m",
                        "-Xss24m",
                        "-XX:+UseSerialGC",
                        "-XX:TieredStopAtLevel=1", // Compilers need memory, too.
                        "-cp",
                        System.getProperty("java.class.path"),
                        ExhaustionMain.class.getName(),
                        kind.toString(),
                        "" + Math.min(ROUND_SECONDS, soak.secondsLeft()),
                        "" + seed);
        builder.environment().put("MALLOC_ARENA_MAX", "2");
        builder.environment().put("OMP_NUM_THREADS", "1");
        return builder.redirectErrorStream(true).redirectOutput(output.toFile()).start();
    }
}
