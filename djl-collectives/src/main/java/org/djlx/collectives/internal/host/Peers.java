// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.spi.PeerWatch;
import org.djlx.collectives.store.Store;

/**
 * The processes of a group's ranks. {@link #dead} checks the processes on this host, because NCCL
 * itself may wait forever for a process that has died. Other hosts send heartbeats ({@link
 * HostWatch}).
 */
public final class Peers implements PeerWatch {

    private static final long INTERVAL_NANOS = 100_000_000;

    /**
     * The process of a rank, and its rank in the group whose hosts are watched: that of {@link
     * #of}.
     */
    private record Peer(int rank, int watchedRank, RankProcess process) {

        String host() {
            return process.host();
        }
    }

    private final List<Peer> peers;
    private final HostWatch hosts; // null if all ranks are on one host
    private long lastNanos = System.nanoTime() - INTERVAL_NANOS;

    private Peers(List<Peer> peers, HostWatch hosts) {
        this.peers = peers;
        this.hosts = hosts;
    }

    public static Peers none() {
        return new Peers(List.of(), null);
    }

    /**
     * Returns the peers with the processes of all ranks, in rank order. If they are on several
     * hosts, these watch each other through the group's store from now on.
     */
    public static Peers of(String group, int rank, Store store, List<RankProcess> processes) {
        List<Peer> peers = new ArrayList<>();
        for (int peer = 0; peer < processes.size(); peer++) {
            peers.add(new Peer(peer, peer, processes.get(peer)));
        }
        List<String> hosts = peers.stream().map(Peer::host).distinct().toList();
        if (hosts.size() < 2) {
            return new Peers(peers, null);
        }
        String here = peers.get(rank).host();
        String next = hosts.get((hosts.indexOf(here) + 1) % hosts.size());
        boolean first = ranksOn(here, peers).get(0) == rank;
        List<Integer> watched = first ? ranksOn(next, peers) : List.of();
        String name = peers.get(ranksOn(next, peers).get(0)).process().hostName();
        return new Peers(peers, new HostWatch(group, store, rank, name, watched));
    }

    private static List<Integer> ranksOn(String host, List<Peer> peers) {
        return peers.stream().filter(peer -> peer.host().equals(host)).map(Peer::rank).toList();
    }

    /** Returns these peers with the process of one rank added or replaced. */
    public Peers with(int rank, RankProcess process) {
        List<Peer> more = new ArrayList<>(peers);
        more.removeIf(peer -> peer.rank() == rank);
        more.add(new Peer(rank, rank, process));
        return new Peers(more, hosts);
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
                subset.add(new Peer(rank, peer.watchedRank(), peer.process()));
            }
        }
        return new Peers(subset, hosts);
    }

    @Override
    public synchronized Optional<String> dead() {
        long now = System.nanoTime();
        if (now - lastNanos < INTERVAL_NANOS) {
            return Optional.empty();
        }
        lastNanos = now;
        for (Peer peer : peers) {
            if (peer.process().hasDied()) {
                long pid = peer.process().pid();
                if (hosts != null) {
                    hosts.report(GroupErrors.died(peer.watchedRank(), pid));
                }
                return Optional.of(GroupErrors.died(peer.rank(), pid));
            }
        }
        return hosts == null ? Optional.empty() : hosts.dead();
    }

    @Override
    public void close() {
        if (hosts != null) {
            hosts.close();
        }
    }
}
