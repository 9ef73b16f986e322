// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.alltoall;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.djlx.fusedops.internal.alltoall.VdevKernels.Blocks;
import org.junit.jupiter.api.Test;

class VdevKernelsTest {

    /** Kernels of all ranks on a GPU must fit there at once; see P2pBuffers.waitingBlocks. */
    @Test
    void launchesKeepToTheLimitOfSharedGpus() {
        Blocks alone = new Blocks(8, 28);
        assertEquals(alone, alone.atMost(Integer.MAX_VALUE));
        assertEquals(alone, alone.atMost(64));
        for (int limit = 0; limit < 64; limit++) {
            Blocks shared = alone.atMost(limit);
            assertTrue(shared.own() >= 1 && shared.own() <= alone.own(), shared.toString());
            assertTrue(shared.pairs() >= 1 && shared.pairs() <= alone.pairs(), shared.toString());
            int all = shared.own() + 2 * shared.pairs();
            assertTrue(all <= Math.max(3, limit) && all >= limit - 1, shared.toString());
        }
    }
}
