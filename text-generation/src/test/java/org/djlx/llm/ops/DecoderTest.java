// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import ai.djl.Device;
import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import org.djlx.llm.sampling.LogitEdits;
import org.djlx.nativeops.host.NativeMemory;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** The layout of inputs, without a GPU. */
class DecoderTest {

    @ParameterizedTest
    @ValueSource(ints = {0, 1, 2, 3})
    void allowedTokensLieBehindAnyNumberOfEntries(int count) {
        int[] entries = new int[count * LogitEdits.ENTRY];
        LogitEdits edits = new LogitEdits(1, 0, 0, entries, () -> new int[] {5, -1});
        Memory pinned = new Memory(20 * Integer.BYTES);
        pinned.setMemory(0, pinned.size(), (byte) 9);
        int[] expected = pinned.getIntArray(0, 20);
        try (NativeMemory memory =
                new NativeMemory(
                        Pointer.nativeValue(pinned), pinned.size(), Device.cpu(), () -> {})) {
            // The entries begin after 3 ints of another row. The third word is missing: no token.
            Decoder.writeAllowed(memory, memory.address() + 3 * Integer.BYTES, edits, 3);
        }
        int first = 3 + entries.length;
        System.arraycopy(new int[] {5, -1, 0}, 0, expected, first, 3);
        assertArrayEquals(expected, pinned.getIntArray(0, 20));
    }
}
