/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.nccl;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.Liveness;

/**
 * The processes of a group's ranks. Those of this host can be looked after: NCCL itself may wait
 * for ever for one that has died there.
 */
final class Peers {

    private static final long INTERVAL_NANOS = 100_000_000;

    private record Peer(int rank, String host, long pid, long startTime) {}

    private final List<Peer> peers;
    private long lastNanos = System.nanoTime() - INTERVAL_NANOS;

    private Peers(List<Peer> peers) {
        this.peers = peers;
    }

    /** Nobody is known. */
    static Peers none() {
        return new Peers(List.of());
    }

    /** What this process tells the others. */
    static byte[] own() {
        long pid = ProcessHandle.current().pid();
        String text = Liveness.HOST + " " + pid + " " + Liveness.startTime(pid);
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** Reads what all ranks told, in rank order. */
    static Peers of(List<byte[]> told) {
        List<Peer> peers = new ArrayList<>();
        for (int rank = 0; rank < told.size(); rank++) {
            peers.add(peer(rank, told.get(rank)));
        }
        return new Peers(peers);
    }

    /** Returns these and a rank that told about itself. */
    Peers with(int rank, byte[] told) {
        List<Peer> more = new ArrayList<>(peers);
        more.removeIf(peer -> peer.rank() == rank);
        more.add(peer(rank, told));
        return new Peers(more);
    }

    private static Peer peer(int rank, byte[] told) {
        String[] fields = new String(told, StandardCharsets.UTF_8).split(" ");
        return new Peer(rank, fields[0], Long.parseLong(fields[1]), Long.parseLong(fields[2]));
    }

    /** Returns those of some ranks, numbered anew. */
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

    /** Tells whose process has ended, if one of this host has; looks a few times a second. */
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
