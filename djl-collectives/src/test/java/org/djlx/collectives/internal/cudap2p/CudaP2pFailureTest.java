// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.RepetitionInfo;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;

/** A rank's process is killed; the other ranks fail in time, and can create a new group. */
@Tag("gpu")
@Timeout(200)
class CudaP2pFailureTest {

    private int worldSize;

    @BeforeEach
    void requireGpus() {
        worldSize = P2pRanks.require();
    }

    @RepeatedTest(10)
    void duringAnAllReduce(RepetitionInfo repetition) throws InterruptedException {
        Survivors.check(
                worldSize, repetition.getCurrentRepetition(), CudaP2pVictimMain.class, "during");
    }

    @RepeatedTest(10)
    void betweenCalls(RepetitionInfo repetition) throws InterruptedException {
        Survivors.check(
                worldSize, repetition.getCurrentRepetition(), CudaP2pVictimMain.class, "between");
    }
}
