/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

import java.util.Collection;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.LongWaits;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.internal.shm.Mailbox.Letter;
import org.djlx.collectives.spi.Operation;

/**
 * Decides when a message has failed, and with what: as its other end is gone, as it does not come
 * in time, as the two ends do not fit, or as this rank can run nothing any more. A message that
 * fails does not break the group.
 */
final class MessageFailures {

    private final Rendezvous rendezvous;
    private final int rank;
    private final int worldSize;
    private long lastLook; // for dead processes; by whoever drives the messages

    MessageFailures(Rendezvous rendezvous, int rank, int worldSize) {
        this.rendezvous = rendezvous;
        this.rank = rank;
        this.worldSize = worldSize;
    }

    /**
     * Why each rank takes no part any more; null for those that do. Whether a process lives is read
     * from files: only from time to time, and of those with which there is something under way.
     */
    String[] ends(boolean[] involved) {
        long now = System.nanoTime();
        boolean look = now - lastLook >= Rendezvous.CHECK_NANOS;
        lastLook = look ? now : lastLook;
        String[] ends = new String[worldSize];
        for (int peer = 0; peer < worldSize; peer++) {
            ends[peer] = rendezvous.announcedEndOf(peer);
            if (ends[peer] == null && look && involved[peer]) {
                ends[peer] = rendezvous.deathOf(peer);
            }
        }
        return ends;
    }

    /** The ranks that may be a message's other end. */
    IntStream peersOf(Transfer transfer) {
        return transfer.peer() == Transfer.ANY
                ? IntStream.range(0, worldSize).filter(peer -> peer != rank)
                : IntStream.of(transfer.peer());
    }

    /** Why a message ends now; null if it goes on. */
    CollectiveException reasonToEnd(Transfer transfer, String[] ends) {
        Operation operation = transfer.operation();
        CollectiveException obstacle = rendezvous.obstacle(operation);
        if (obstacle != null) {
            return obstacle;
        }
        List<Integer> left = peersOf(transfer).filter(peer -> ends[peer] == null).boxed().toList();
        if (left.isEmpty()) {
            boolean any = transfer.peer() == Transfer.ANY;
            String end = any ? "all other ranks are gone" : ends[transfer.peer()];
            return GroupErrors.gone(operation, rank, rendezvous.causeOf(end));
        }
        if (transfer.nanosLeft() > 0) {
            long waited = operation.timeout().toNanos() - transfer.nanosLeft();
            if (operation.takeWarning(waited)) {
                LongWaits.tell(
                        operation + " on rank " + rank,
                        GroupErrors.ranks(left),
                        waited,
                        operation.timeout());
            }
            return null;
        }
        return GroupErrors.timedOut(
                operation, rank, left, transfer.sends() ? "did not receive it" : "did not send");
    }

    /**
     * How long until the first of some messages is late, in nanoseconds, but no longer than a look.
     */
    static long nanosLeft(Collection<Transfer> transfers) {
        long least = Rendezvous.CHECK_NANOS;
        for (Transfer transfer : transfers) {
            least = Math.min(least, transfer.nanosLeft());
        }
        return Math.max(0, least);
    }

    /** The two ends of a message differ. */
    static CollectiveException misfit(Transfer transfer, int peer, Letter other) {
        return new CollectiveMismatchException(
                transfer.operation()
                        + " does not fit "
                        + Operation.describe(other.signature())
                        + " of rank "
                        + peer
                        + ": a message and its receive must have the same element type and number"
                        + " of elements");
    }

    /** The sender has withdrawn a message whose data was on its way. */
    CollectiveException withdrawn(Transfer receive, int source) {
        String end =
                "rank "
                        + source
                        + " gave up sending: its call timed out, or it has destroyed the group";
        return GroupErrors.gone(receive.operation(), rank, rendezvous.causeOf(end));
    }
}
