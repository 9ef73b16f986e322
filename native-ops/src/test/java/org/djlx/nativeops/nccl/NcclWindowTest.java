// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.util.Optional;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.Test;

class NcclWindowTest {

    @Test
    void windowsAreUnavailableWithoutNccl() {
        Throwable cause = NativeLibrary.NCCL.unavailabilityCause();
        assumeTrue(cause != null, "NCCL is here");
        assertEquals(Optional.of(cause.getMessage()), NcclWindow.unavailabilityCause());
        IllegalStateException e =
                assertThrows(IllegalStateException.class, () -> NcclWindow.create(null, 8));
        assertEquals(cause.getMessage(), e.getMessage());
    }

    @Test
    void refusesAWindowOfNoBytes() {
        assertThrows(IllegalArgumentException.class, () -> NcclWindow.create(null, 0));
    }
}
