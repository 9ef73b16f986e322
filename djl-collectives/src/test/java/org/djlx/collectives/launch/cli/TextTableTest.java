// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.Test;

class TextTableTest {

    @Test
    void alignsTextToTheLeftAndNumbersToTheRight() {
        TextTable table = new TextTable("backend", "bytes", "rate", "note");
        table.add("shm", 4, "1.5 GB/s", "").add("cuda_p2p", 16384, "-", "fast");
        assertEquals(
                """
                backend   bytes      rate  note
                shm           4  1.5 GB/s
                cuda_p2p  16384         -  fast
                """,
                table.toString());
    }

    @Test
    void printsTheHeaderOfAnEmptyTable() {
        assertEquals("a  b\n", new TextTable("a", "b").toString());
    }

    @Test
    void rejectsARowOfAnotherWidth() {
        TextTable table = new TextTable("a", "b");
        assertThrows(IllegalArgumentException.class, () -> table.add(1));
    }
}
