// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

class LateWritersTest {

    private final LateWriters writers = new LateWriters();
    private final List<String> released = new ArrayList<>();

    @Test
    void tensorsAreKeptUntilAllRanksHaveLeft() {
        writers.release(() -> released.add("succeeded"), false);
        writers.release(() -> released.add("failed"), true);
        assertEquals(List.of("succeeded"), released);
        writers.end();
        assertEquals(List.of("succeeded", "failed"), released);
        // A graph may be closed after its group.
        writers.release(() -> released.add("closed later"), true);
        assertEquals(List.of("succeeded", "failed", "closed later"), released);
    }

    @Test
    void failedReleaseDoesNotPreventTheOthers() {
        writers.release(
                () -> {
                    throw new IllegalStateException("no context");
                },
                true);
        writers.release(() -> released.add("second"), true);
        writers.end();
        assertEquals(List.of("second"), released);
    }
}
