// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.RankProcesses;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.model.AdapterFiles;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * A small random Llama on two ranks that are processes, which a {@link TextEngineRankMain} each
 * runs.
 */
@Timeout(120)
@Tag("slow")
class TextEngineProcessesTest {

    @TempDir private static Path directory;

    @BeforeAll
    static void write() throws IOException {
        ByteTokens.writeModel(directory, 3);
    }

    private static RankProcesses ranks(String scenario) {
        return new RankProcesses(2, TextEngineRankMain.class, scenario, directory.toString());
    }

    private static void awaitRunning(RankProcesses ranks) throws InterruptedException {
        while (!ranks.output(0).contains("running")) {
            assertTrue(ranks.process(0).isAlive(), () -> ranks.output(0));
            Thread.sleep(20);
        }
    }

    private static void assertSays(RankProcesses ranks, int rank, String text) {
        String output = ranks.output(rank);
        assertTrue(
                output.contains(text), () -> "rank " + rank + " says no " + text + ": " + output);
    }

    @Test
    void givesTheTokensThatThreadsGive() throws Exception {
        List<String> expected = new ArrayList<>();
        Path adapter =
                new AdapterFiles(4, 8, false, AdapterFiles.ALL, 5)
                        .write(directory, directory.resolve("adapter"));
        String adapted;
        try (TextGenerator generator =
                TextEngine.builder()
                        .setDirectory(directory)
                        .optRanks(2)
                        .optAdapter("a", adapter)
                        .build()) {
            adapted = text(generator.submit(TextEngineTest.adapted()));
            for (GenerationRequest request : TextEngineTest.manyRequests()) {
                expected.add(text(generator.submit(request)));
            }
        }
        try (RankProcesses ranks = ranks("serve")) {
            ranks.awaitSuccess();
            List<String> tokens =
                    ranks.output(0)
                            .lines()
                            .filter(line -> line.startsWith("tokens "))
                            .map(line -> line.substring("tokens ".length()))
                            .toList();
            assertEquals(expected, tokens);
            assertSays(
                    ranks,
                    0,
                    "wrong: generation request: the prompt has 2 tokens and maxTokens is 1000");
            assertSays(ranks, 0, "cancelled: CANCELLED");
            assertSays(ranks, 0, "late " + expected.get(0));
            assertSays(ranks, 0, "adapted " + adapted);
            assertSays(ranks, 1, "refused: this process follows rank 0");
            assertSays(ranks, 1, "ended");
        }
    }

    private static String text(Generation generation) throws Exception {
        return Arrays.toString(
                generation.await(Duration.ofSeconds(60)).stream()
                        .mapToInt(GeneratedPiece::token)
                        .toArray());
    }

    @Test
    void isLostWhenAnotherProcessIsKilled() throws Exception {
        try (RankProcesses ranks = ranks("until failure")) {
            awaitRunning(ranks);
            ranks.process(1).destroyForcibly();
            assertEquals(0, ranks.await().get(0), () -> ranks.output(0));
            String death = "the process of rank 1 (pid " + ranks.process(1).pid() + ") has ended";
            List<String> lines = ranks.output(0).lines().toList();
            for (String start : List.of("failed: ", "unavailable: ", "refused: ")) {
                assertTrue(
                        lines.stream().anyMatch(l -> l.startsWith(start) && l.contains(death)),
                        lines::toString);
            }
            assertSays(ranks, 0, "has failed; start all ranks again: ");
            assertSays(ranks, 0, "ended");
        }
    }

    @Test
    void endsWhenRankZeroIsKilled() throws Exception {
        try (RankProcesses ranks = ranks("until failure")) {
            awaitRunning(ranks);
            ranks.process(0).destroyForcibly();
            assertNotEquals(0, ranks.await().get(1));
            assertSays(ranks, 1, "the process of rank 0 (pid " + ranks.process(0).pid());
        }
    }

    @ParameterizedTest
    @CsvSource({"differ, with maxLength 101", "differ in running, maxRunning 6"})
    void refusesRanksWithDifferentOptions(String scenario, String named) throws Exception {
        try (RankProcesses ranks = ranks(scenario)) {
            List<Integer> codes = ranks.await();
            for (int rank = 0; rank < 2; rank++) {
                assertNotEquals(0, codes.get(rank));
                assertSays(ranks, rank, "ranks differ in their model or options");
                assertSays(ranks, rank, named);
            }
        }
    }

    /** Rank 1's files, on a disk of its own for example, are not those of rank 0. */
    @Test
    void failsOnAllRanksWhenFilesOfOneAreWrong() throws Exception {
        Path wrong = LlamaFiles.write(directory.resolve("cut-off"), ModelConfig.read(directory), 3);
        Path shard = wrong.resolve("model-00002-of-00005.safetensors");
        Files.write(shard, Arrays.copyOf(Files.readAllBytes(shard), 20_000));
        try (RankProcesses ranks = ranks("cut off")) {
            List<Integer> codes = ranks.await();
            for (int rank = 0; rank < 2; rank++) {
                assertNotEquals(0, codes.get(rank), () -> ranks.output(0));
            }
            assertSays(ranks, 1, shard + ": it is cut off");
            assertSays(ranks, 0, "rank 1");
        }
    }

    @Test
    void isLoadedByDjl() throws Exception {
        try (RankProcesses ranks = ranks("load")) {
            ranks.awaitSuccess();
            assertSays(ranks, 0, "200 {\"generated_text\":");
            assertSays(ranks, 1, "503 ");
            assertSays(ranks, 1, "this process follows rank 0");
            assertSays(ranks, 1, "ended");
        }
    }
}
