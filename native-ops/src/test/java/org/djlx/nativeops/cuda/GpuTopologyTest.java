// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class GpuTopologyTest {

    /** The NVLinks of a DGX-1 with V100s, as nvidia-smi shows them; 0 is SYS or PIX. */
    private static final int[][] DGX_1 = {
        {0, 1, 1, 2, 2, 0, 0, 0},
        {1, 0, 2, 1, 0, 2, 0, 0},
        {1, 2, 0, 2, 0, 0, 1, 0},
        {2, 1, 2, 0, 0, 0, 0, 1},
        {2, 0, 0, 0, 0, 1, 1, 2},
        {0, 2, 0, 0, 1, 0, 2, 1},
        {0, 0, 1, 0, 1, 2, 0, 2},
        {0, 0, 0, 1, 2, 1, 2, 0}
    };

    private static GpuTopology of(int[][] nvLinks, GpuLink.Kind kind) {
        GpuLink[][] links = new GpuLink[nvLinks.length][nvLinks.length];
        for (int i = 0; i < links.length; i++) {
            for (int j = 0; j < links.length; j++) {
                links[i][j] = GpuLink.of(i == j ? GpuLink.Kind.SELF : GpuLink.Kind.SYSTEM);
                if (nvLinks[i][j] > 0) {
                    links[i][j] = new GpuLink(kind, nvLinks[i][j]);
                }
            }
        }
        return new GpuTopology(links);
    }

    private static GpuTopology uniform(int gpus, GpuLink link) {
        GpuLink[][] links = new GpuLink[gpus][gpus];
        for (int i = 0; i < gpus; i++) {
            for (int j = 0; j < gpus; j++) {
                links[i][j] = i == j ? GpuLink.of(GpuLink.Kind.SELF) : link;
            }
        }
        return new GpuTopology(links);
    }

    @ParameterizedTest
    @CsvSource({"1", "2", "4", "8", "16"})
    void switchesConnectFully(int gpus) {
        GpuTopology topology = uniform(gpus, new GpuLink(GpuLink.Kind.NVSWITCH, 18));
        assertEquals(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, topology.kind());
        assertEquals(gpus - 1, topology.neighbours(gpus - 1).length);
    }

    @ParameterizedTest
    @CsvSource({"2, SAME_BOARD", "2, PCIE_SWITCH", "4, HOST_BRIDGE", "8, SYSTEM"})
    void pcieIsNotFullyConnected(int gpus, GpuLink.Kind kind) {
        assertEquals(GpuTopology.Kind.OTHER, uniform(gpus, GpuLink.of(kind)).kind());
    }

    @Test
    void dgx1IsAHybridCubeMesh() {
        GpuTopology dgx1 = of(DGX_1, GpuLink.Kind.NVLINK);
        assertEquals(GpuTopology.Kind.HYBRID_CUBE_MESH, dgx1.kind());
        assertArrayEquals(new int[] {1, 2, 3, 4}, dgx1.neighbours(0));
        assertArrayEquals(new int[] {3, 4, 5, 6}, dgx1.neighbours(7));
        assertEquals(new GpuLink(GpuLink.Kind.NVLINK, 2), dgx1.link(0, 4));
        int[] shuffled = {5, 0, 7, 2, 4, 1, 6, 3};
        assertEquals(GpuTopology.Kind.HYBRID_CUBE_MESH, subset(dgx1, shuffled).kind());
        assertArrayEquals(new int[] {2, 4, 5, 6}, subset(dgx1, shuffled).neighbours(0));
    }

    @Test
    void partsOfADgx1AreFullyConnectedOrOther() {
        GpuTopology dgx1 = of(DGX_1, GpuLink.Kind.NVLINK);
        assertEquals(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, subset(dgx1, 0, 1, 2, 3).kind());
        assertEquals(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, subset(dgx1, 6, 4, 7, 5).kind());
        assertEquals(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, subset(dgx1, 0, 4).kind());
        assertEquals(GpuTopology.Kind.OTHER, subset(dgx1, 0, 5).kind());
        assertEquals(GpuTopology.Kind.OTHER, subset(dgx1, 0, 1, 4, 5).kind());
        assertEquals(GpuTopology.Kind.OTHER, subset(dgx1, 0, 1, 2, 3, 4, 5).kind());
    }

    @Test
    void otherGraphsOfDegreeFourAreNoMesh() {
        // Every GPU is linked to the two on either side of it in a ring.
        int[][] ring = new int[8][8];
        for (int i = 0; i < 8; i++) {
            for (int step : new int[] {1, 2, 6, 7}) {
                ring[i][(i + step) % 8] = 1;
            }
        }
        assertEquals(GpuTopology.Kind.OTHER, of(ring, GpuLink.Kind.NVLINK).kind());
        int[][] missing = new int[8][8];
        for (int i = 0; i < 8; i++) {
            missing[i] = DGX_1[i].clone();
        }
        missing[0][4] = 0;
        missing[4][0] = 0;
        assertEquals(GpuTopology.Kind.OTHER, of(missing, GpuLink.Kind.NVLINK).kind());
    }

    @Test
    void printsLikeNvidiaSmi() {
        int[][] nvLinks = {{0, 12, 0}, {12, 0, 0}, {0, 0, 0}};
        assertEquals(
                String.format(
                        "      GPU0  GPU1  GPU2 %n"
                                + "GPU0  X     NV12  SYS  %n"
                                + "GPU1  NV12  X     SYS  %n"
                                + "GPU2  SYS   SYS   X    "),
                of(nvLinks, GpuLink.Kind.NVSWITCH).toString());
    }

    @Test
    void refusesMatricesThatAreEmptyRaggedOrAsymmetric() {
        GpuLink self = GpuLink.of(GpuLink.Kind.SELF);
        GpuLink pcie = GpuLink.of(GpuLink.Kind.PCIE_SWITCH);
        GpuLink system = GpuLink.of(GpuLink.Kind.SYSTEM);
        assertRefused("no GPU");
        assertRefused("row 1", new GpuLink[] {self, pcie}, new GpuLink[] {pcie});
        assertRefused("in one direction", new GpuLink[] {self, pcie}, new GpuLink[] {system, self});
        assertRefused("in one direction", new GpuLink[] {self, null}, new GpuLink[] {pcie, self});
        assertRefused("in one direction", new GpuLink[] {null});
        assertRefused("cannot link", new GpuLink[] {pcie});
        assertThrows(IllegalArgumentException.class, () -> new GpuLink(GpuLink.Kind.NVLINK, -1));
        assertThrows(IllegalArgumentException.class, () -> new GpuLink(GpuLink.Kind.SYSTEM, 1));
    }

    private static void assertRefused(String reason, GpuLink[]... links) {
        var e = assertThrows(IllegalArgumentException.class, () -> new GpuTopology(links));
        assertTrue(e.getMessage().contains(reason), e.getMessage());
    }

    private static GpuTopology subset(GpuTopology whole, int... gpus) {
        GpuLink[][] links = new GpuLink[gpus.length][gpus.length];
        for (int i = 0; i < gpus.length; i++) {
            for (int j = 0; j < gpus.length; j++) {
                links[i][j] = whole.link(gpus[i], gpus[j]);
            }
        }
        return new GpuTopology(links);
    }
}
