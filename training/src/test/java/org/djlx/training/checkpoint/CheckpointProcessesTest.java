// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.launch.Launch;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Processes of which one dies, and others that go on from the last checkpoint. */
@Timeout(300)
@Tag("slow")
class CheckpointProcessesTest {

    private static List<String> lines(String output, String beginning) {
        return output.lines().filter(line -> line.startsWith(beginning)).toList();
    }

    @ParameterizedTest
    @ValueSource(strings = {"momentum", "adam"})
    void restartedProcessesEqualUninterruptedOnes(String optimizer, @TempDir Path directory)
            throws Exception {
        String whole = directory.resolve("whole").toString();
        String parts = directory.resolve("parts").toString();
        try (RankProcesses uninterrupted =
                        new RankProcesses(2, CheckpointMain.class, optimizer, whole, "0");
                RankProcesses ended =
                        new RankProcesses(2, CheckpointMain.class, optimizer, parts, "8")) {
            uninterrupted.awaitSuccess();
            assertEquals(7, ended.await().get(1));
            assertTrue(ended.await().get(0) != 0, () -> ended.output(0));
            assertTrue(ended.output(0).contains("rank 1"), () -> ended.output(0));
            try (RankProcesses rest =
                    new RankProcesses(2, CheckpointMain.class, optimizer, parts, "0")) {
                rest.awaitSuccess();
                for (int rank = 0; rank < 2; rank++) {
                    String expected = uninterrupted.output(rank);
                    String actual = rest.output(rank);
                    String restored = "restored TrainingProgress[step=6, epoch=1, batch=2]";
                    assertEquals(List.of(restored), lines(actual, "restored"));
                    assertEquals(lines(expected, "loss").subList(6, 12), lines(actual, "loss"));
                    assertEquals(lines(expected, "parameter"), lines(actual, "parameter"));
                }
            }
        }
    }

    /** If what SIGTERM asks for cannot be saved, the job fails: it does not exit as if it were. */
    @Test
    void failedSaveAtSigtermFailsTheJob(@TempDir Path directory) throws Exception {
        Path folder = Files.createFile(directory.resolve("file")).resolve("checkpoints");
        try (RankProcesses ended =
                new RankProcesses(
                        2,
                        rank -> Map.of("TORCHELASTIC_RESTART_COUNT", "0"),
                        CheckpointMain.class,
                        "adam",
                        folder.toString(),
                        "6",
                        "NO_SHARD")) {
            assertEquals(List.of(1, 1), ended.await());
            for (int rank = 0; rank < 2; rank++) {
                String output = ended.output(rank);
                assertTrue(output.contains("was not saved"), output);
            }
        }
    }

    /** SIGTERM to one rank: all save at the same step, exit with 143, and are started again. */
    @ParameterizedTest
    @EnumSource(ShardingStrategy.class)
    void sigtermSavesAndTheLauncherRestarts(ShardingStrategy strategy, @TempDir Path directory)
            throws Exception {
        String whole = directory.resolve("whole").toString();
        Path parts = directory.resolve("parts");
        String name = strategy.name();
        try (RankProcesses uninterrupted =
                new RankProcesses(2, CheckpointMain.class, "adam", whole, "0", name)) {
            uninterrupted.awaitSuccess();
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            List<String> args = new ArrayList<>(List.of("--nproc", "2", "--max-restarts", "1"));
            args.addAll(List.of(CheckpointMain.class.getName(), "adam", parts.toString(), "6"));
            args.add(name);
            int code = Launch.run(new PrintStream(out), new PrintStream(err), args);
            assertEquals(0, code, err::toString);
            assertTrue(err.toString().contains("exited with code 143"), err::toString);
            assertTrue(err.toString().contains("restart 1 of 1"), err::toString);
            for (int rank = 0; rank < 2; rank++) {
                String prefix = "[" + rank + "] ";
                String expected = uninterrupted.output(rank);
                List<String> actual =
                        out.toString()
                                .lines()
                                .filter(line -> line.startsWith(prefix))
                                .map(line -> line.substring(prefix.length()))
                                .toList();
                String restored = "restored TrainingProgress[step=5, epoch=1, batch=1]";
                assertTrue(actual.contains(restored), out::toString);
                String text = String.join("\n", actual);
                assertEquals(lines(expected, "loss").subList(5, 12), lines(text, "loss"));
                assertEquals(lines(expected, "parameter"), lines(text, "parameter"));
            }
        }
        try (Stream<Path> files = Files.list(parts)) {
            long count = files.count();
            assertEquals(strategy == ShardingStrategy.NO_SHARD ? 1 : 2, count);
        }
    }
}
