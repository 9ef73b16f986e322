/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicLong;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Path;

/**
 * Counts the calls of fused operators in this JVM, by the path they took, from {@link
 * FusedOps#countUsage()} until it is closed. With ranks as threads, each rank's call counts. A call
 * is counted when its path is chosen. Thread-safe; several counters may be open.
 */
public final class UsageCounter implements AutoCloseable {

    private static final List<UsageCounter> OPEN = new CopyOnWriteArrayList<>();

    private final AtomicLong pipelined = new AtomicLong();
    private final Map<Choice, Long> choices = new ConcurrentHashMap<>();
    private final Map<FallbackReason, AtomicLong> fallbacks = new EnumMap<>(FallbackReason.class);

    UsageCounter() {
        for (FallbackReason reason : FallbackReason.values()) {
            fallbacks.put(reason, new AtomicLong());
        }
        OPEN.add(this);
    }

    /** Counts a call; the reason is null if it is pipelined. */
    static void count(FallbackReason reason) {
        for (UsageCounter counter : OPEN) {
            (reason == null ? counter.pipelined : counter.fallbacks.get(reason)).incrementAndGet();
        }
    }

    /** As {@link #count(FallbackReason)}, for a call whose path was chosen. */
    static void count(FallbackReason reason, Choice choice) {
        count(reason);
        for (UsageCounter counter : OPEN) {
            counter.choices.merge(choice, 1L, Long::sum);
        }
    }

    /**
     * Returns which paths matmuls fused with a collective took, and why. The calls of {@link
     * LowContention} and of {@link FusedOps#allReduceRmsNorm}, which multiply no matrices, are not
     * among them.
     *
     * @return the number of calls by path and reason
     */
    public Map<Choice, Long> choices() {
        return Map.copyOf(choices);
    }

    /**
     * Returns the number of matmuls fused with a collective that took a path.
     *
     * @param path the path
     * @return the number
     */
    public long calls(Path path) {
        if (path == null) {
            throw new IllegalArgumentException("calls: path is null");
        }
        return choices.entrySet().stream()
                .filter(entry -> entry.getKey().path() == path)
                .mapToLong(Map.Entry::getValue)
                .sum();
    }

    /**
     * Returns the number of pipelined calls that were a single launch of a kernel, which pushes,
     * waits and multiplies.
     *
     * @return the number
     */
    public long fusedCalls() {
        return calls(Path.FUSED);
    }

    /**
     * Returns the number of calls that took the pipelined path.
     *
     * @return the number
     */
    public long pipelined() {
        return pipelined.get();
    }

    /**
     * Returns the number of calls that fell back.
     *
     * @return the number
     */
    public long fallbacks() {
        return fallbacks.values().stream().mapToLong(AtomicLong::get).sum();
    }

    /**
     * Returns the number of calls that fell back for a reason.
     *
     * @param reason the reason
     * @return the number
     */
    public long fallbacks(FallbackReason reason) {
        if (reason == null) {
            throw new IllegalArgumentException("fallbacks: reason is null");
        }
        return fallbacks.get(reason).get();
    }

    /** Ends counting; the figures stay. Idempotent. */
    @Override
    public void close() {
        OPEN.remove(this);
    }
}
