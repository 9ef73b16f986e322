// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Collection;
import java.util.List;

/** What operations of backends on CPUs hold. */
public final class HeldMemory {

    private HeldMemory() {}

    /** Checks that no tensor is open, and that the backends hold no array. */
    public static void assertNone(Collection<? extends CpuBackend> backends) {
        backends.forEach(backend -> assertEquals(List.of(), backend.manager.getManagedArrays()));
        assertEquals(0, HostTensor.open());
    }
}
