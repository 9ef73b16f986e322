// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.djlx.collectives.RankProcesses;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class LongCallsTest {

    private static final int KILLED = 128 + LongCallsMain.STATUS;

    @Test
    void exitWaits() throws InterruptedException {
        assertTrue(exit("soon", KILLED).contains("done"));
    }

    /** Libraries are not unloaded while a thread is inside one. */
    @Test
    void exitDoesNotWaitForEver() throws InterruptedException {
        assertFalse(exit("never", LongCallsMain.STATUS).contains("done"));
    }

    private static String exit(String when, int status) throws InterruptedException {
        try (RankProcesses ranks = new RankProcesses(1, LongCallsMain.class, when)) {
            assertEquals(List.of(status), ranks.await(), ranks.output(0));
            return ranks.output(0);
        }
    }
}
