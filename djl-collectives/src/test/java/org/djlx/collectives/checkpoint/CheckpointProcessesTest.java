// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.checkpoint;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.util.List;
import org.djlx.collectives.RankProcesses;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
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
    void theyGoOnAsIfNoneHadDied(String optimizer, @TempDir Path directory) throws Exception {
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
}
