// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class PrefixedOutputTest {

    /** Records each call of write separately. */
    private static final class Writes extends ByteArrayOutputStream {
        private final List<String> writes = new ArrayList<>();

        @Override
        public synchronized void write(byte[] bytes, int offset, int length) {
            writes.add(new String(bytes, offset, length, StandardCharsets.UTF_8));
        }

        @Override
        public synchronized void write(int b) {
            writes.add(Character.toString(b));
        }
    }

    private static List<String> pass(InputStream in) throws Exception {
        Writes writes = new Writes();
        PrintStream out = new PrintStream(writes, true, StandardCharsets.UTF_8);
        PrefixedOutput.finish(List.of(PrefixedOutput.start(0, in, out, null, () -> {})));
        return writes.writes;
    }

    private static List<String> pass(String text) throws Exception {
        return pass(new ByteArrayInputStream(text.getBytes(StandardCharsets.UTF_8)));
    }

    @Test
    void aLineIsOneWrite() throws Exception {
        assertEquals(List.of("[0] a\n", "[0] \n", "[0] b\n"), pass("a\n\nb"));
    }

    @Test
    void progressIsShownLineByLine() throws Exception {
        assertEquals(List.of("[0] 10%\n", "[0] 20%\n", "[0] done\n"), pass("\r10%\r20%\rdone\n"));
    }

    @Test
    void crLfIsOneLineEnd() throws Exception {
        assertEquals(List.of("[0] a\n", "[0] \n", "[0] b\n"), pass("a\r\n\r\nb\r\n"));
    }

    @Test
    void outputWithoutALineFeedIsPassedOnInPieces() throws Exception {
        List<String> writes = pass("x".repeat(10 << 20));
        int total = 0;
        for (String write : writes) {
            assertTrue(write.length() <= 100_000, () -> "held back " + write.length());
            total += write.length() - "[0] \n".length();
        }
        assertEquals(10 << 20, total);
    }

    /** A pipe that a process outside of the job still holds open. */
    @Test
    void unendedStreamIsAbandoned() throws Exception {
        InputStream endless =
                new InputStream() {
                    private int at;

                    @Override
                    public int read() {
                        throw new AssertionError("reads blocks only");
                    }

                    @Override
                    public int read(byte[] bytes, int offset, int length) {
                        if (at > 0) {
                            try {
                                Thread.sleep(Long.MAX_VALUE);
                            } catch (InterruptedException e) {
                                return -1;
                            }
                        }
                        at++;
                        bytes[offset] = 'a';
                        return 1;
                    }
                };
        assertEquals(List.of("[0] a\n"), pass(endless));
    }
}
