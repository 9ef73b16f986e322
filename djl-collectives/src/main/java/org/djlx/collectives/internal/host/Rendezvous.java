/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntPredicate;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.ControlBlock.State;
import org.djlx.collectives.spi.Operation;

/**
 * Decides when the hosts of a group's ranks meet while it is used, and how they wait. One instance
 * serves one rank, through the {@link ControlBlock}.
 *
 * <p>Hosts meet
 *
 * <ul>
 *   <li>at the beginning of an operation ({@link #begin}, {@link #awaitAgreement}), to compare what
 *       each called before anything is changed: a call that does not fit then leaves the group
 *       usable;
 *   <li>between the steps of an operation ({@link #synchronize}), if its data lie in memory that
 *       one host writes and others read: until all have written it may not be read, and until all
 *       have read, not written;
 *   <li>at a signal, which one rank raises for another;
 *   <li>if one has published so many more calls than another that the {@link CallLog} is full: what
 *       is published must be compared before it is overwritten. That the log has {@value
 *       CallLog#SLOTS} slots is an estimate of what a GPU queues before the driver lets the host
 *       wait, not a measurement.
 * </ul>
 *
 * <p>A backend whose data go another way ({@link HostSync}) orders them on the GPU. Its hosts meet
 * at the beginning of an operation only if calls are to be verified, and otherwise only when the
 * log is full.
 *
 * <p>Where the other rank is not one of this host, or what waits is not this code, hosts wait
 * elsewhere:
 *
 * <ul>
 *   <li>A message of {@code shm} waits for its other end alone ({@code MessageQueue}, {@code
 *       MessageDriver}). Ranks send each other different numbers of messages, so there are no
 *       epochs to count. Who waits spins as often as here ({@link #spins}) and then sleeps on the
 *       same doorbell; it does not yield in between, and whether it should is not measured.
 *   <li>NCCL sets up connections when an operation is the first of its kind, root and size, and the
 *       call returns when the other ranks have made it, too. A helper thread of {@code NcclQueue}
 *       makes such calls, as two groups whose first operations two ranks issue in different orders
 *       would otherwise wait for each other. What has to be behind them in the stream waits for the
 *       helper: an operation on another stream ({@code P2pQueue}), and a split. That is so once for
 *       each kind, and how long it takes is not measured.
 *   <li>With {@code nccl} alone, calls that are to be verified are compared through the store
 *       ({@code Verification}), as the ranks may be on several hosts; beside {@code cuda_p2p}, only
 *       the sizes of an all-to-all are. It is for finding errors, and its cost is not measured.
 *   <li>While a group is created or split, or a message is the first between two ranks of {@code
 *       nccl}, the ranks exchange values through the store ({@code GroupExchange}, {@code
 *       MessageQueues}): there is nothing else yet.
 * </ul>
 *
 * <p>All ranks count the same meetings ("epochs"). A rank that has come to one waits in three ways,
 * one after the other. It spins for about 2 µs, if there is a core for every rank: peers that are
 * not far apart meet within that time. Then it yields its core to whatever else wants it, for 1 ms
 * times the ranks that share a core: those can only come when this one gives way. Only then does it
 * sleep on the rank's doorbell: waking takes longer than a peer spins, so that a rank that slept
 * once would make its peers sleep in turn, and so on for ever. Measured on 2 cores as the median of
 * a float32 all-reduce, without and with the yielding: 4 KB between 2 threads 180 to 250 µs and 11
 * to 40, 1 MB between 2 processes 320 to 410 and 91 to 200, 4 KB between 8 processes 4600 to 7500
 * and 290 to 440. Spinning for longer takes the core from ranks that share it: 4 KB between such
 * ranks takes 15 to 17 µs instead of 10 to 13.
 *
 * <p>Who waits learns at once of a peer that says that it has failed or left, by looking from time
 * to time of one whose process has died, and gives up at the operation's deadline.
 *
 * <p>{@link #begin}, {@link #arrive} and the waits on arrivals are called by one thread at a time,
 * the one that runs the group's current operation; signals may be raised and awaited by any thread.
 */
public final class Rendezvous {

    // About 2 microseconds.
    private static final int SPINS = 30;
    private static final long YIELD_NANOS = 1_000_000; // for each rank that shares a core

    /** How often a sleeper looks at first whether its peers still live. */
    public static final long CHECK_NANOS = 50_000_000;

    private static final long MAX_CHECK_NANOS = 400_000_000; // and at last
    private static final byte[] NO_TEXT =
            "no memory was left to say why".getBytes(StandardCharsets.UTF_8);

    private final ControlBlock control;
    private final String group;
    private final int rank;
    private final int worldSize;
    private final int spins;
    private final long yieldNanos;
    private final IntPredicate hasArrived = this::hasArrived; // One for all waits.
    private final IntPredicate hasStayed = this::hasStayed;
    private final long[] call = new long[CallWords.COUNT]; // what was begun last
    private int epoch;
    private long begun; // operations; the same on all ranks
    private boolean left; // the memory; guarded by this
    private volatile boolean closing;
    private volatile CollectiveException broken;

