// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.nccl;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.jna.Memory;
import org.djlx.nativeops.nccl.NcclConfig.Member;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The struct that NCCL is given, by the offsets of nccl.h. */
class NcclConfigTest {

    private static final int UNDEFINED = Integer.MIN_VALUE;

    private static final int LIBRARY = 22809;

    private final NcclConfig config =
            NcclConfig.DEFAULT
                    .with(Member.MIN_CTAS, 2)
                    .with(Member.MAX_CTAS, 4)
                    .with(Member.CGA_CLUSTER_SIZE, 8)
                    .withNetName("Socket");

    @Test
    void structLeavesToNcclWhatIsNotSet() {
        Memory struct = NcclConfig.DEFAULT.write(LIBRARY);
        assertEquals(48, struct.getLong(0));
        assertEquals(0xcafebeef, struct.getInt(8));
        assertEquals(21800, struct.getInt(12));
        assertEquals(1, struct.getInt(16));
        for (int offset : new int[] {20, 24, 28, 40, 44}) {
            assertEquals(UNDEFINED, struct.getInt(offset));
        }
        assertEquals(0, struct.getLong(32));
    }

    @Test
    void structHasTheValuesThatAreSet() {
        Memory struct = config.with(Member.SPLIT_SHARE, 0).write(LIBRARY);
        assertEquals(8, struct.getInt(20));
        assertEquals(2, struct.getInt(24));
        assertEquals(4, struct.getInt(28));
        assertEquals("Socket", struct.getPointer(32).getString(0));
        assertEquals(0, struct.getInt(40));
        assertEquals(UNDEFINED, struct.getInt(44));
    }

    @Test
    void memberThatTheLibraryLacksIsRefusedByName() {
        NcclConfig newer = config.with(Member.TRAFFIC_CLASS, 105);
        Memory struct = newer.write(22500);
        assertEquals(22500, struct.getInt(12));
        assertEquals(105, struct.getInt(44));
        String message =
                assertThrows(UnsupportedOperationException.class, () -> newer.write(22403))
                        .getMessage();
        assertEquals("TRAFFIC_CLASS needs NCCL 2.25.0, and this is 2.24.3; leave it out", message);
    }

    @ParameterizedTest
    @CsvSource({
        "MIN_CTAS,0",
        "MAX_CTAS,0",
        "MIN_CTAS,5",
        "MAX_CTAS,1",
        "CGA_CLUSTER_SIZE,9",
        "CGA_CLUSTER_SIZE,-1",
        "TRAFFIC_CLASS,-1"
    })
    void numberOutOfRangeIsRefusedByName(Member member, int number) {
        String message =
                assertThrows(IllegalArgumentException.class, () -> config.with(member, number))
                        .getMessage();
        assertTrue(message.contains(member + "") && message.contains("" + number), message);
    }
}
