/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.host;

import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.GroupContext;
import org.djlx.collectives.Operation;

/**
 * Lets the hosts of ranks on one machine, threads or processes, wait for each other, without data.
 * Internal: for backends whose data goes another way. Used by one thread at a time.
 */
public final class HostSync implements AutoCloseable {

    private static final int GONE = 0; // a channel of signals

    private final SharedSegment segment;
    private final Rendezvous rendezvous;
    private final int rank;
    private final int worldSize;

    private HostSync(SharedSegment segment, Rendezvous rendezvous, int rank, int worldSize) {
        this.segment = segment;
        this.rendezvous = rendezvous;
        this.rank = rank;
        this.worldSize = worldSize;
    }

    /**
     * Joins the other ranks; returns when all have.
     *
     * @param context the group and the rank
     * @return this rank's handle
     * @throws CollectiveException on all ranks, if they are not on one machine
     */
    public static HostSync join(GroupContext context) {
        SharedSegment segment =
                SharedSegment.map(context, ControlBlock.byteSize(context.worldSize()), List.of());
        int rank = context.rank();
        ControlBlock control = new ControlBlock(segment.memory(), context.worldSize());
        Rendezvous rendezvous = new Rendezvous(control, context.name(), rank, context.worldSize());
        long pid = ProcessHandle.current().pid();
        control.setActive(rank, pid, Liveness.startTime(pid));
        HostSync host = new HostSync(segment, rendezvous, rank, context.worldSize());
        try {
            host.agree(context.joining());
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
     * @throws CollectiveException if it is not, or if a rank is gone or does not come in time
     */
    public void agree(Operation operation) {
        rendezvous.begin(operation);
        rendezvous.awaitAgreement(operation);
    }

    /**
     * Waits until all ranks have got here, within an operation on which they have agreed.
     *
     * @param operation the operation
     * @throws CollectiveException if a rank is gone or does not come in time
     */
    public void meet(Operation operation) {
        rendezvous.synchronize(operation);
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
     * Tells the others that this rank cannot go on.
     *
     * @param reason why
     */
    public void fail(String reason) {
        rendezvous.fail(new CollectiveException(reason));
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
