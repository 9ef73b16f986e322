// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.sun.jna.Memory;
import org.junit.jupiter.api.Test;

/** The struct that NCCL is given, by the offsets of nccl.h. */
class NcclConfigTest {

    private static final int UNDEFINED = Integer.MIN_VALUE;

    @Test
    void structHasTheSetValueAndLeavesTheOthersToNccl() {
        Memory struct = new NcclConfig(true).write();
        assertEquals(48, struct.getLong(0));
        assertEquals(1, struct.getInt(16));
        for (int offset : new int[] {20, 24, 28}) {
            assertEquals(UNDEFINED, struct.getInt(offset));
        }
        assertEquals(1, struct.getInt(40));
        assertEquals(0, new NcclConfig(false).write().getInt(40));
        assertEquals(UNDEFINED, NcclConfig.DEFAULT.write().getInt(40));
    }
}
