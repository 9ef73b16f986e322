// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.collectives.RankProcesses;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * A waiting or idle rank sleeps and uses no CPU. The test measures CPU time, which does not depend
 * on other load; a spinning thread would use all of its waiting time.
 */
@Timeout(200)
@Tag("slow")
class ShmIdleTest {

    /** An eighth of the time: a sleeper looks after its peers, and the JVM compiles how it does. */
    private static final long MAX_MILLIS = IdleMain.TIME.toMillis() / 8;

    /** Two groups at once, as CPU time is that of each process. */
    @Test
    void ranksThatWaitUseNoCpu() throws InterruptedException {
        try (RankProcesses two = new RankProcesses(2, IdleMain.class);
                RankProcesses four = new RankProcesses(4, IdleMain.class)) {
            assertIdle(two, 2);
            assertIdle(four, 4);
        }
    }

    private static void assertIdle(RankProcesses ranks, int worldSize) throws InterruptedException {
        ranks.awaitSuccess();
        for (int rank = 0; rank < worldSize; rank++) {
            String output = ranks.output(rank);
            for (String state : List.of("barrier", "message", "idle")) {
                Matcher matcher = Pattern.compile(state + ": (\\d+)").matcher(output);
                assertTrue(matcher.find(), output);
                long millis = Long.parseLong(matcher.group(1));
                assertTrue(
                        millis <= MAX_MILLIS,
                        "rank " + rank + ", " + state + ": " + millis + " ms of CPU time");
            }
        }
    }
}
