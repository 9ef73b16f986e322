/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The size of an operation, as nccl-tests counts it, and the number of calls.
 *
 * @param size the bytes of the largest tensor
 * @param warmUp the number of calls before the timed ones
 * @param iterations the number of timed calls
 */
record BenchCase(long size, int warmUp, int iterations) {

    private static final Pattern WORD =
            Pattern.compile("(\\d{1,12})([KMG]?)(?::(\\d{1,9}):(\\d{1,9}))?");
    // Enough for the JVM's compiler to finish; a size takes some seconds at most.
    private static final int MAX_ITERATIONS = 10_000;
    private static final int MIN_ITERATIONS = 20;
    private static final long BYTES = 512L << 20;
    private static final long WARM_UP_BYTES = 8 * BYTES;

    static final List<BenchCase> DEFAULTS =
            List.of("4K", "16K", "64K", "256K", "1M", "4M", "16M", "64M").stream()
                    .map(BenchCase::parse)
                    .toList();

    /** Parses {@code SIZE} or {@code SIZE:WARMUP:ITERATIONS}; a size may end in K, M or G. */
    static BenchCase parse(String word) {
        Matcher matcher = WORD.matcher(word);
        if (!matcher.matches()) {
            throw new IllegalArgumentException(
                    "'"
                            + word
                            + "' is not a size: give SIZE, such as 64K, or SIZE:WARMUP:ITERATIONS");
        }
        long size;
        try {
            size =
                    Math.multiplyExact(
                            Long.parseLong(matcher.group(1)),
                            1L << 10 * " KMG".indexOf(unit(matcher)));
        } catch (ArithmeticException e) {
            throw new IllegalArgumentException("'" + word + "' is larger than any memory", e);
        }
        if (matcher.group(3) == null) {
            return new BenchCase(size, times(WARM_UP_BYTES, size), times(BYTES, size));
        }
        int iterations = Integer.parseInt(matcher.group(4));
        if (iterations == 0) {
            throw new IllegalArgumentException("'" + word + "' has 0 iterations: give 1 or more");
        }
        return new BenchCase(size, Integer.parseInt(matcher.group(3)), iterations);
    }

    private static int times(long bytes, long size) {
        return (int) Math.max(MIN_ITERATIONS, Math.min(MAX_ITERATIONS, bytes / (size + 1)));
    }

    private static String unit(Matcher matcher) {
        return matcher.group(2).isEmpty() ? " " : matcher.group(2);
    }

    /** Returns the text for {@link #parse}, with all three numbers. */
    @Override
    public String toString() {
        return size + ":" + warmUp + ":" + iterations;
    }
}
