// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.spi.GroupContext;

/**
 * The processes of a group's ranks. {@link #dead} checks the processes on this host, because NCCL
 * itself may wait forever for a process that has died. Other hosts send heartbeats ({@link
 * HostWatch}).
 */
public final class Peers implements AutoCloseable {

    private static final long INTERVAL_NANOS = 100_000_000;

    /**
     * The process of a rank.
     *
     * @param watchedRank its rank in the group whose hosts are watched: that of {@link #of}
     */
    private record Peer(
            int rank, int watchedRank, String host, long pid, long startTime, String name) {

        Peer withRank(int other) {
            return new Peer(other, watchedRank, host, pid, startTime, name);
        }
    }

    private final List<Peer> peers;
    private final HostWatch hosts; // null if all ranks are on one host
    private long lastNanos = System.nanoTime() - INTERVAL_NANOS;

    private Peers(List<Peer> peers, HostWatch hosts) {
        this.peers = peers;
        this.hosts = hosts;
    }

    /** Returns an empty set of peers. */
    public static Peers none() {
        return new Peers(List.of(), null);
    }

    /** Returns the identity of this process, to be sent to the other ranks. */
    public static byte[] own() {
        long pid = ProcessHandle.current().pid();
        String process = Liveness.HOST + " " + pid + " " + Liveness.startTime(pid);
        String text = process + " " + Liveness.HOST_NAME;
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /**
     * Returns the peers with the identities of all ranks, in rank order. If they are on several
     * hosts, these watch each other through the group's store from now on.
     */
    public static Peers of(GroupContext context, List<byte[]> identities) {
        List<Peer> peers = new ArrayList<>();
        for (int rank = 0; rank < identities.size(); rank++) {
            peers.add(peer(rank, identities.get(rank)));
        }
        List<String> hosts = peers.stream().map(Peer::host).distinct().toList();
        if (hosts.size() < 2) {
            return new Peers(peers, null);
        }
        String here = peers.get(context.rank()).host();
        String next = hosts.get((hosts.indexOf(here) + 1) % hosts.size());
        boolean first = ranksOn(here, peers).get(0) == context.rank();
        List<Integer> watched = first ? ranksOn(next, peers) : List.of();
        String name = peers.get(ranksOn(next, peers).get(0)).name();
        return new Peers(
                peers,
                new HostWatch(context.name(), context.store(), context.rank(), name, watched));
    }

    private static List<Integer> ranksOn(String host, List<Peer> peers) {
        return peers.stream().filter(peer -> peer.host().equals(host)).map(Peer::rank).toList();
    }

    /** Returns these peers with the identity of one rank added or replaced. */
    public Peers with(int rank, byte[] identity) {
        List<Peer> more = new ArrayList<>(peers);
        more.removeIf(peer -> peer.rank() == rank);
        more.add(peer(rank, identity));
        return new Peers(more, hosts);
    }

    private static Peer peer(int rank, byte[] identity) {
        String[] fields = new String(identity, StandardCharsets.UTF_8).split(" ");
        long pid = Long.parseLong(fields[1]);
        return new Peer(rank, rank, fields[0], pid, Long.parseLong(fields[2]), fields[3]);
    }

    /**
     * Returns the peers of some ranks, renumbered in the order of the list. Until these peers are
     * closed, the subset reports the failures of other hosts, too, with the ranks of this group.
     */
    public Peers subset(List<Integer> ranks) {
        List<Peer> subset = new ArrayList<>();
        for (Peer peer : peers) {
            int rank = ranks.indexOf(peer.rank());
            if (rank >= 0) {
                subset.add(peer.withRank(rank));
            }
        }
        return new Peers(subset, hosts);
    }

    /**
     * Returns an error message for a rank whose process on this host has died, or for another host
     * that has; empty if all run. Checks at most every 100 ms.
     */
    public synchronized Optional<String> dead() {
        long now = System.nanoTime();
        if (now - lastNanos < INTERVAL_NANOS) {
            return Optional.empty();
        }
        lastNanos = now;
        for (Peer peer : peers) {
            if (peer.host().equals(Liveness.HOST)
                    && !Liveness.isAlive(peer.pid(), peer.startTime())) {
                if (hosts != null) {
                    hosts.report(GroupErrors.died(peer.watchedRank(), peer.pid()));
                }
                return Optional.of(GroupErrors.died(peer.rank(), peer.pid()));
            }
        }
        return hosts == null ? Optional.empty() : hosts.dead();
    }

    /** Tells other hosts that this rank leaves in order. */
    @Override
    public void close() {
        if (hosts != null) {
            hosts.close();
        }
    }
}
