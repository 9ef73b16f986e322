// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.soak;

import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/**
 * Ranks on {@code shm} that are processes are stopped and go on, and are killed, at random moments.
 * The others wait for the ones, learn of the others in time, and go on without them.
 */
@Tag("soak")
class KillSoakTest {

    private static final int MOST_IDLE_MILLIS = 700;

    @Test
    void killedAndStoppedRanks() throws InterruptedException {
        Soak.run(
                "kill and stop",
                soak -> {
                    while (soak.nextRound()) {
                        Random random = new Random(soak.roundSeed());
                        int worldSize = 3 + random.nextInt(2);
                        try (ProgramProcesses ranks =
                                new ProgramProcesses(worldSize, random.nextLong())) {
                            while (ranks.alive().size() > 1 + random.nextInt(2)) {
                                round(soak, ranks, random);
                            }
                            Thread.sleep(random.nextInt(MOST_IDLE_MILLIS));
                            soak.add("calls of those that lived", ranks.stop());
                        }
                    }
                    soak.requireAll(List.of("stops", "kills", "calls of those that lived"));
                });
    }

    private static int any(ProgramProcesses ranks, Random random) {
        return ranks.alive().get(random.nextInt(ranks.alive().size()));
    }

    private static void round(Soak soak, ProgramProcesses ranks, Random random)
            throws InterruptedException {
        for (int stops = 1 + random.nextInt(3); stops > 0; stops--) {
            Thread.sleep(random.nextInt(MOST_IDLE_MILLIS));
            int stopped = any(ranks, random);
            ranks.signal("STOP", stopped);
            Thread.sleep(random.nextInt(MOST_IDLE_MILLIS));
            ranks.signal("CONT", stopped);
            soak.add("stops", 1);
        }
        Thread.sleep(random.nextInt(MOST_IDLE_MILLIS));
        int victim = any(ranks, random);
        int stopped = any(ranks, random);
        boolean stop = random.nextInt(3) == 0;
        if (stop) {
            // The victim, or one that cannot notice it for a while.
            ranks.signal("STOP", stopped);
        }
        ranks.kill(victim);
        if (stop && stopped != victim) {
            Thread.sleep(random.nextInt(MOST_IDLE_MILLIS));
            ranks.signal("CONT", stopped);
        }
        soak.add("kills", 1);
        ranks.goOnWithout(victim);
    }
}
