// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.train;

/**
 * Computes which bytes may come next in valid UTF-8 (RFC 3629, section 4). A model that samples
 * among these bytes generates text. An invalid byte resets the state.
 */
final class Utf8Bytes {

    private int missing; // continuation bytes still missing
    private int least = 0x80; // limits of the next continuation byte
    private int most = 0xbf;

    /** Returns whether a byte may follow; a new character must fit into {@code room} bytes. */
    boolean allows(int value, int room) {
        return missing > 0 ? value >= least && value <= most : length(value) <= room && value != 0;
    }

    /** Takes the next byte. */
    void add(int value) {
        if (missing > 0 && value >= least && value <= most) {
            missing--;
        } else {
            missing = length(value) > 4 ? 0 : length(value) - 1;
        }
        boolean first = missing == length(value) - 1;
        least = first && value == 0xe0 ? 0xa0 : first && value == 0xf0 ? 0x90 : 0x80;
        most = first && value == 0xed ? 0x9f : first && value == 0xf4 ? 0x8f : 0xbf;
    }

    /**
     * Returns a character's length by its first byte; MAX_VALUE if the byte starts no character.
     */
    private static int length(int value) {
        if (value < 0x80) {
            return 1;
        }
        if (value < 0xc2 || value > 0xf4) {
            return Integer.MAX_VALUE;
        }
        return value < 0xe0 ? 2 : value < 0xf0 ? 3 : 4;
    }
}