    /**
     * Creates a rank's part.
     *
     * @param control what the ranks share
     * @param group the group's name
     * @param rank this rank
     * @param worldSize the number of ranks
     */
    public Rendezvous(ControlBlock control, String group, int rank, int worldSize) {
        GroupErrors.prepare();
        this.control = control;
        this.group = group;
        this.rank = rank;
        this.worldSize = worldSize;
        this.spins = ranksPerCore(worldSize) == 1 ? SPINS : 0;
        this.yieldNanos = YIELD_NANOS * ranksPerCore(worldSize);
    }

    /**
     * Tells how many of a group's ranks, all on this host, share a core.
     *
     * @param worldSize the number of ranks
     * @return the number, at least 1
     */
    public static int ranksPerCore(int worldSize) {
        int cores = Runtime.getRuntime().availableProcessors();
        return (worldSize + cores - 1) / cores;
    }

    /**
     * Tells the others what this rank's next operation is, and that it is there.
     *
     * @param operation the operation
     */
    public void begin(Operation operation) {
        begin(operation, false);
    }

    /**
     * As {@link #begin(Operation)}, for operations that may go into a graph.
     *
     * @param operation the operation
     * @param captured whether it goes into a graph instead of running
     */
    void begin(Operation operation, boolean captured) {
        begun++;
        CallWords.put(call, operation.signature(), captured);
        control.putCall(rank, begun, call);
        arrive();
    }

    /**
     * Waits until all ranks have begun the operation and compares what each began.
     *
     * @param operation the operation
     * @throws CollectiveException as {@link #awaitArrivals}
     * @throws org.djlx.collectives.CollectiveMismatchException on all ranks, if it is not the same
     */
    public void awaitAgreement(Operation operation) {
        awaitArrivals(operation);
        for (int peer = 0; peer < worldSize; peer++) {
            if (!control.callEquals(peer, begun, call)) {
                throw GroupErrors.disagreement(operation, group, calls());
            }
        }
    }

