// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Peers that answer, lack PyTorch, do not answer or end. */
@Timeout(60)
class TorchPeerTest {

    private static final Duration PATIENCE = Duration.ofSeconds(20);
    private static final GpuBenchRow ROW =
            new GpuBenchRow(
                    "allGatherMatmul",
                    List.of(16, 32, 64),
                    null,
                    2,
                    2,
                    2,
                    0,
                    0.01,
                    Map.of("ours", new CallTimes(1.0, 2.0, null, 3.0, 4.0, 7.0, 8.0, 5.0, 6.0)),
                    Map.of("ours", 1.5),
                    Map.of());

    @TempDir private Path dir;

    /** Starts a peer that is a shell script. */
    private TorchPeer start(Duration patience, String... lines) throws IOException {
        Path script = Files.write(dir.resolve("peer.sh"), List.of(lines));
        return TorchPeer.start("sh", script, List.of("--ranks", "2"), patience);
    }

    @Test
    void addsFiguresOfPyTorchToARow() throws IOException {
        try (TorchPeer peer =
                start(
                        PATIENCE,
                        "test \"$1 $2\" = '--ranks 2' || exit 1",
                        "echo 'a library says something'",
                        "echo '{\"torch\": \"2.11.0\"}'",
                        "read -r request",
                        "echo \"$request\" > '" + dir.resolve("request") + "'",
                        "echo '{\"columns\": {\"torch\": {\"gpuMicros\": 9, \"hostMicros\": 8}},"
                                + " \"replay\": {\"torch\": 7}, \"notes\": {\"x\": \"y\"}}'",
                        "read -r end")) {
            assertEquals("2.11.0", peer.version());
            GpuBenchRow row = peer.measure(ROW, 3, 4);
            assertEquals(
                    new CallTimes(9.0, 8.0, null, null, null, null, null, null, null),
                    row.columns().get("torch"));
            assertEquals(Map.of("ours", 1.5, "torch", 7.0), row.replay());
            assertEquals(Map.of("x", "y"), row.notes());
            assertEquals(
                    "{\"operation\":\"allGatherMatmul\",\"mnk\":[16,32,64],\"bytes\":null,"
                            + "\"turns\":3,\"rounds\":4}",
                    Files.readString(dir.resolve("request")).strip());
        }
    }

    @Test
    void saysWhyPyTorchCannotStart() throws IOException {
        try (TorchPeer peer = start(PATIENCE, "echo '{\"error\": \"No module named torch\"}'")) {
            assertEquals("", peer.version());
            assertEquals("No module named torch", peer.cause());
            assertEquals(Map.of("torch", "No module named torch"), peer.measure(ROW, 1, 1).notes());
        }
    }

    @Test
    void namesAMissingPython() {
        try (TorchPeer peer =
                TorchPeer.start("no-such-python", Path.of("x"), List.of(), PATIENCE)) {
            assertTrue(peer.cause().contains("no-such-python"), peer::cause);
        }
    }

    @Test
    void keepsRowsAsTheyAreWhenThePeerHasEnded() throws IOException {
        try (TorchPeer peer =
                start(PATIENCE, "echo '{\"torch\": \"2.11.0\"}'", "read -r request")) {
            assertEquals(Map.of("torch", "it has ended"), peer.measure(ROW, 1, 1).notes());
            GpuBenchRow next = peer.measure(ROW, 1, 1);
            assertEquals(Map.of("torch", "it has ended"), next.notes());
            assertEquals(ROW.columns(), next.columns());
        }
    }

    /** The child processes of the peer end too. */
    @Test
    void endsAPeerThatDoesNotAnswer() throws Exception {
        Path child = dir.resolve("child");
        try (TorchPeer peer =
                start(
                        Duration.ofSeconds(2),
                        "sleep 1000 & echo $! > '" + child + "'",
                        "echo '{\"torch\": \"2.11.0\"}'",
                        "wait")) {
            assertEquals(Map.of("torch", "no answer within 2 s"), peer.measure(ROW, 1, 1).notes());
        }
        long pid = Long.parseLong(Files.readString(child).strip());
        while (ProcessHandle.of(pid).filter(ProcessHandle::isAlive).isPresent()) {
            Thread.sleep(10);
        }
    }
}
