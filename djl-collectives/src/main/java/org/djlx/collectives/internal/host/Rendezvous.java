/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.IntPredicate;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.Operation;
import org.djlx.collectives.internal.host.ControlBlock.State;

/**
 * Synchronises one rank with the others of its group, through the {@link ControlBlock}.
 *
 * <p>All ranks count the same synchronisations ("epochs"). A waiting thread spins for a short time
 * if there is a core for every rank, yields its core for a longer one, then sleeps on the rank's
 * doorbell.
 *
 * <p>{@link #begin}, {@link #arrive} and the waits on arrivals are called by one thread at a time,
 * the one that runs the group's current operation; signals may be raised and awaited by any thread.
 */
public final class Rendezvous {

    // About 2 microseconds. No more: ranks that share a core, whatever the number of cores, only
    // get on when the one that waits gives way.
    private static final int SPINS = 30;
    // For so long, for each rank that shares its core, a waiting thread gives way to whatever else
    // wants the core before it sleeps: more than waking a sleeper takes, or a rank that slept once
    // would make its peers sleep in turn, and so on for ever.
    private static final long YIELD_NANOS = 1_000_000;
    // How often a sleeper looks whether its peers still live: at first, and at last.
    public static final long CHECK_NANOS = 50_000_000;
    private static final long MAX_CHECK_NANOS = 400_000_000;

    private final ControlBlock control;
    private final String group;
    private final int rank;
    private final int worldSize;
    private final int spins;
    private final long yieldNanos;
    private final IntPredicate hasArrived = this::hasArrived; // One for all waits.
    private int epoch;
    private long begun; // operations; the same on all ranks
    private volatile boolean closing;

    public Rendezvous(ControlBlock control, String group, int rank, int worldSize) {
        this.control = control;
        this.group = group;
        this.rank = rank;
        this.worldSize = worldSize;
        this.spins = ranksPerCore(worldSize) == 1 ? SPINS : 0;
        this.yieldNanos = YIELD_NANOS * ranksPerCore(worldSize);
    }

    /** How many of a group's ranks, all on this host, share a core; at least 1. */
    public static int ranksPerCore(int worldSize) {
        int cores = Runtime.getRuntime().availableProcessors();
        return (worldSize + cores - 1) / cores;
    }

    /** Tells the others what this rank's next operation is, and that it is there. */
    public void begin(Operation operation) {
        begun++;
        control.putSignature(rank, begun, operation.signature());
        arrive();
    }

    /** Waits until all ranks have begun the operation and compares what each began. */
    public void awaitAgreement(Operation operation) {
        awaitArrivals(operation);
        for (int peer = 0; peer < worldSize; peer++) {
            if (!control.signatureEquals(peer, begun, operation.signature())) {
                throw new CollectiveMismatchException(disagreement(operation));
            }
        }
    }

    private String disagreement(Operation operation) {
        Map<String, List<Integer>> calls = new TreeMap<>();
        for (int peer = 0; peer < worldSize; peer++) {
            String call = Operation.describe(control.signature(peer, begun));
            calls.computeIfAbsent(call, k -> new ArrayList<>()).add(peer);
        }
        StringBuilder text = new StringBuilder();
        calls.forEach(
                (call, ranks) ->
                        text.append(text.length() == 0 ? "" : "; ")
                                .append(ranks(ranks))
                                .append(" called ")
                                .append(call));
        return "operation #"
                + operation.sequence()
                + " of group '"
                + group
                + "' is not the same on all ranks: "
                + text
                + "; all ranks must call the same operation with the same element type and shape";
    }

    /**
     * Reaches the next synchronisation: what this rank wrote before is visible to the ranks that
     * have waited for it.
     */
    public void arrive() {
        epoch++;
        control.setArrived(rank, epoch);
        ringOthers();
    }

    /** Waits until all ranks have reached the last synchronisation that this rank has reached. */
    public void awaitArrivals(Operation operation) {
        await(operation, hasArrived);
    }

    private boolean hasArrived(int peer) {
        return control.arrived(peer) - epoch >= 0;
    }

    /** Reaches the next synchronisation and waits for all ranks. */
    public void synchronize(Operation operation) {
        arrive();
        awaitArrivals(operation);
    }

    /** The number of synchronisations this rank has reached. */
    public int epoch() {
        return epoch;
    }

    public void signal(int peer, int channel, int value) {
        control.setSignal(peer, channel, rank, value);
        control.ring(peer);
    }

    public void awaitSignal(Operation operation, int peer, int channel, int value) {
        await(operation, p -> p != peer || isSignalled(peer, channel, value));
    }

    public boolean isSignalled(int peer, int channel, int value) {
        return control.signal(rank, channel, peer) - value >= 0;
    }

    /** Makes waits of this rank fail, now and from now on. */
    public void close() {
        closing = true;
        control.ring(rank);
    }

