// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.launch.MpiRun;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** The contract on {@code mpi}, with the MPIs that are installed, and how jobs end. */
@Timeout(300)
@Tag("slow")
class MpiProcessesTest {

    @ParameterizedTest
    @CsvSource({"OPEN_MPI, 2", "OPEN_MPI, 4", "MPICH, 2"})
    void contract(MpiRun mpi, int worldSize) throws IOException, InterruptedException {
        MpiRun.Result result = mpi.run(worldSize, MpiContractMain.class);
        assertEquals(0, result.code(), result.output());
        for (int rank = 0; rank < worldSize; rank++) {
            for (String name : ContractCases.all().keySet()) {
                String line = "rank " + rank + " passed " + name + "\n";
                assertTrue(result.output().contains(line), line + result.output());
            }
        }
    }

    /**
     * Rank 0 breaks a group in the middle of its job: by a timeout before the other rank calls, and
     * while data moves. Both ranks report it, and both processes end by themselves.
     */
    @ParameterizedTest
    @EnumSource(MpiRun.class)
    void failuresEndTheJob(MpiRun mpi) throws IOException, InterruptedException {
        MpiRun.Result result = mpi.run(2, MpiFailureMain.class);
        assertTrue(
                result.output().contains("rank 0: CollectiveTimeoutException [1]\n"),
                result.output());
        assertTrue(result.output().contains("rank 1: CollectiveException\n"), result.output());
        assertTrue(result.output().contains("rank 0: broken\n"), result.output());
        assertTrue(result.output().contains("rank 1: broken\n"), result.output());
        assertEquals(0, result.code(), result.output());
    }

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

    /** Ranks that are threads of one process, which MPI does not know. */
    @Test
    void ranksOfOneProcess() throws IOException, InterruptedException {
        MpiRun.Result result = MpiRun.OPEN_MPI.run(1, MpiLocalMain.class);
        assertEquals(0, result.code(), result.output());
        String reason = "cannot use backend 'mpi': MPI knows of one process only; start";
        assertTrue(result.output().contains(reason), result.output());
    }

    /** Otherwise each process would be a job of its own. */
    @Test
    void aLauncherOfAnotherMpi() throws IOException, InterruptedException {
        MpiRun.Result result = MpiRun.MPICH.runWithOpenMpi(2, MpiFailureMain.class);
        String reason = "backend 'mpi': MPI knows of one process only; start the ranks with";
        assertEquals(3, result.output().split(reason, -1).length, result.output());
        assertTrue(
                result.output()
                        .contains("says RANK=1 (OMPI_COMM_WORLD_RANK), WORLD_SIZE=2 (PMI_SIZE)"));
        assertTrue(result.code() != 0, result.output());
    }

    /** Otherwise its process waits until rank 0 gives up, after 100 s. */
    @Test
    void aRankWithoutAGroupEndsTheJob() throws IOException, InterruptedException {
        MpiRun.Result result = MpiRun.OPEN_MPI.run(2, MpiFirstGroupMain.class);
        assertTrue(result.output().contains("takes BackendOptions, not NcclOptions"));
        assertFalse(result.output().contains("waited"), result.output());
        assertTrue(result.code() != 0, result.output());
    }

    @ParameterizedTest
    @EnumSource(MpiRun.class)
    void groupsCreatedAtTheSameTime(MpiRun mpi) throws IOException, InterruptedException {
        MpiRun.Result result = mpi.run(2, MpiGroupsMain.class);
        assertEquals(0, result.code(), result.output());
        assertEquals(3, result.output().split("equal sums", -1).length, result.output());
    }

    @ParameterizedTest
    @EnumSource(MpiRun.class)
    void sums(MpiRun mpi) throws IOException, InterruptedException {
        MpiRun.Result result = mpi.run(1, MpiSumsMain.class);
        assertEquals(0, result.code(), result.output());
        assertTrue(result.output().contains("equal sums"), result.output());
    }

    @Test
    void anAddressOnOneRankOnly() throws IOException, InterruptedException {
        MpiRun.Result result =
                MpiRun.OPEN_MPI.runWithAddressOnRank0(2, MpiContractMain.class, "ranksOfSubGroups");
        assertTrue(result.output().contains("on all ranks, or on none"), result.output());
        assertTrue(result.code() != 0, result.output());
    }

    @Test
    void anAddressWithoutAPort() throws IOException, InterruptedException {
        MpiRun.Result result =
                MpiRun.OPEN_MPI.runWithAddress(
                        "localhost", 2, MpiContractMain.class, "ranksOfSubGroups");
        assertEquals(0, result.code(), result.output());
    }
}
