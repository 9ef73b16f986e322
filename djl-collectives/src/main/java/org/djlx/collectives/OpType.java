/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/**
 * The kind of an operation. The collectives' own are constants here; a library that runs operations
 * of its own in a group's order defines more.
 */
public final class OpType {

    /** The longest name, in characters. */
    public static final int MAX_NAME_LENGTH = 32;

    static final int WORDS = MAX_NAME_LENGTH / Long.BYTES;

    static final OpType INIT = new OpType("init");
    static final OpType ALL_REDUCE = new OpType("allReduce");
    static final OpType BROADCAST = new OpType("broadcast");
    static final OpType ALL_GATHER = new OpType("allGather");
    static final OpType ALL_GATHER_INTO_TENSOR = new OpType("allGatherIntoTensor");
    static final OpType REDUCE_SCATTER = new OpType("reduceScatter");
    static final OpType REDUCE_SCATTER_TENSOR = new OpType("reduceScatterTensor");
    static final OpType BARRIER = new OpType("barrier");

    private final String name;
    private final long[] words;

    /**
     * Creates a kind of operation.
     *
     * @param name its name as users know it, of at most {@value #MAX_NAME_LENGTH} ASCII characters
     */
    public OpType(String name) {
        byte[] ascii = name.getBytes(StandardCharsets.US_ASCII);
        if (ascii.length == 0 || ascii.length > MAX_NAME_LENGTH) {
            throw new IllegalArgumentException(
                    "an operation's name has 1 to " + MAX_NAME_LENGTH + " characters: " + name);
        }
        this.name = name;
        ByteBuffer padded =
                ByteBuffer.wrap(Arrays.copyOf(ascii, MAX_NAME_LENGTH))
                        .order(ByteOrder.LITTLE_ENDIAN);
        words = new long[WORDS];
        padded.asLongBuffer().get(words);
    }

    /** Writes the name as {@value #WORDS} words, so that ranks can compare it. */
    void encode(long[] target) {
        System.arraycopy(words, 0, target, 0, WORDS);
    }

    static String decodeName(long[] source) {
        ByteBuffer bytes = ByteBuffer.allocate(MAX_NAME_LENGTH).order(ByteOrder.LITTLE_ENDIAN);
        bytes.asLongBuffer().put(source, 0, WORDS);
        return new String(bytes.array(), StandardCharsets.US_ASCII).trim();
    }

    /**
     * Returns the name.
     *
     * @return the name, such as {@code allReduce}
     */
    @Override
    public String toString() {
        return name;
    }
}
