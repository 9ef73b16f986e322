/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import java.util.Arrays;
import org.djlx.collectives.spi.Operation;

/**
 * A call as the ranks of a group compare it: a word that says whether it goes into a graph, then
 * the operation's signature.
 */
public final class CallWords {

    /** The number of words of a call. */
    public static final int COUNT = 1 + Operation.SIGNATURE_WORDS;

    private CallWords() {}

    /**
     * Writes a call.
     *
     * @param words where; others may follow
     * @param signature the operation's
     * @param captured whether it goes into a graph instead of running
     */
    public static void put(long[] words, long[] signature, boolean captured) {
        words[0] = captured ? 1 : 0;
        System.arraycopy(signature, 0, words, 1, signature.length);
    }

    static boolean isCaptured(long[] words) {
        return words[0] != 0;
    }

    /**
     * Tells what was called.
     *
     * @param words the words of a call
     * @return a text such as {@code allReduce(float32, (2, 3), SUM) into a graph}
     */
    public static String describe(long[] words) {
        String called = Operation.describe(Arrays.copyOfRange(words, 1, COUNT));
        return isCaptured(words) ? called + " into a graph" : called;
    }
}