    private List<long[]> calls() {
        return IntStream.range(0, worldSize).mapToObj(peer -> control.call(peer, begun)).toList();
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

    /**
     * Waits until all ranks have reached the last synchronisation that this rank has reached. This
     * either succeeds on all ranks or on none: one that comes after others have given up must not
     * go on with what these will not do.
     *
     * <p>A rank that gives up says so, then looks once more whether all have come. If not, those
     * that are missing will read, after they have come, that it has given up. If all have, it takes
     * it back: some may have seen all arrivals before it gave up.
     *
     * @param operation the operation that needs it
     * @throws CollectiveException if a rank is gone or does not come in time
     */
    public void awaitArrivals(Operation operation) {
        try {
            await(operation, hasArrived);
        } catch (RuntimeException | Error e) {
            control.setGivenUp(rank, epoch);
            if (firstMissing(0, hasArrived) < worldSize) {
                throw e;
            }
            control.setGivenUp(rank, 0);
            ringOthers();
        }
        if (firstMissing(0, hasStayed) < worldSize) {
            await(operation, hasStayed); // Until it is taken back, or that rank has failed.
        }
    }

    private boolean hasStayed(int peer) {
        return control.givenUp(peer) != epoch;
    }

    private boolean hasArrived(int peer) {
        return control.arrived(peer) - epoch >= 0;
    }

    /**
     * Reaches the next synchronisation and waits for all ranks.
     *
     * @param operation the operation that needs it
     * @throws CollectiveException as {@link #awaitArrivals}
     */
    public void synchronize(Operation operation) {
        arrive();
        awaitArrivals(operation);
    }

    /**
     * Returns the number of synchronisations this rank has reached.
     *
     * @return the number, which wraps around
     */
    public int epoch() {
        return epoch;
    }

    /**
     * Raises a signal for a rank; what this rank wrote before is visible to it then.
     *
     * @param peer the rank
     * @param channel which signal
     * @param value its value
     */
    public void signal(int peer, int channel, int value) {
        control.setSignal(peer, channel, rank, value);
        control.ring(peer);
    }

    /**
     * Waits until a rank has raised a signal for this one.
     *
     * @param operation the operation that needs it
     * @param peer the rank that raises it
     * @param channel which signal
     * @param value the least value
     * @throws CollectiveException if the rank is gone or does not do so in time
     */
    public void awaitSignal(Operation operation, int peer, int channel, int value) {
        await(operation, p -> p != peer || isSignalled(peer, channel, value));
    }

    /**
     * Tells whether a rank has raised a signal for this one.
     *
     * @param peer the rank that raises it
     * @param channel which signal
     * @param value the least value
     * @return whether it has
     */
    public boolean isSignalled(int peer, int channel, int value) {
        return control.signal(rank, channel, peer) - value >= 0;
    }

    /** Makes waits of this rank fail, now and from now on: the group is about to be destroyed. */
    public void close() {
        closing = true;
        control.ring(rank);
    }

    /**
     * Tells the others that this rank will not arrive any more. From then on the memory is not
     * touched, and may be unmapped.
     */
    public synchronized void leave() {
        if (control.state(rank) == State.ACTIVE) {
            control.setLeft(rank);
        }
        ringOthers();
        left = true;
    }

    /**
     * Breaks the group: tells the others that this rank cannot go on, and makes its own waits fail,
     * now and from now on. Only the first reason counts. Any thread may call it.
     *
     * @param reason why
     */
    public synchronized void fail(CollectiveException reason) {
        if (broken != null) {
            return;
        }
        broken = reason;
        if (!left) { // The code of an operation may have destroyed the group itself.
            control.setFailed(rank, textOf(reason));
            control.ring(rank);
            ringOthers();
        }
    }

    private static byte[] textOf(CollectiveException reason) {
        try {
            return ControlBlock.encoded(reason.getMessage());
        } catch (RuntimeException | Error e) {
            return NO_TEXT; // Memory has run out: that the rank has failed is what counts.
        }
    }

    /** Wakes those of the others that sleep, after a change that they may wait for. */
    public void ringOthers() {
        for (int peer = 0; peer < worldSize; peer++) {
            if (peer != rank) {
                control.ring(peer);
            }
        }
    }

    /**
     * Tells how often to look before going to sleep.
     *
     * @return the number of looks; 0 if ranks share cores
     */
    public int spins() {
        return spins;
    }

    /**
     * Waits until something holds of every rank.
     *
     * @param operation what it is waited for, for its timeout and for messages
     * @param arrived tells whether it holds of a rank, which rings when that may have changed
     */
    public void await(Operation operation, IntPredicate arrived) {
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
            List<Integer> missing =
                    checkPossible(operation, arrived, left, waited >= CHECK_NANOS || left <= 0);
            if (!missing.isEmpty() && operation.takeWarning(waited)) {
                LongWaits.tell(
                        operation + " on rank " + rank,
                        GroupErrors.ranks(missing),
                        waited,
                        operation.timeout());
            }
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

    /** Throws if it is in vain to wait; returns whom for. */
    private List<Integer> checkPossible(
            Operation operation, IntPredicate arrived, long left, boolean processes) {
        CollectiveException obstacle = obstacle(operation);
        if (obstacle != null) {
            throw obstacle;
        }
        if (Thread.currentThread().isInterrupted()) {
            throw GroupErrors.interrupted(operation, null);
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
                throw GroupErrors.gone(operation, rank, causeOf(end));
            }
            missing.add(peer);
        }
        if (left <= 0 && !missing.isEmpty()) {
            throw GroupErrors.timedOut(operation, rank, missing, "did not arrive");
        }
        return missing;
    }

    /**
     * Why this rank can run nothing any more.
     *
     * @param call what it would run
     * @return with what the call ends; null if nothing is known that keeps it from running
     */
    public CollectiveException obstacle(Object call) {
        // Who has broken the group may then end the waits: it is why it broke that counts.
        CollectiveException reason = broken;
        if (reason != null) {
            return GroupErrors.broken(call, reason);
        }
        return closing ? GroupErrors.destroyed(call) : null;
    }

    /**
     * Tells why a rank takes no part any more, as far as it has said so.
     *
     * @param peer the rank
     * @return why; null if it takes part
     */
    public String announcedEndOf(int peer) {
        switch (control.state(peer)) {
            case ABSENT:
                return null;
            case LEFT:
                return GroupErrors.left(peer);
            case FAILED:
                return "rank " + peer + " failed: " + control.reason(peer);
            default:
                return null;
        }
    }

    /**
     * Adds to what became of a rank the death of another, if there is one: who learns of it first
     * may have destroyed the group before this rank has looked at the processes. This takes a
     * system call for each rank.
     *
     * @param end what became of a rank
     * @return what to tell the user
     */
    public String causeOf(String end) {
        for (int peer = 0; peer < worldSize; peer++) {
            String death = control.state(peer) == State.ACTIVE ? deathOf(peer) : null;
            if (death != null && !end.contains(GroupErrors.died(peer, control.pid(peer)))) {
                return death + "; " + end;
            }
        }
        return end;
    }

    /**
     * Tells what is known of a rank that will never do what it has begun.
     *
     * @return what became of the first such rank; null if there is none
     */
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

    /**
     * Tells what is known of a rank that has told that it cannot go on.
     *
     * @return what it told, of the first such rank; null if there is none
     */
    public String failedRank() {
        for (int peer = 0; peer < worldSize; peer++) {
            if (peer != rank && control.state(peer) == State.FAILED) {
                return announcedEndOf(peer);
            }
        }
        return null;
    }

    /**
     * Tells how a rank's process ended. This takes a system call.
     *
     * @param peer the rank
     * @return how; null if its process runs, or is not known yet
     */
    public String deathOf(int peer) {
        if (control.state(peer) == State.ABSENT) {
            return null;
        }
        long pid = control.pid(peer);
        if (Liveness.isAlive(pid, control.startTime(peer))) {
            return null;
        }
        // It says nothing any more: what it said last is all that it said.
        return control.state(peer) == State.LEFT
                ? GroupErrors.left(peer)
                : GroupErrors.died(peer, pid) + " without destroying the group";
    }
}
