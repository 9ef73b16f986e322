// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import org.djlx.collectives.launch.MpiRun;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** How jobs of {@code mpi} are started, rightly and wrongly. */
@Timeout(300)
@Tag("slow")
class MpiLaunchTest {

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
