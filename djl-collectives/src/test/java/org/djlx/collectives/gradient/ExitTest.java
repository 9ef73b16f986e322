// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.gradient;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import org.djlx.collectives.RankProcesses;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(120)
class ExitTest {

    /** libtorch's destructors would run while the pass does, and the JVM crash (SIGSEGV). */
    @Test
    void exitDuringABackwardPassDoesNotCrash() throws Exception {
        try (RankProcesses process = new RankProcesses(1, ExitMain.class)) {
            assertEquals(List.of(7), process.await(), () -> process.output(0));
        }
    }
}
