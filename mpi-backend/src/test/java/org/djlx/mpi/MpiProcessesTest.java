// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.launch.MpiRun;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** The contract on {@code mpi}, with the MPIs that are installed, and failures. */
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

    @ParameterizedTest
    @EnumSource(MpiRun.class)
    void groupsCreatedAtTheSameTime(MpiRun mpi) throws IOException, InterruptedException {
        MpiRun.Result result = mpi.run(2, MpiGroupsMain.class);
        assertEquals(0, result.code(), result.output());
        assertEquals(3, result.output().split("equal sums", -1).length, result.output());
    }

    @ParameterizedTest
    @EnumSource(MpiRun.class)
    void sumsAreEqualOnAllRanks(MpiRun mpi) throws IOException, InterruptedException {
        MpiRun.Result result = mpi.run(1, MpiSumsMain.class);
        assertEquals(0, result.code(), result.output());
        assertTrue(result.output().contains("equal sums"), result.output());
    }
}
