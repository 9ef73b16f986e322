// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import org.djlx.collectives.launch.MpiRun;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The fused operators on backend {@code mpi}, which has no P2P buffers. */
@Timeout(200)
@Tag("slow")
class MpiFusedOpsTest {

    @Test
    void equalDjlsOperators() throws IOException, InterruptedException {
        MpiRun.Result result = MpiRun.OPEN_MPI.run(2, MpiFusedMain.class);
        assertEquals(0, result.code(), result.output());
        assertEquals(
                3, result.output().split("fused operators passed", -1).length, result.output());
    }
}
