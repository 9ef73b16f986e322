// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.IntPredicate;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.LongWaits;
import org.djlx.collectives.spi.Operation;

/**
 * The state of one rank's group: whether operations can run, and which ranks have left, failed or
 * died. A transport extends it with what its ranks tell each other, and with a doorbell by which
 * they wake each other. Thread-safe.
 *
 * <ul>
 *   <li>A group is usable until it is broken ({@link #fail}) or this rank destroys it ({@link
 *       #close}). Then {@link #obstacle} returns the exception of every call.
 *   <li>A wait of the transport calls {@link #checkWait} from time to time, which throws if the
 *       wait cannot succeed.
 *   <li>A thread sleeps with {@link #prepareSleep}, one more look at what it waits for, {@link
 *       #sleep} and {@link #endSleep}, so that a {@link #ring} after the look ends the sleep.
 * </ul>
 */
public abstract class PeerStates {

    /** The interval in ns at which a waiting rank looks for ends of processes. */
    public static final long CHECK_NANOS = 50_000_000;

    private final int rank;
    private final int worldSize;
    private final int ranksPerCore;
    private volatile boolean closing;
    private volatile CollectiveException broken;

    /**
     * Creates the state of a usable group. If ranks of this host share a core, a rank that waits
     * leaves the core to the others for longer.
     */
    protected PeerStates(int rank, int worldSize, int ranksPerCore) {
        GroupErrors.prepare();
        this.rank = rank;
        this.worldSize = worldSize;
        this.ranksPerCore = ranksPerCore;
    }

    /** Returns how many ranks share a core. */
    public static int ranksPerCore(int ranks) {
        int cores = Runtime.getRuntime().availableProcessors();
        return Math.max(1, (ranks + cores - 1) / cores);
    }

    /** Describes that a rank has destroyed the group, as {@link #announcedEndOf} does. */
    public static String left(int rank) {
        return GroupErrors.left(rank);
    }

    /** {@return this rank} */
    public final int rank() {
        return rank;
    }

    /** {@return the number of ranks} */
    public final int worldSize() {
        return worldSize;
    }

    final int ranksPerCore() {
        return ranksPerCore;
    }

    /**
     * Returns the exception with which a call must fail because the group is broken or being
     * destroyed; null if the call can run.
     */
    public final CollectiveException obstacle(Object call) {
        if (broken == null && !closing) {
            lost().map(GroupErrors::brokenBy).ifPresent(this::fail);
        }
        // Check the failure first: close() may follow a failure, but the failure is the cause.
        CollectiveException reason = broken;
        if (reason != null) {
            return GroupErrors.broken(call, reason);
        }
        return closing ? GroupErrors.destroyed(call) : null;
    }

    /**
     * {@return the description of an end that breaks the whole group, such as that of another host;
     * empty while there is none} Called often, so a slow check is made periodically.
     */
    protected Optional<String> lost() {
        return Optional.empty();
    }

    /**
     * Breaks the group: current and later waits of this rank fail, and the other ranks are told.
     * Only the first call has an effect.
     */
    public final synchronized void fail(CollectiveException reason) {
        if (broken == null) {
            broken = reason;
            announceFailure(reason);
        }
    }

    /**
     * Tells the other ranks that this rank has failed, unless it has left. Called once, with this
     * object's monitor held. Must not throw for a lack of memory or a failed transport.
     */
    protected abstract void announceFailure(CollectiveException reason);

    /**
     * {@return why the group is broken, also if another rank has failed or died; null if it is
     * usable} A transport that receives announcements only while it waits receives them first.
     * Excludes {@link #close}, after which the memory of the announcements may be unmapped.
     */
    public synchronized CollectiveException failure() {
        if (broken == null && !closing) {
            lost().map(GroupErrors::brokenBy).ifPresent(this::fail);
            for (int peer = 0; peer < worldSize; peer++) {
                String announced = announcedEndOf(peer);
                String end = announced == null ? deathOf(peer) : announced;
                if (end != null && !end.equals(left(peer))) {
                    fail(GroupErrors.brokenBy(causeOf(end)));
                }
            }
        }
        return broken;
    }

    /** {@return whether the group is broken} */
    public final boolean isBroken() {
        return broken != null;
    }

    /** Makes current and later waits of this rank fail, because it is destroying the group. */
    public synchronized void close() {
        closing = true;
        ring(rank);
    }

    /** {@return whether this rank is destroying the group} */
    protected final boolean isClosing() {
        return closing;
    }

    /**
     * Returns why a rank no longer takes part, as it has announced: {@link #left}, or its failure;
     * null if it has announced no end.
     */
    public abstract String announcedEndOf(int peer);

    /**
     * Describes the end of a rank's process; null if the process is alive, or if {@link #lost}
     * reports its end. Called at most every {@link #CHECK_NANOS}.
     */
    public String deathOf(int peer) {
        return null;
    }

    /**
     * Adds the likely cause to the description of a rank's end, such as the death of a third rank.
     */
    public String causeOf(String end) {
        return end;
    }

    /** {@return how often to check a condition before sleeping; 0 if ranks share cores} */
    public abstract int spins();

    /** Wakes a rank that sleeps, which may be this one. */
    public abstract void ring(int peer);

    /** {@return a value that the next {@link #ring} for this rank changes} */
    public abstract int prepareSleep();

    /** Sleeps while the value of {@link #prepareSleep} is unchanged. */
    public abstract void sleep(int value, long nanos);

    /** Ends what {@link #prepareSleep} began. */
    public abstract void endSleep();

    /**
     * Checks a wait of this rank; logs it if it is long.
     *
     * @param omission what the missing ranks did not do, such as {@code did not arrive}
     * @param ordered whether a rank that has left can no longer meet the condition; otherwise its
     *     data may still arrive
     * @param waited how long this rank has waited, in ns
     * @throws CollectiveException if the group is broken or being destroyed, this thread is
     *     interrupted, a missing rank has left, failed or died, or the operation has timed out
     */
    public final void checkWait(
            Operation operation,
            IntPredicate isMissing,
            String omission,
            boolean ordered,
            long waited) {
        CollectiveException obstacle = obstacle(operation);
        if (obstacle != null) {
            throw obstacle;
        }
        if (Thread.currentThread().isInterrupted()) {
            throw GroupErrors.interrupted(operation, null);
        }
        boolean timedOut = waited >= operation.timeout().toNanos();
        // Reading process states from files is slow: not before every short sleep.
        boolean processes = waited >= CHECK_NANOS || timedOut;
        List<Integer> missing = new ArrayList<>();
        for (int peer = 0; peer < worldSize; peer++) {
            // Read the state before the condition: a rank may arrive and then leave.
            String end = announcedEndOf(peer);
            if (end == null && processes) {
                end = deathOf(peer);
            }
            if (!isMissing.test(peer)) {
                continue;
            }
            if (end != null && (ordered || !end.equals(left(peer)))) {
                throw GroupErrors.gone(operation, rank, causeOf(end));
            }
            missing.add(peer);
        }
        if (missing.isEmpty()) {
            return;
        }
        if (timedOut) {
            throw GroupErrors.timedOut(operation, rank, missing, omission);
        }
        LongWaits.warnOnce(operation, rank, missing, waited);
    }
}
