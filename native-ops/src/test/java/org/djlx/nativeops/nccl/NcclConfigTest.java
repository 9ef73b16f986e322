// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;

import com.sun.jna.Memory;
import org.junit.jupiter.api.Test;

/** The struct that NCCL is given, by the offsets of nccl.h. */
class NcclConfigTest {

    private static final int UNDEFINED = Integer.MIN_VALUE;

    private static void assertCtas(int min, int max, NcclConfig config) {
        Memory struct = config.write();
        assertEquals(min, struct.getInt(24));
        assertEquals(max, struct.getInt(28));
    }

    /** NCCL takes an undefined maximum for one that is smaller than any minimum. */
    @Test
    void blocks() {
        assertCtas(UNDEFINED, UNDEFINED, NcclConfig.DEFAULT);
        assertCtas(2, 64, new NcclConfig(2, null, null, null));
        assertCtas(100, 100, new NcclConfig(100, null, null, null));
        assertCtas(UNDEFINED, 3, new NcclConfig(null, 3, null, null));
        assertCtas(2, 3, new NcclConfig(2, 3, null, null));
    }

    @Test
    void others() {
        Memory struct = new NcclConfig(null, null, 4, true).write();
        assertEquals(48, struct.getLong(0));
        assertEquals(1, struct.getInt(16));
        assertEquals(4, struct.getInt(20));
        assertEquals(1, struct.getInt(40));
        assertEquals(UNDEFINED, NcclConfig.DEFAULT.write().getInt(40));
    }
}
