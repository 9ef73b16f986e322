// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import org.djlx.collectives.launch.MpiRun;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Data-parallel training on backend {@code mpi}. */
@Timeout(200)
@Tag("slow")
class MpiTrainingTest {

    @Test
    void trainsAsOneProcess() throws IOException, InterruptedException {
        MpiRun.Result result = MpiRun.OPEN_MPI.run(2, MpiTrainingMain.class);
        assertEquals(0, result.code(), result.output());
        assertEquals(3, result.output().split("equal parameters", -1).length, result.output());
    }
}
