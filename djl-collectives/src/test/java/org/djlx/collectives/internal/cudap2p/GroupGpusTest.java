// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.djlx.nativeops.cuda.GpuRates;
import org.junit.jupiter.api.Test;

/** Ranks choose paths from the same rates, although each measures its own. */
class GroupGpusTest {

    private static P2pParts.Gpu gpu(String name, double teraflops, double gigabytesPerSecond) {
        GpuRates rates = new GpuRates(name, 132, teraflops, gigabytesPerSecond);
        return new P2pParts.Gpu("sm_90a", 132, "0000:01:00.0", rates, 0, false);
    }

    @Test
    void lowestRatesOfTheGroupAreUsed() {
        assertEquals(
                new GpuRates("H100", 132, 600, 3000),
                P2pParts.Gpu.slowest(List.of(gpu("H100", 600, 3100), gpu("H100", 650, 3000))));
    }

    @Test
    void unknownAndDifferentGpusHaveNone() {
        P2pParts.Gpu unknown = new P2pParts.Gpu("sm_90a", 132, "0000:02:00.0", null, 0, false);
        assertNull(P2pParts.Gpu.slowest(List.of(gpu("H100", 600, 3000), unknown)));
        assertNull(P2pParts.Gpu.slowest(List.of(gpu("H100", 600, 3000), gpu("H200", 600, 3000))));
    }

    @Test
    void architectureAndSmsAreCompared() {
        P2pParts.Gpu one = gpu("H100", 600, 3000);
        assertTrue(P2pParts.Gpu.areAlike(List.of(one, gpu("H200", 1, 1))));
        P2pParts.Gpu fewer = new P2pParts.Gpu("sm_90a", 114, "0000:02:00.0", null, 0, false);
        P2pParts.Gpu older = new P2pParts.Gpu("sm_80", 132, "0000:02:00.0", null, 0, false);
        assertFalse(P2pParts.Gpu.areAlike(List.of(one, fewer)));
        assertFalse(P2pParts.Gpu.areAlike(List.of(one, older)));
    }
}
