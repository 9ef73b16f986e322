// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.concurrent.TimeUnit;
import org.djlx.collectives.RankProcesses;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Behaviour when a peer dies. */
@Tag("gpu")
@Tag("beside")
@Timeout(120)
class NcclFailureTest {

    @BeforeEach
    void requireGpus() {
        NcclCases.require(2);
    }

    /** A rank's process is killed while the GPU of the other rank waits for it. */
    @ParameterizedTest
    @ValueSource(strings = {"collectives", "messages", "eager messages"})
    void killedPeerIsNoticed(String operations) throws InterruptedException {
        try (RankProcesses ranks = new RankProcesses(2, NcclVictimMain.class, operations)) {
            for (int rank = 0; rank < 2; rank++) {
                while (!ranks.output(rank).contains("ready")) {
                    assertTrue(ranks.process(rank).isAlive(), ranks.output(rank));
                    Thread.sleep(50);
                }
            }
            Thread.sleep(200);
            long start = System.nanoTime();
            ranks.process(1).destroyForcibly();
            boolean ended = ranks.process(0).waitFor(30, TimeUnit.SECONDS);
            String output = ranks.output(0);
            assertTrue(ended, output);
            System.out.printf(
                    "survivor ended after %d ms:%n%s",
                    (System.nanoTime() - start) / 1000000, output);
            assertEquals(0, ranks.process(0).exitValue(), output);
            assertTrue(output.contains("failed: the process of rank 1"), output);
            assertTrue(output.contains("goes on: 1.0"), output);
        }
    }
}
