// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.stream.IntStream;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.nativeops.cuda.GpuLink;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.cuda.GpuTopology.Kind;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** The pairs of ranks that share memory, and the algorithms that use it. */
class P2pLinksTest {

    private static final int[] IN_ORDER = {0, 1, 2, 3, 4, 5, 6, 7};

    /**
     * A hybrid cube mesh: GPUs 0 to 3 and 4 to 7 are linked by NVLink, and GPU i with GPU i + 4.
     *
     * @param gpus the GPU of each rank
     */
    static GpuTopology hybridCubeMesh(int... gpus) {
        GpuLink[][] links = new GpuLink[gpus.length][gpus.length];
        for (int i = 0; i < gpus.length; i++) {
            for (int j = 0; j < gpus.length; j++) {
                int one = gpus[i];
                int other = gpus[j];
                boolean linked = one / 4 == other / 4 || one % 4 == other % 4;
                links[i][j] =
                        one == other
                                ? GpuLink.of(GpuLink.Kind.SELF)
                                : linked
                                        ? new GpuLink(GpuLink.Kind.NVLINK, 1)
                                        : GpuLink.of(GpuLink.Kind.SYSTEM);
            }
        }
        return new GpuTopology(links);
    }

    @Test
    void aMeshAsksLinkedPairsOnly() {
        P2pLinks links = P2pLinks.of(hybridCubeMesh(IN_ORDER));
        assertEquals(Kind.HYBRID_CUBE_MESH, links.kind());
        assertFalse(links.isComplete());
        assertEquals(8, links.ranks());
        assertArrayEquals(new int[] {0, 1, 2, 3, 4}, links.linkedTo(0));
        assertArrayEquals(new int[] {2, 4, 5, 6, 7}, links.linkedTo(6));
        assertEquals(0x0f, links.quad(3));
        assertEquals(7, links.relay(3));
        assertEquals(0xf0, links.quad(4));
        assertEquals(0, links.relay(4));
    }

    /** A mesh given by the options has its ranks in this order. */
    @Test
    void aMeshThatTheOptionsName() {
        assertEquals(P2pLinks.of(hybridCubeMesh(IN_ORDER)), P2pLinks.of(Kind.HYBRID_CUBE_MESH, 8));
        P2pLinks four = P2pLinks.of(Kind.HYBRID_CUBE_MESH, 4);
        assertEquals(P2pLinks.of(Kind.OTHER, 4), four);
        assertTrue(four.isComplete());
    }

    /** Ranks may be in any order; a kernel may write to linked ranks only. */
    @Test
    void quadsAndRelaysAreLinked() {
        Random random = new Random(5);
        List<Integer> gpus = new ArrayList<>(IntStream.of(IN_ORDER).boxed().toList());
        for (int i = 0; i < 200; i++) {
            Collections.shuffle(gpus, random);
            int[] order = gpus.stream().mapToInt(Integer::intValue).toArray();
            P2pLinks links = P2pLinks.of(hybridCubeMesh(order));
            for (int rank = 0; rank < 8; rank++) {
                int quad = links.quad(rank);
                int relay = links.relay(rank);
                assertEquals(4, Integer.bitCount(quad));
                for (int peer = 0; peer < 8; peer++) {
                    boolean inQuad = (quad >> peer & 1) != 0;
                    assertEquals(order[rank] / 4 == order[peer] / 4, inQuad);
                    assertEquals(order[rank] % 4 == order[peer] % 4, peer == relay || peer == rank);
                    assertEquals(inQuad || peer == relay, links.isLinked(rank, peer));
                    assertEquals(links.isLinked(rank, peer), links.isLinked(peer, rank));
                }
                assertEquals(rank, links.relay(relay));
                assertEquals(0xff, quad | links.quad(relay));
            }
        }
    }

    /** In any other topology, every pair is linked. */
    @ParameterizedTest
    @EnumSource(
            value = Kind.class,
            names = {"FULLY_CONNECTED_NVLINK", "OTHER"})
    void othersAskEveryPair(Kind kind) {
        int[] gpus = kind == Kind.OTHER ? new int[] {0, 1, 4, 6} : new int[] {3, 1, 2, 0};
        P2pLinks links = P2pLinks.of(hybridCubeMesh(gpus));
        assertEquals(P2pLinks.of(kind, 4), links);
        assertTrue(links.isComplete());
        for (int rank = 0; rank < 4; rank++) {
            assertArrayEquals(new int[] {0, 1, 2, 3}, links.linkedTo(rank));
        }
    }

    /** Operators write to the buffers of all ranks. */
    @Test
    void buffersNeedEveryPair() {
        CudaP2pOptions options = CudaP2pOptions.builder().optHeapSize(1 << 20).build();
        RegionLayout whole = new RegionLayout(options, P2pLinks.of(Kind.OTHER, 8));
        assertEquals(CudaP2pOptions.DEFAULT_BUFFER_SIZE, whole.bufferSize());
        assertEquals(1 << 20, whole.heapSize());
        RegionLayout mesh = new RegionLayout(options, P2pLinks.of(hybridCubeMesh(IN_ORDER)));
        assertEquals(0, mesh.bufferSize());
        assertEquals(0, mesh.heapSize());
        assertEquals(mesh.buffer(), mesh.byteSize());
    }
}
