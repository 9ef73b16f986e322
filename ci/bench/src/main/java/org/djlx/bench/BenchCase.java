// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/**
 * The size of an operation's largest tensor in bytes, as nccl-tests counts it, and the numbers of
 * calls.
 */
record BenchCase(long size, int warmUp, int iterations) {

    private static final Pattern WORD =
            Pattern.compile("(\\d{1,12})([KMG]?)(?::(\\d{1,9}):(\\d{1,9}))?");

    // Enough calls for the JVM's compiler to finish; a size takes a few seconds at most.
    private static final int MAX_ITERATIONS = 10_000;
    private static final int MIN_ITERATIONS = 20;
    private static final long BYTES = 512L << 20;

    static final List<BenchCase> DEFAULTS =
            Stream.of("4K", "16K", "64K", "256K", "1M", "4M", "16M", "64M")
                    .map(BenchCase::parse)
                    .toList();

    /** Parses {@code SIZE} or {@code SIZE:WARMUP:ITERATIONS}; a size may end in K, M or G. */
    static BenchCase parse(String word) {
        Matcher matcher = WORD.matcher(word);
        refuseIf(
                !matcher.matches(),
                "'%s' is not a size: give SIZE, such as 64K, or SIZE:WARMUP:ITERATIONS"
                        .formatted(word));
        int shift = 10 * " KMG".indexOf(matcher.group(2));
        long size = Long.parseLong(matcher.group(1));
        refuseIf(size > Long.MAX_VALUE >> shift, "'%s' is larger than any memory".formatted(word));
        size <<= shift;
        if (matcher.group(3) == null) {
            return new BenchCase(size, times(8 * BYTES, size), times(BYTES, size));
        }
        int iterations = Integer.parseInt(matcher.group(4));
        refuseIf(iterations == 0, "'%s' has 0 iterations: give 1 or more".formatted(word));
        return new BenchCase(size, Integer.parseInt(matcher.group(3)), iterations);
    }

    /**
     * Parses sizes; null for the defaults. {@code tensors} of a size at the same time must fit into
     * memory.
     */
    static List<BenchCase> parse(List<String> words, long least, int tensors) {
        List<BenchCase> cases =
                words == null ? DEFAULTS : words.stream().map(BenchCase::parse).toList();
        long memory =
                ManagementFactory.getPlatformMXBean(OperatingSystemMXBean.class)
                        .getTotalMemorySize();
        for (BenchCase wanted : cases) {
            refuseIf(
                    wanted.size < least,
                    "a size of %d bytes is too small; the smallest is %d"
                            .formatted(wanted.size, least));
            // If memory runs out, Linux kills processes, perhaps another process than this one.
            refuseIf(
                    wanted.size > memory / tensors,
                    ("a size of %d bytes is too large: %d tensors of it are more than this host's"
                                    + " memory, %d bytes")
                            .formatted(wanted.size, tensors, memory));
        }
        return cases;
    }

    private static int times(long bytes, long size) {
        return (int) Math.max(MIN_ITERATIONS, Math.min(MAX_ITERATIONS, bytes / (size + 1)));
    }

    @Override
    public String toString() {
        return size + ":" + warmUp + ":" + iterations;
    }
}
