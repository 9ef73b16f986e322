// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.Liveness;

/**
 * The processes of a group's ranks. {@link #dead} checks the processes on this host, because NCCL
 * itself may wait forever for a process that has died.
 */
final class Peers {

    private static final long INTERVAL_NANOS = 100_000_000;

    private record Peer(int rank, String host, long pid, long startTime) {}

    private final List<Peer> peers;
    private long lastNanos = System.nanoTime() - INTERVAL_NANOS;

    private Peers(List<Peer> peers) {
        this.peers = peers;
    }

    /** Returns an empty set of peers. */
    static Peers none() {
        return new Peers(List.of());
    }

    /** Returns the identity of this process, to be sent to the other ranks. */
    static byte[] own() {
        long pid = ProcessHandle.current().pid();
        String text = Liveness.HOST + " " + pid + " " + Liveness.startTime(pid);
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Returns the peers with the identities of all ranks, in rank order. */
    static Peers of(List<byte[]> identities) {
        List<Peer> peers = new ArrayList<>();
        for (int rank = 0; rank < identities.size(); rank++) {
            peers.add(peer(rank, identities.get(rank)));
        }
        return new Peers(peers);
    }

    /** Returns these peers with the identity of one rank added or replaced. */
    Peers with(int rank, byte[] identity) {
        List<Peer> more = new ArrayList<>(peers);
        more.removeIf(peer -> peer.rank() == rank);
        more.add(peer(rank, identity));
        return new Peers(more);
    }

    private static Peer peer(int rank, byte[] identity) {
        String[] fields = new String(identity, StandardCharsets.UTF_8).split(" ");
        return new Peer(rank, fields[0], Long.parseLong(fields[1]), Long.parseLong(fields[2]));
    }

    /** Returns the peers of some ranks, renumbered in the order of the list. */
    Peers subset(List<Integer> ranks) {
        List<Peer> subset = new ArrayList<>();
        for (Peer peer : peers) {
            int rank = ranks.indexOf(peer.rank());
            if (rank >= 0) {
                subset.add(new Peer(rank, peer.host(), peer.pid(), peer.startTime()));
            }
        }
        return new Peers(subset);
    }

    /**
     * Returns an error message for a rank whose process on this host has died; empty if all run.
     * Checks at most every 100 ms.
     */
    synchronized Optional<String> dead() {
        long now = System.nanoTime();
        if (now - lastNanos < INTERVAL_NANOS) {
            return Optional.empty();
        }
        lastNanos = now;
        for (Peer peer : peers) {
            if (peer.host().equals(Liveness.HOST)
                    && !Liveness.isAlive(peer.pid(), peer.startTime())) {
                return Optional.of(GroupErrors.died(peer.rank(), peer.pid()));
            }
        }
        return Optional.empty();
    }
}
