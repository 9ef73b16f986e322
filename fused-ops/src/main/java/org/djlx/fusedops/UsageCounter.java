/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicLongArray;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Path;

/**
 * Counts the calls of fused operators in this JVM by the path they take, from {@link
 * FusedOps#countUsage()} until the counter is closed. If ranks are threads, the call of each rank
 * counts. A call is counted when its path is chosen. Thread-safe; several counters may be open.
 */
public final class UsageCounter implements AutoCloseable {

    private static final List<UsageCounter> OPEN = new CopyOnWriteArrayList<>();

    private final AtomicLongArray calls = new AtomicLongArray(Path.values().length);
    private final AtomicLongArray fallbacks = new AtomicLongArray(FallbackReason.values().length);
    private final Map<Choice, Long> choices = new ConcurrentHashMap<>();

    UsageCounter() {
        OPEN.add(this);
    }

    /** Counts a call that does not fall back. */
    static void count(Path path) {
        OPEN.forEach(counter -> counter.calls.incrementAndGet(path.ordinal()));
    }

    /** Counts a call that falls back. */
    static void count(FallbackReason reason) {
        count(Path.NCCL);
        OPEN.forEach(counter -> counter.fallbacks.incrementAndGet(reason.ordinal()));
    }

    /** Counts a matmul that does not fall back. */
    static void count(Choice choice) {
        count(choice.path());
        OPEN.forEach(counter -> counter.choices.merge(choice, 1L, Long::sum));
    }

    /** Counts a matmul that falls back. */
    static void count(Choice choice, FallbackReason reason) {
        count(reason);
        OPEN.forEach(counter -> counter.choices.merge(choice, 1L, Long::sum));
    }

    /**
     * {@return the paths of matmuls fused with a collective, and why each was chosen} {@link
     * LowContention} and {@link FusedOps#allReduceRmsNorm} are not included, because the cost model
     * does not choose their paths.
     */
    public Map<Choice, Long> choices() {
        return Map.copyOf(choices);
    }

    /** {@return the number of calls on all paths} */
    public long calls() {
        return fused() + pipelined() + gathered() + nccl();
    }

    /**
     * {@return the number of calls of all fused operators that took a path}
     *
     * @param path the path
     * @throws IllegalArgumentException if the path is null
     */
    public long calls(Path path) {
        if (path == null) {
            throw new IllegalArgumentException("calls: path is null");
        }
        return calls.get(path.ordinal());
    }

    /** {@return the number of calls that ran as a single kernel: {@link Path#FUSED}} */
    public long fused() {
        return calls(Path.FUSED);
    }

    /**
     * {@return the number of calls that overlapped copies with matmuls of parts: {@link
     * Path#PIPELINED}}
     */
    public long pipelined() {
        return calls(Path.PIPELINED);
    }

    /**
     * {@return the number of calls that exchanged all data before or after one matmul: {@link
     * Path#GATHERED}}
     */
    public long gathered() {
        return calls(Path.GATHERED);
    }

    /**
     * {@return the number of calls that used a collective of the group: all fallbacks, {@link
     * Path#NCCL}}
     */
    public long nccl() {
        return calls(Path.NCCL);
    }

    /**
     * {@return the number of calls that fell back for a reason}
     *
     * @param reason the reason
     * @throws IllegalArgumentException if the reason is null
     */
    public long fallbacks(FallbackReason reason) {
        if (reason == null) {
            throw new IllegalArgumentException("fallbacks: reason is null");
        }
        return fallbacks.get(reason.ordinal());
    }

    /** Ends counting; the numbers stay. Idempotent. */
    @Override
    public void close() {
        OPEN.remove(this);
    }
}
