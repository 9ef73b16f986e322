// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.BitSet;
import java.util.List;
import java.util.function.IntPredicate;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.internal.host.ControlBlock.State;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.cpu.PeerStates;

/**
 * Synchronises the hosts of a group's ranks, through the {@link ControlBlock}. One instance serves
 * one rank.
 *
 * <h2>When hosts synchronise</h2>
 *
 * <ul>
 *   <li>At the start of an operation ({@link #begin}, {@link #awaitAgreement}), to compare the
 *       calls before anything changes. A mismatch then leaves the group usable.
 *   <li>Between the steps of an operation ({@link #synchronize}), if hosts read each other's
 *       memory: a host reads after all hosts have written, and overwrites after all hosts have
 *       read.
 *   <li>At a signal from one rank to another, and at a barrier of some ranks ({@link #meet}).
 *   <li>When one rank has published so many more calls than another that the {@link CallLog} is
 *       full, because calls must be compared before they are overwritten. Its {@value
 *       CallLog#SLOTS} slots are an estimate of how many operations a GPU queues before the driver
 *       blocks the host; not measured.
 * </ul>
 *
 * <p>A GPU backend ({@link HostSync}) orders its data on the GPU. Its hosts synchronise at the
 * start of an operation only with {@code DebugLevel.DETAIL}, and otherwise only when the log is
 * full.
 *
 * <p>{@code docs/design/memory-and-signals.md} names the waits of hosts in other classes.
 *
 * <h2>How a rank waits</h2>
 *
 * <p>All ranks count the same synchronisations ("epochs"). A waiting rank goes through three
 * phases:
 *
 * <ol>
 *   <li>Spin for about 2 µs, if there is a core for every rank. Peers that run in lockstep arrive
 *       within that time.
 *   <li>Yield the core for 1 ms times the number of ranks that share a core. Such peers cannot
 *       arrive before this rank yields.
 *   <li>Sleep on the doorbell. Waking takes longer than a peer spins. Without the second phase one
 *       sleep would therefore make all peers sleep, one after the other.
 * </ol>
 *
 * <p>Longer spinning takes the core from ranks that share it. {@code
 * docs/design/experiments/signals.md} has the measurements.
 *
 * <p>A waiting rank notices immediately if a peer announces that it has failed or left, checks
 * periodically whether processes are alive, and stops at the operation's deadline.
 *
 * <h2>Threads</h2>
 *
 * <p>{@link #begin}, {@link #arrive}, {@link #meet} and the waits for arrivals are called by one
 * thread at a time, which runs the group's current operation. Any thread may send and await
 * signals.
 */
public final class Rendezvous extends PeerStates {

    // About 2 microseconds.
    private static final int SPINS = 30;
    private static final long YIELD_NANOS = 1_000_000; // per rank that shares a core

    private static final long MAX_CHECK_NANOS = 400_000_000; // the interval doubles up to this
    private static final byte[] NO_TEXT =
            "memory ran out before the reason could be recorded".getBytes(StandardCharsets.UTF_8);

    private final ControlBlock control;
    private final String group;
    private final int rank;
    private final int worldSize;
    private final int spins;
    private final long yieldNanos;
    private final IntPredicate hasArrived = this::hasArrived; // allocated once
    private final IntPredicate isWaiting = this::isWaiting;
    private final long[] call = new long[CallWords.COUNT]; // of the last operation begun
    private final int[] barriers; // by peer: barriers of some ranks that include it
    private int epoch;
    private long begun; // number of operations begun; the same on all ranks
    private boolean left; // whether the memory may be unmapped; guarded by this

    public Rendezvous(ControlBlock control, String group, int rank, int worldSize) {
        super(rank, worldSize, ranksPerCore(worldSize));
        this.control = control;
        this.group = group;
        this.rank = rank;
        this.worldSize = worldSize;
        this.barriers = new int[worldSize];
        this.spins = ranksPerCore(worldSize) == 1 ? SPINS : 0;
        this.yieldNanos = YIELD_NANOS * ranksPerCore(worldSize);
    }

