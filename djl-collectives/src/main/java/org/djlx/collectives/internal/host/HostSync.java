/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;

/**
 * Lets the hosts of ranks on one machine, threads or processes, know of each other what they call
 * ({@link #publish}, {@link #difference}), and who has failed, died or left, without waiting; and
 * wait for each other where that is asked for ({@link #agree}). Internal: for backends whose data
 * goes another way. Whatever publishes or waits is used by one thread at a time, the rest by any.
 */
public final class HostSync implements AutoCloseable {

    // Channels of signals.
    private static final int GONE = 0;
    private static final int LAST_CALL = 1; // 1 + the number of a rank's last operation

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
     * Joins the other ranks; returns when all have.
     *
     * @param context the group and the rank
     * @return this rank's handle
     * @throws CollectiveException on all ranks, if they are not on one machine
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
     * Waits until all ranks have got to an operation and checks that it is the same one.
     *
     * @param operation the operation
     * @param captured whether it goes into a graph instead of running; that is compared as well
     * @throws CollectiveMismatchException on all ranks, if it is not
     * @throws CollectiveException if a rank is gone or does not come in time
     */
    public void agree(Operation operation, boolean captured) {
        rendezvous.begin(operation, captured);
        rendezvous.awaitAgreement(operation);
    }

    /**
     * Tells the others what this rank calls, to be compared with what they call when they do; does
     * not wait for them, unless one is {@value CallLog#SLOTS} calls behind.
     *
     * @param operation the operation
     * @param captured whether it goes into a graph instead of running
     * @throws CollectiveMismatchException if this call or one before differs from another rank's
     * @throws CollectiveException if a rank that is that far behind is gone or does not go on in
     *     time
     */
    public void publish(Operation operation, boolean captured) {
        for (int peer = 0; peer < worldSize; peer++) {
            if (!log.hasRoomFor(peer)) {
                // Here a host waits for another: what it has published must be compared before it
                // is overwritten. It has enqueued so much on its GPU that the driver would soon let
                // it wait anyway.
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
     * Compares what this rank and others have published.
     *
     * @return what each called, if something differs; otherwise null
     */
    public CollectiveMismatchException difference() {
        synchronized (log) {
            return difference(log.compare());
        }
    }

    /**
     * Tells who has {@linkplain #publish published} the fewest calls.
     *
     * @return the ranks; none if this one has not published more
     */
    public List<Integer> behind() {
        synchronized (log) {
            return log.behind();
        }
    }

    /**
     * Tells whether another rank has failed or died, and so will not do what it has begun. One that
     * has left has done so.
     *
     * @return what is known of the first such rank, or null
     */
    public String brokenRank() {
        return rendezvous.brokenRank();
    }

    /**
     * As {@link Rendezvous#failedRank}.
     *
     * @return what a rank told that cannot go on, or null
     */
    public String failedRank() {
        return rendezvous.failedRank();
    }

    /**
     * Tells the others that this rank cannot go on.
     *
     * @param reason why
     */
    public void fail(String reason) {
        rendezvous.fail(new CollectiveException(reason));
    }

    /**
     * Tells the others that this rank calls nothing more.
     *
     * @param last the number of its last operation, or 0
     */
    public void endCalls(long last) {
        for (int peer = 0; peer < worldSize; peer++) {
            rendezvous.signal(peer, LAST_CALL, (int) (last + 1));
        }
    }

    /**
     * Tells whether another rank calls nothing more and has not called an operation, which so never
     * ends.
     *
     * @param operation an operation of this rank
     * @return what is known of the first such rank, or null
     */
    public String departedBefore(Operation operation) {
        int number = (int) (operation.sequence() + 1);
        for (int peer = 0; peer < worldSize; peer++) {
            boolean has = rendezvous.isSignalled(peer, LAST_CALL, 1);
            if (has && peer != rank && !rendezvous.isSignalled(peer, LAST_CALL, number)) {
                return GroupErrors.left(peer);
            }
        }
        return null;
    }

    /** Makes waits of this rank fail, now and from now on. */
    public void end() {
        rendezvous.close();
    }

    /** Tells the others that this rank has left, and uses nothing of theirs any more. */
    public void leave() {
        rendezvous.close();
        rendezvous.leave();
        for (int peer = 0; peer < worldSize; peer++) {
            rendezvous.signal(peer, GONE, 1);
        }
    }

    /**
     * Tells whether all other ranks have left, or died.
     *
     * @return whether nobody uses what this rank shared with them
     */
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

    /** Leaves, and frees the memory. */
    @Override
    public void close() {
        leave();
        segment.close();
    }
}
