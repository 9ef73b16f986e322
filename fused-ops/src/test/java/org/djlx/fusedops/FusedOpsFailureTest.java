// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.internal.cudap2p.Survivors;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The process of a rank is killed while fused operators run. */
@Tag("gpu")
@Timeout(200)
class FusedOpsFailureTest {

    private int worldSize;

    @BeforeEach
    void requireGpus() {
        worldSize = P2pRanks.require();
    }

    /** The third time on the path FUSED, where the GPUs have that kernel. */
    @Test
    void duringAFusedOperator() throws InterruptedException {
        Survivors.check(worldSize, 3, 1, FusedVictimMain.class);
    }
}
