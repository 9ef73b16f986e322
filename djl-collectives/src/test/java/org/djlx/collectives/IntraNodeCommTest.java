// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** The environment variable {@code ENABLE_INTRA_NODE_COMM}, read as c10d reads it. */
class IntraNodeCommTest {

    private static boolean read(String value) {
        return NcclOptions.isIntraNodeComm(Map.of(NcclOptions.INTRA_NODE_COMM, value));
    }

    @Test
    void acceptsTheValuesOfC10d() {
        assertFalse(NcclOptions.isIntraNodeComm(Map.of()));
        for (String yes : List.of("1", "y", "YES", "t", "True")) {
            assertTrue(read(yes), yes);
        }
        for (String no : List.of("0", "n", "No", "f", "FALSE")) {
            assertFalse(read(no), no);
        }
    }

    @Test
    void otherValuesAreRefused() {
        String message =
                assertThrows(IllegalArgumentException.class, () -> read("on")).getMessage();
        assertEquals(
                "the environment variable ENABLE_INTRA_NODE_COMM is \"on\"; set it to 1 or 0",
                message);
    }
}
