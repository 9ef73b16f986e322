// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.train;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import org.junit.jupiter.api.Test;

class Utf8BytesTest {

    /** Any sequence of allowed bytes is valid UTF-8. */
    @Test
    void allowedBytesAreText() throws CharacterCodingException {
        Random random = new Random(1);
        for (int run = 0; run < 2000; run++) {
            byte[] bytes = new byte[20];
            Utf8Bytes characters = new Utf8Bytes();
            for (int i = 0; i < bytes.length; i++) {
                int next;
                do {
                    // Above ASCII: most invalid sequences are there.
                    next = 128 + random.nextInt(128) - (random.nextInt(4) == 0 ? 128 : 0);
                } while (!characters.allows(next, bytes.length - i));
                characters.add(next);
                bytes[i] = (byte) next;
            }
            StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes));
        }
    }

    @Test
    void allTextIsAllowed() {
        String text = "Käse, 日本, \ud83d\ude00 and \u07ff\u0800\uffff";
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        Utf8Bytes characters = new Utf8Bytes();
        for (int i = 0; i < bytes.length; i++) {
            int next = Byte.toUnsignedInt(bytes[i]);
            assertTrue(characters.allows(next, bytes.length - i), "byte " + i);
            characters.add(next);
        }
    }

    @Test
    void aCharacterNeedsRoom() {
        assertTrue(new Utf8Bytes().allows(0xe2, 3));
        assertFalse(new Utf8Bytes().allows(0xe2, 2));
    }
}
