// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import java.util.Collection;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.LongWaits;
import org.djlx.collectives.spi.Operation;

/**
 * Decides when a message fails: its peer has left or died, it times out, the two ends do not match,
 * or this rank's group is broken or being destroyed. A failed message does not break the group.
 */
final class MessageFailures {

    private final PeerStates peers;
    private final int rank;
    private final int worldSize;
    private long lastCheck; // for dead processes; confined to the driving thread

    MessageFailures(PeerStates peers) {
        this.peers = peers;
        rank = peers.rank();
        worldSize = peers.worldSize();
    }

    /**
     * Returns, by rank, why the rank no longer participates; null if it participates. Reading
     * process states from files is slow, so they are read only periodically and for ranks with
     * running messages.
     */
    String[] ends(boolean[] involved) {
        long now = System.nanoTime();
        boolean check = now - lastCheck >= PeerStates.CHECK_NANOS;
        lastCheck = check ? now : lastCheck;
        String[] ends = new String[worldSize];
        for (int peer = 0; peer < worldSize; peer++) {
            ends[peer] = peers.announcedEndOf(peer);
            if (ends[peer] == null && check && involved[peer]) {
                ends[peer] = peers.deathOf(peer);
            }
        }
        return ends;
    }

    IntStream peersOf(Transfer transfer) {
        return transfer.peer() == Transfer.ANY
                ? IntStream.range(0, worldSize).filter(peer -> peer != rank)
                : IntStream.of(transfer.peer());
    }

    /** Returns the exception with which a message must fail now; null if it continues. */
    CollectiveException reasonToEnd(Transfer transfer, String[] ends) {
        Operation operation = transfer.operation();
        CollectiveException obstacle = peers.obstacle(operation);
        if (obstacle != null) {
            return obstacle;
        }
        List<Integer> left = peersOf(transfer).filter(peer -> ends[peer] == null).boxed().toList();
        if (left.isEmpty()) {
            boolean any = transfer.peer() == Transfer.ANY;
            String end = any ? "all other ranks have left or died" : ends[transfer.peer()];
            return GroupErrors.gone(operation, rank, peers.causeOf(end));
        }
        if (transfer.nanosLeft() > 0) {
            long waited = operation.timeout().toNanos() - transfer.nanosLeft();
            LongWaits.warnOnce(operation, rank, left, waited);
            return null;
        }
        return GroupErrors.timedOut(
                operation, rank, left, transfer.sends() ? "did not receive it" : "did not send");
    }

    /**
     * Returns the time until the first of some messages times out, in ns, at most the interval of
     * process checks.
     */
    static long nanosLeft(Collection<Transfer> transfers) {
        long least = PeerStates.CHECK_NANOS;
        for (Transfer transfer : transfers) {
            least = Math.min(least, transfer.nanosLeft());
        }
        return Math.max(0, least);
    }

    /** Returns the exception for a message whose two ends do not match. */
    static CollectiveException mismatch(Transfer transfer, int peer, Letter other) {
        return new CollectiveMismatchException(
                ("%s does not match %s of rank %s: a message and its receive must have the same"
                                + " element type and number of elements")
                        .formatted(
                                transfer.operation(), Operation.describe(other.signature()), peer));
    }

    /** Returns the exception for a message that the sender has withdrawn while it was received. */
    CollectiveException withdrawn(Transfer receive, int source) {
        String end =
                "rank "
                        + source
                        + " has withdrawn the message: its send timed out, or it has destroyed the"
                        + " group";
        return GroupErrors.gone(receive.operation(), rank, peers.causeOf(end));
    }
}
