// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The number of blocks of kernels that wait for peers. */
class WaitingBlocksTest {

    @Test
    void unsharedGpuIsUsedWhole() {
        assertEquals(132, P2pParts.waitingBlocks(132, 1));
    }

    /** All waiting blocks run at once, and those of all ranks but one leave half of the SMs. */
    @ParameterizedTest
    @CsvSource({"132, 2", "132, 3", "132, 4", "132, 5", "132, 8", "108, 3", "114, 7", "16, 8"})
    void sharedGpusKeepHalfOfTheirSms(int processors, int sharing) {
        int blocks = P2pParts.waitingBlocks(processors, sharing);
        assertTrue(blocks >= 1);
        assertTrue(blocks * sharing <= processors, "all run at once");
        assertTrue(blocks * (sharing - 1) <= processors / 2, "half is left");
    }

    /** However many ranks of other groups join: a mesh cannot change its blocks. */
    @Test
    void aMeshKeepsToTheLimitOfAllGroups() {
        List<P2pParts.Gpu> gpus =
                List.of(
                        new P2pParts.Gpu("sm_90", 132, "0", null, 0, false),
                        new P2pParts.Gpu("sm_90", 114, "1", null, 0, false));
        int blocks = P2pParts.fixedBlocks(gpus);
        assertTrue(blocks >= 1);
        for (int ranks = 2; ranks <= RegionHandshake.MOST_SHARING; ranks++) {
            assertTrue(blocks <= P2pParts.waitingBlocks(114, ranks), ranks + " ranks");
        }
    }
}
