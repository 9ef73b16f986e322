// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;

/**
 * Host-side checks for GPU backends with all ranks (threads or processes) on one host. Ranks
 * compare their calls without waiting ({@link #publish}, {@link #difference}), or wait for each
 * other first ({@link #agree}). They also see which ranks have failed, died or left. Only one
 * thread at a time may call methods that publish or wait; any thread may call the other methods.
 */
public final class HostSync implements AutoCloseable {

    // Signal channels.
    private static final int GONE = 0;
    private static final int LAST_CALL = 1; // value: 1 + the number of the rank's last operation

    private final SharedSegment segment;
    private final Rendezvous rendezvous;
    private final CallLog log; // guarded by itself
    private final String group;
    private final int rank;
    private final int worldSize;

    private HostSync(GroupContext context, SharedSegment segment, Rendezvous rendezvous) {
        this.segment = segment;
        this.rendezvous = rendezvous;
        group = context.name();
        rank = context.rank();
        worldSize = context.worldSize();
        log = new CallLog(segment.memory(), ControlBlock.byteSize(worldSize), rank, worldSize);
    }

    /**
     * Joins the group; returns when all ranks have joined.
     *
     * @throws CollectiveException on all ranks, if the ranks are not on one host
     */
    public static HostSync join(GroupContext context) {
        int byteSize =
                ControlBlock.byteSize(context.worldSize()) + CallLog.byteSize(context.worldSize());
        SharedSegment segment = SharedSegment.map(context, byteSize, List.of());
        int rank = context.rank();
        Rendezvous rendezvous =
                new Rendezvous(segment.control(), context.name(), rank, context.worldSize());
        HostSync host = new HostSync(context, segment, rendezvous);
        try {
            host.agree(context.joining(), false);
        } catch (RuntimeException e) {
            host.close();
            throw e;
        }
        return host;
    }

    /**
     * Waits until all ranks have called an operation, and compares the calls, also whether they are
     * captured into a CUDA graph. Throws CollectiveMismatchException on all ranks if the calls do
     * not match, and CollectiveException if a rank has left, failed or died, or does not arrive in
     * time.
     */
    public void agree(Operation operation, boolean captured) {
        rendezvous.begin(operation, captured);
        rendezvous.awaitAgreement(operation);
    }

    /**
     * Publishes this rank's call, and compares it with the calls of other ranks as they arrive.
     * Waits only if a rank is {@value CallLog#SLOTS} calls behind. Throws
     * CollectiveMismatchException if this or an earlier call does not match, and
     * CollectiveException if that rank has left, failed or died, or does not continue in time.
     */
    public void publish(Operation operation, boolean captured) {
        for (int peer = 0; peer < worldSize; peer++) {
            if (!log.hasRoomFor(peer)) {
                // A call must be compared before its slot is overwritten, so the host waits here.
                // With so much work enqueued on the GPU, the driver would soon block the host
                // anyway.
                rendezvous.await(operation, log::hasRoomFor);
            }
        }
        CollectiveMismatchException difference;
        synchronized (log) {
            difference = difference(log.publish(operation.signature(), captured));
        }
        rendezvous.ringOthers();
        if (difference != null) {
            throw difference;
        }
    }

    private CollectiveMismatchException difference(int number) {
        return number == 0
                ? null
                : GroupErrors.outOfStep("call " + number, group, log.calls(number));
    }

    /**
     * Returns the mismatch of the published calls, with each rank's call; null if there is none.
     */
    public CollectiveMismatchException difference() {
        synchronized (log) {
            return difference(log.compare());
        }
    }

    /**
     * Returns the ranks that have {@linkplain #publish published} the fewest calls; empty if this
     * rank is one of them.
     */
    public List<Integer> slowestRanks() {
        synchronized (log) {
            return log.slowestRanks();
        }
    }

    /**
     * Describes the first other rank that has failed or died and so never completes its operations;
     * null if there is none. A rank that has left has completed its operations.
     */
    public String brokenRank() {
        return rendezvous.brokenRank();
    }

    /** Describes the first other rank that has announced a failure; null if there is none. */
    public String failedRank() {
        return rendezvous.failedRank();
    }

    public void fail(String reason) {
        rendezvous.fail(new CollectiveException(reason));
    }

    /**
     * Announces that this rank makes no more calls. {@code last} is the number of its last
     * operation; 0 if it has called none.
     */
    public void endCalls(long last) {
        for (int peer = 0; peer < worldSize; peer++) {
            rendezvous.signal(peer, LAST_CALL, last + 1);
        }
    }

    /**
     * Describes the first other rank that has ended its calls without calling an operation, which
     * never completes; null if there is none.
     */
    public String departedBefore(Operation operation) {
        long number = operation.sequence() + 1;
        for (int peer = 0; peer < worldSize; peer++) {
            boolean has = rendezvous.isSignalled(peer, LAST_CALL, 1);
            if (has && peer != rank && !rendezvous.isSignalled(peer, LAST_CALL, number)) {
                return GroupErrors.left(peer);
            }
        }
        return null;
    }

    /** Makes current and later waits of this rank fail. */
    public void end() {
        rendezvous.close();
    }

    /** Announces that this rank has left and no longer uses memory of other ranks. */
    public void leave() {
        rendezvous.close();
        rendezvous.leave();
        for (int peer = 0; peer < worldSize; peer++) {
            rendezvous.signal(peer, GONE, 1);
        }
    }

    /** Returns whether all other ranks have left or died; then no rank uses memory of this rank. */
    public boolean isAlone() {
        for (int peer = 0; peer < worldSize; peer++) {
            if (peer != rank
                    && !rendezvous.isSignalled(peer, GONE, 1)
                    && rendezvous.deathOf(peer) == null) {
                return false;
            }
        }
        return true;
    }

    /** Leaves the group and frees the memory. */
    @Override
    public void close() {
        leave();
        segment.close();
    }
}
