// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.util.Arrays;
import org.djlx.collectives.spi.Operation;

/**
 * The encoding of a call that the ranks compare: one word that is 1 if the call is captured into a
 * CUDA graph, then the operation's signature.
 */
public final class CallWords {

    public static final int COUNT = 1 + Operation.SIGNATURE_WORDS;

    private CallWords() {}

    /** Encodes a call to at least {@value #COUNT} words. */
    public static void put(long[] words, long[] signature, boolean captured) {
        words[0] = captured ? 1 : 0;
        System.arraycopy(signature, 0, words, 1, signature.length);
    }

    static boolean isCaptured(long[] words) {
        return words[0] != 0;
    }

    /** Formats a call, such as {@code allReduce(float32, (2, 3), SUM) into a graph}. */
    public static String describe(long[] words) {
        String called = Operation.describe(Arrays.copyOfRange(words, 1, COUNT));
        return isCaptured(words) ? called + " into a graph" : called;
    }
}
