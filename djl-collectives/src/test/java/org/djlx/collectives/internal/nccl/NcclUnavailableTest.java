// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeFalse;

import java.time.Duration;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.store.HashStore;
import org.djlx.nativeops.NativeLibrary;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/** Errors on a machine without a GPU or without NCCL. */
@Timeout(60)
class NcclUnavailableTest {

    @BeforeAll
    static void requireNone() {
        assumeFalse(NativeLibrary.CUDA_PRESETS.isAvailable() && NativeLibrary.NCCL.isAvailable());
    }

    private static void assertCauseIsNamed(Executable call) {
        CollectiveException e = assertThrows(CollectiveException.class, call);
        assertTrue(e.getMessage().contains("backend 'nccl' cannot be used here: "), e.toString());
        Throwable cause = NativeLibrary.CUDA.unavailabilityCause();
        if (cause != null) {
            assertTrue(e.getMessage().endsWith(cause.getMessage()), e.toString());
        }
        assertNotNull(e.getCause());
    }

    @Test
    void groupsNameTheCause() {
        NcclOptions options = NcclOptions.builder().optTimeout(Duration.ofSeconds(5)).build();
        assertCauseIsNamed(() -> ProcessGroups.local("nccl", 2, options));
        assertCauseIsNamed(
                () -> ProcessGroups.init("nccl", new HashStore(), "group", 0, 1, options));
    }

    @Test
    void supportIsKnownWithoutNccl() {
        assertEquals("nccl", Backends.get("nccl").name());
        assertTrue(Backends.get("nccl").support().supports(OpType.SEND));
        assertTrue(!Backends.get("nccl").support().supports(OpType.RECV_ANY_SOURCE));
    }
}