    /** Publishes this rank's next operation, and arrives at it. */
    public void begin(Operation operation) {
        begin(operation, false);
    }

    /** As {@link #begin(Operation)}, for operations that may be captured into a graph. */
    void begin(Operation operation, boolean captured) {
        begun++;
        CallWords.put(call, operation.signature(), captured);
        control.putCall(rank, begun, call);
        arrive();
    }

    /**
     * Waits until all ranks have begun the operation, as {@link #awaitArrivals}, and compares their
     * calls; throws a CollectiveMismatchException on all ranks if they do not match.
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
     * Arrives at the next synchronisation. Ranks that have waited for it see earlier writes of this
     * rank.
     */
    public void arrive() {
        epoch++;
        control.setArrived(rank, epoch);
        ringOthers();
    }

    /**
     * Waits until all ranks have arrived at this rank's last synchronisation. It succeeds on all
     * ranks or on none: a rank that arrives after another has stopped waiting must not continue
     * alone.
     *
     * <p>Protocol: a rank that stops waiting announces it, then checks the arrivals once more. If a
     * rank is still missing, that rank will read the announcement after it arrives. If all have
     * arrived, the announcement is revoked, because another rank may have seen all arrivals before
     * it was made.
     *
     * @throws CollectiveException if a rank has left, failed or died, or does not arrive in time
     */
    public void awaitArrivals(Operation operation) {
        try {
            await(operation, hasArrived);
        } catch (RuntimeException | Error e) {
            control.setAbandoned(rank, epoch);
            if (firstMissing(0, hasArrived) < worldSize) {
                throw e;
            }
            control.setAbandoned(rank, 0);
            ringOthers();
        }
        if (firstMissing(0, isWaiting) < worldSize) {
            await(
                    operation,
                    isWaiting); // Until the announcement is revoked, or the announcing rank has
            // failed.
        }
    }

    private boolean isWaiting(int peer) {
        return control.abandoned(peer) != epoch;
    }

    private boolean hasArrived(int peer) {
        return control.arrived(peer) - epoch >= 0;
    }

    /** Arrives at the next synchronisation and waits for all ranks, as {@link #awaitArrivals}. */
    public void synchronize(Operation operation) {
        arrive();
        awaitArrivals(operation);
    }

    /**
     * Returns the number of synchronisations at which this rank has arrived, which wraps around.
     */
    public int epoch() {
        return epoch;
    }

    /** Signals a peer. A rank that sees the signal also sees earlier writes of this rank. */
    public void signal(int peer, int channel, long value) {
        control.setSignal(peer, channel, rank, value);
        control.ring(peer);
    }

    /**
     * Waits for a signal of at least a value from a rank; throws if the rank has left, failed or
     * died, or does not signal in time.
     */
    public void awaitSignal(Operation operation, int peer, int channel, long value) {
        await(operation, p -> p != peer || isSignalled(peer, channel, value));
    }

    /** Returns whether a rank has sent a signal of at least a value. */
    public boolean isSignalled(int peer, int channel, long value) {
        return control.signal(rank, channel, peer) >= value;
    }

    /**
     * Barrier of some ranks, ascending, this rank included. Each pair of ranks counts its barriers,
     * so barriers of other ranks do not disturb it. Throws if one of them has left, failed or died,
     * does not arrive in time, or names other ranks.
     */
    public void meet(Operation operation, int[] ranks) {
        int hash = Arrays.hashCode(ranks);
        BitSet peers = new BitSet();
        for (int peer : ranks) {
            if (peer != rank) {
                peers.set(peer);
                barriers[peer]++;
                control.setBarrier(peer, rank, barriers[peer], hash);
                control.ring(peer);
            }
        }
        await(operation, p -> !peers.get(p) || control.barrier(rank, p) - barriers[p] >= 0);
        for (int peer : ranks) {
            if (peer != rank && control.barrierRanks(rank, peer, barriers[peer]) != hash) {
                throw new CollectiveMismatchException(
                        operation
                                + " failed on rank "
                                + rank
                                + ": "
                                + GroupErrors.otherRanks(
                                        "this rank",
                                        IntStream.of(ranks).boxed().toList(),
                                        "rank " + peer),
                        true);
            }
        }
    }

