// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.collectives.launch.MpiRun;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Hosts of {@code mpi} that end without a word. */
@Timeout(300)
@Tag("slow")
class MpiHostsTest {

    /**
     * A host stops without a word, during a collective, the first one with the store; the timeout
     * is 100 s.
     */
    @ParameterizedTest
    @CsvSource({
        "OPEN_MPI, 2, host \\S+ \\(rank 2\\) has sent no heartbeat for 7 s",
        "MPICH, 2, host \\S+ \\(rank 2\\) has sent no heartbeat for 7 s",
        "OPEN_MPI, 0, the store of the group is lost"
    })
    void aDeadHostIsNamedOnAllOthers(MpiRun mpi, int dead, String reason)
            throws IOException, InterruptedException {
        MpiRun.Result result = mpi.runOnHosts(3, MpiHostMain.class, "" + dead);
        for (int rank = 0; rank < 3; rank++) {
            if (rank != dead) {
                // 8 or 9; more on a machine that has no time for the heartbeats' threads.
                assertSeconds("rank " + rank + " after (\\d+) s: .*" + reason, result.output());
                // MPICH's mpiexec may end the others when the first has left.
                String who = mpi == MpiRun.MPICH ? "\\d" : "" + rank;
                assertSeconds("rank " + who + " left after (\\d+) s", result.output());
            }
        }
    }

    private static void assertSeconds(String text, String output) {
        Matcher line = Pattern.compile(text).matcher(output);
        assertTrue(line.find(), output);
        System.out.println(line.group());
        assertTrue(Integer.parseInt(line.group(1)) < 50, line.group());
    }
}
