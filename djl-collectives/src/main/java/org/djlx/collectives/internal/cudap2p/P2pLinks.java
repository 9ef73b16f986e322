// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.util.List;
import java.util.stream.IntStream;
import org.djlx.nativeops.cuda.GpuTopology;

/**
 * The pairs of ranks that share memory: for each rank, a bit mask of those that it is linked to,
 * itself included. Every pair is linked, unless the GPUs form a hybrid cube mesh. There, a GPU is
 * linked to four others and mostly cannot access the rest, so only linked pairs map and write each
 * other's memory.
 */
record P2pLinks(GpuTopology.Kind kind, List<Integer> masks) {

    private static final int MESH_RANKS = 8;

    static P2pLinks of(GpuTopology topology) {
        if (topology.kind() != GpuTopology.Kind.HYBRID_CUBE_MESH) {
            return all(topology.kind(), topology.size());
        }
        List<Integer> masks =
                IntStream.range(0, topology.size())
                        .map(rank -> 1 << rank | mask(IntStream.of(topology.neighbours(rank))))
                        .boxed()
                        .toList();
        return new P2pLinks(topology.kind(), masks);
    }

    /** Returns the links of a kind of topology, if no more is known of it. */
    static P2pLinks of(GpuTopology.Kind kind, int ranks) {
        if (kind != GpuTopology.Kind.HYBRID_CUBE_MESH) {
            return all(kind, ranks);
        }
        if (ranks != MESH_RANKS) {
            return all(GpuTopology.Kind.OTHER, ranks);
        }
        List<Integer> masks =
                IntStream.range(0, ranks)
                        .map(rank -> (rank < 4 ? 0x0f : 0xf0) | 1 << (rank ^ 4))
                        .boxed()
                        .toList();
        return new P2pLinks(kind, masks);
    }

    private static P2pLinks all(GpuTopology.Kind kind, int ranks) {
        int all = mask(IntStream.range(0, ranks));
        return new P2pLinks(kind, IntStream.range(0, ranks).mapToObj(rank -> all).toList());
    }

    private static int mask(IntStream ranks) {
        return ranks.map(rank -> 1 << rank).reduce(0, (a, b) -> a | b);
    }

    int ranks() {
        return masks.size();
    }

    boolean isLinked(int one, int other) {
        return (masks.get(one) >> other & 1) != 0;
    }

    /** Returns the ranks that a rank is linked to, including itself, ascending. */
    int[] linkedTo(int rank) {
        return IntStream.range(0, ranks()).filter(peer -> isLinked(rank, peer)).toArray();
    }

    boolean isComplete() {
        return masks.stream().allMatch(mask -> Integer.bitCount(mask) == ranks());
    }

    /** Returns the rank of the other quad that a rank of a hybrid cube mesh is linked to. */
    int relay(int rank) {
        int others = masks.get(rank) & ~(1 << rank);
        // The other peers are in its quad, and linked to each other.
        return IntStream.of(linkedTo(rank))
                .filter(peer -> peer != rank && (masks.get(peer) & others) == 1 << peer)
                .findFirst()
                .orElseThrow();
    }

    /** Returns the quad of a rank of a hybrid cube mesh, as a bit mask. */
    int quad(int rank) {
        return masks.get(rank) & ~(1 << relay(rank));
    }
}