    /**
     * Announces that this rank has left. Afterwards this object does not access the memory, which
     * may be unmapped.
     */
    public synchronized void leave() {
        if (control.state(rank) == State.ACTIVE) {
            control.setLeft(rank);
        }
        ringOthers();
        left = true;
    }

    @Override
    protected void announceFailure(CollectiveException reason) {
        if (!left) { // An operation's code may have destroyed the group.
            control.setFailed(rank, textOf(reason));
            control.ring(rank);
            ringOthers();
        }
    }

    private static byte[] textOf(CollectiveException reason) {
        try {
            return ControlBlock.encoded(reason.getMessage());
        } catch (RuntimeException | Error e) {
            return NO_TEXT; // Out of memory: at least announce the failure.
        }
    }

    /** Wakes the other ranks if they sleep, after a change for which they may wait. */
    public void ringOthers() {
        for (int peer = 0; peer < worldSize; peer++) {
            if (peer != rank) {
                control.ring(peer);
            }
        }
    }

    @Override
    public int spins() {
        return spins;
    }

    @Override
    public void ring(int peer) {
        control.ring(peer);
    }

    @Override
    public int prepareSleep() {
        return control.prepareSleep(rank);
    }

    @Override
    public void sleep(int value, long nanos) {
        control.sleep(rank, value, nanos);
    }

    @Override
    public void endSleep() {
        control.endSleep(rank);
    }

    /**
     * Waits until a condition holds for every rank, which rings the doorbell after it changes the
     * condition. Throws if a rank that does not meet the condition has left, failed or died, or at
     * the timeout.
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
            checkWait(operation, arrived.negate(), "did not arrive", true, waited);
            int doorbell = prepareSleep();
            try {
                if (firstMissing(0, arrived) < worldSize && !isClosing()) {
                    sleep(doorbell, Math.min(timeout - waited, check));
                    check = Math.min(2 * check, MAX_CHECK_NANOS);
                }
            } finally {
                endSleep();
            }
        }
    }

    /**
     * Describes why a rank no longer participates, if it has announced that; null if it
     * participates or has not joined yet.
     */
    @Override
    public String announcedEndOf(int peer) {
        return switch (control.state(peer)) {
            case ABSENT, ACTIVE -> null;
            case LEFT -> GroupErrors.left(peer);
            case FAILED -> "rank " + peer + " failed: " + control.reason(peer);
        };
    }

    /**
     * Adds the likely cause to the description of a rank's end, if another rank has died: the first
     * rank that notices a death may destroy the group before this rank has checked the processes.
     * Takes a system call per rank.
     */
    @Override
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
     * Describes the first other rank that has failed or died, and so never completes its
     * operations; null if there is none.
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
     * Describes the first other rank that has announced a failure, with its reason; null if there
     * is none.
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
     * Describes the end of a rank's process; null if it is alive or the rank has not joined yet.
     * Takes a system call.
     */
    @Override
    public String deathOf(int peer) {
        if (control.state(peer) == State.ABSENT) {
            return null;
        }
        long pid = control.pid(peer);
        if (Liveness.isAlive(pid, control.startTime(peer))) {
            return null;
        }
        // Read the state again: it is final now that the process has ended.
        return control.state(peer) == State.LEFT
                ? GroupErrors.left(peer)
                : GroupErrors.died(peer, pid) + " without destroying the group";
    }
}
