// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.internal.host.Liveness;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Detection of dead peers on this host. */
@Timeout(60)
class PeersTest {

    private static byte[] with(byte[] own, String pid, String startTime) {
        String[] fields = new String(own, StandardCharsets.UTF_8).split(" ");
        return String.join(" ", fields[0], pid, startTime).getBytes(StandardCharsets.UTF_8);
    }

    @Test
    void processThatEndsIsNamed() throws IOException, InterruptedException {
        Process process = new ProcessBuilder("sleep", "60").start();
        long start = Liveness.startTime(process.pid());
        byte[] other = with(Peers.own(), "" + process.pid(), "" + start);
        Peers peers = Peers.of(List.of(Peers.own(), other));
        assertEquals(Optional.empty(), peers.dead());
        process.destroyForcibly().waitFor();
        Optional<String> dead;
        do {
            dead = peers.dead();
            Thread.sleep(5);
        } while (dead.isEmpty());
        assertEquals("the process of rank 1 (pid " + process.pid() + ") has ended", dead.get());
        assertEquals(
                "the process of rank 0 (pid " + process.pid() + ") has ended",
                peers.subset(List.of(1)).dead().orElseThrow());
        assertEquals(Optional.empty(), peers.subset(List.of(0)).dead());
    }

    @Test
    void otherHostsProcessesAreNot() {
        String text = "elsewhere 1 1";
        Peers peers = Peers.of(List.of(Peers.own(), text.getBytes(StandardCharsets.UTF_8)));
        assertEquals(Optional.empty(), peers.dead());
        assertEquals(Optional.empty(), Peers.none().dead());
    }
}