    /** Tells the others that this rank will not arrive any more. */
    public void leave() {
        if (control.state(rank) == State.ACTIVE) {
            control.setLeft(rank);
        }
        ringOthers();
    }

    /** Tells the others that this rank cannot go on, and why. */
    public void fail(String reason) {
        control.setFailed(rank, reason);
        ringOthers();
    }

    private void ringOthers() {
        for (int peer = 0; peer < worldSize; peer++) {
            if (peer != rank) {
                control.ring(peer);
            }
        }
    }

    /** How often to look before going to sleep. */
    public int spins() {
        return spins;
    }

    private void await(Operation operation, IntPredicate arrived) {
        int next = 0;
        for (int i = 0; i < spins; i++) {
            next = firstMissing(next, arrived);
            if (next == worldSize) {
                return;
            }
            Thread.onSpinWait();
        }
        if (!awaitYielding(next, arrived)) {
            awaitAsleep(operation, arrived);
        }
    }

    private boolean awaitYielding(int first, IntPredicate arrived) {
        int next = first;
        long start = System.nanoTime();
        while (System.nanoTime() - start < yieldNanos) {
            next = firstMissing(next, arrived);
            if (next == worldSize) {
                return true;
            }
            Thread.yield();
        }
        return false;
    }

    private int firstMissing(int from, IntPredicate arrived) {
        int next = from;
        while (next < worldSize && arrived.test(next)) {
            next++;
        }
        return next;
    }

    private void awaitAsleep(Operation operation, IntPredicate arrived) {
        long timeout = operation.timeout().toNanos();
        long start = System.nanoTime();
        long check = CHECK_NANOS;
        while (firstMissing(0, arrived) < worldSize) {
            long waited = System.nanoTime() - start;
            long left = timeout - waited;
            // Whether processes live is read from files: not before every short sleep.
            checkPossible(operation, arrived, left, waited >= CHECK_NANOS || left <= 0);
            int doorbell = control.prepareSleep(rank);
            try {
                if (firstMissing(0, arrived) < worldSize && !closing) {
                    control.sleep(rank, doorbell, Math.min(left, check));
                    check = Math.min(2 * check, MAX_CHECK_NANOS);
                }
            } finally {
                control.endSleep(rank);
            }
        }
    }

    private void checkPossible(
            Operation operation, IntPredicate arrived, long left, boolean processes) {
        if (closing) {
            throw new CollectiveException(operation + " was ended: this rank destroyed the group");
        }
        if (Thread.currentThread().isInterrupted()) {
            throw new CollectiveException(operation + " was interrupted on rank " + rank);
        }
        List<Integer> missing = new ArrayList<>();
        for (int peer = 0; peer < worldSize; peer++) {
            // The state is read first: a rank may arrive and then leave.
            String end = announcedEndOf(peer);
            if (end == null && processes) {
                end = deathOf(peer);
            }
            if (arrived.test(peer)) {
                continue;
            }
            if (end != null) {
                throw new CollectiveException(operation + " cannot complete: " + end);
            }
            missing.add(peer);
        }
        if (left <= 0 && !missing.isEmpty()) {
            throw new CollectiveTimeoutException(
                    operation
                            + " timed out on rank "
                            + rank
                            + " after "
                            + operation.timeout()
                            + ": "
                            + ranks(missing)
                            + " did not arrive",
                    missing);
        }
    }

    /** Why a rank takes no part any more, as far as it has said so; null if it does. */
    public String announcedEndOf(int peer) {
        switch (control.state(peer)) {
            case ABSENT:
                return null;
            case LEFT:
                return "rank " + peer + " has destroyed the group";
            case FAILED:
                return "rank " + peer + " failed: " + control.reason(peer);
            default:
                return null;
        }
    }

    /** What is known of a rank that will never do what it has begun; null if there is none. */
    public String brokenRank() {
        for (int peer = 0; peer < worldSize; peer++) {
            State state = control.state(peer);
            if (peer == rank || state == State.LEFT) {
                continue;
            }
            String end = state == State.FAILED ? announcedEndOf(peer) : deathOf(peer);
            if (end != null) {
                return end;
            }
        }
        return null;
    }

    /** How a rank died; null if its process runs, or is not known yet. This takes a system call. */
    public String deathOf(int peer) {
        if (control.state(peer) == State.ABSENT) {
            return null;
        }
        long pid = control.pid(peer);
        return Liveness.isAlive(pid, control.startTime(peer))
                ? null
                : "the process of rank " + peer + " (pid " + pid + ") has died";
    }

    public static String ranks(List<Integer> ranks) {
        return (ranks.size() == 1 ? "rank " : "ranks ")
                + ranks.toString().replaceAll("[\\[\\]]", "");
    }
}
