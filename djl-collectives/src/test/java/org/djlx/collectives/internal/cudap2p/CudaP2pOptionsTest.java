// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.DebugLevel;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.HashStore;
import org.djlx.nativeops.cuda.GpuTopology;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class CudaP2pOptionsTest {

    private static void assertRejected(Executable call, String text) {
        String message = assertThrows(IllegalArgumentException.class, call).getMessage();
        assertTrue(message.contains(text), message);
    }

    @Test
    void refusesNegativeAndHugeSizes() {
        for (long bytes : List.of(-1L, (1L << 40) + 1, Long.MAX_VALUE)) {
            CudaP2pOptions.Builder builder = CudaP2pOptions.builder();
            assertRejected(() -> builder.optBufferSize(bytes), "the buffer size");
            assertRejected(() -> builder.optHeapSize(bytes), "the heap size");
            assertRejected(() -> builder.optOneShotBytes(bytes), "one-shot size");
            assertRejected(() -> builder.optTwoShotBytes(bytes), "two-shot size");
        }
    }

    /** The parts of a region do not overlap. */
    @Test
    void theLargestSizesAreLaidOut() {
        long most = 1L << 40;
        CudaP2pOptions options =
                CudaP2pOptions.builder()
                        .optBufferSize(most)
                        .optHeapSize(most)
                        .optOneShotBytes(most - 1)
                        .optTwoShotBytes(most)
                        .build();
        for (int ranks = 1; ranks <= RegionLayout.MAX_RANKS; ranks++) {
            P2pLinks links = P2pLinks.of(GpuTopology.Kind.OTHER, ranks);
            RegionLayout layout = new RegionLayout(options, links);
            long slot = layout.slot(Algorithm.ONE_SHOT); // Larger tensors take several launches.
            assertTrue(slot > 6 << 20 && slot <= 40 << 20, () -> slot + " bytes");
            assertEquals((ranks - 1) * slot, layout.half(Algorithm.ONE_SHOT));
            for (Algorithm algorithm : List.of(Algorithm.ONE_SHOT, Algorithm.TWO_SHOT)) {
                assertEquals(slot, layout.slot(algorithm));
                assertEquals(layout.begin(Algorithm.MESH), layout.begin(algorithm));
            }
            // A part, followed by a sum.
            assertEquals(slot / 2 * ranks, layout.most(Algorithm.TWO_SHOT));
            long oneShotEnd =
                    layout.begin(Algorithm.ONE_SHOT) + 2 * layout.half(Algorithm.ONE_SHOT);
            assertTrue(layout.signal(0, 0) >= oneShotEnd);
            int last = RegionLayout.MAX_RANKS - 1;
            assertTrue(layout.counters() > layout.signal(RegionLayout.ROWS - 1, last));
            assertTrue(layout.flags() > layout.counters());
            long flags = (long) ranks * RegionLayout.FLAGS * Long.BYTES;
            assertTrue(layout.buffer() >= layout.flags() + flags);
            assertTrue(layout.byteSize() >= layout.buffer() + 2 * most);
        }
    }

    @Test
    void thereIsOneTimeout() {
        NcclOptions nccl =
                NcclOptions.builder()
                        .optTimeout(Duration.ofSeconds(5))
                        .optDebug(DebugLevel.DETAIL)
                        .build();
        CudaP2pOptions.Builder builder = CudaP2pOptions.builder().optNcclOptions(nccl);
        assertEquals(Duration.ofSeconds(5), builder.build().timeout());
        CudaP2pOptions options = builder.optTimeout(Duration.ofSeconds(7)).build();
        assertEquals(Duration.ofSeconds(7), options.timeout());
        assertEquals(Duration.ofSeconds(7), options.ncclOptions().timeout());
        assertEquals(DebugLevel.DETAIL, options.ncclOptions().debug());
    }

    /** Unless set, copies run collectives where ranks share GPUs. */
    @Test
    void copyEnginesFollowSharedGpus() {
        for (boolean shared : List.of(true, false)) {
            CudaP2pOptions.Builder builder = CudaP2pOptions.builder().optSharedGpus(shared);
            assertEquals(shared, builder.build().isCopyEngines());
            assertEquals(shared, builder.build().toString().contains("copy engines"));
            assertEquals(!shared, builder.optCopyEngines(!shared).build().isCopyEngines());
        }
    }

    @Test
    void optionsOfOtherBackendsAreRefused() {
        GroupContext context =
                new GroupContext("g", 0, 1, new HashStore(), ShmOptions.builder().build(), null);
        assertRejected(() -> new CudaP2pBackendFactory().create(context), "not ShmOptions");
    }

    /** Algorithms that are never chosen have no memory. */
    @Test
    void memoryFollowsFromTheSizes() {
        P2pLinks links = P2pLinks.of(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, 2);
        CudaP2pOptions options = CudaP2pOptions.builder().build();
        RegionLayout usual = new RegionLayout(options, links);
        assertEquals(64 << 20, options.oneShotBytes(2));
        assertEquals(40 << 20, usual.half(Algorithm.ONE_SHOT));
        assertEquals(0, usual.half(Algorithm.MESH));
        RegionLayout none =
                new RegionLayout(
                        CudaP2pOptions.builder().optOneShotBytes(0).optTwoShotBytes(0).build(),
                        links);
        assertEquals(0, none.half(Algorithm.ONE_SHOT));
        assertEquals((768 << 10) / 7, options.oneShotBytes(8));
        assertEquals(256 << 10, options.meshBytes());
        P2pLinks mesh = P2pLinks.of(GpuTopology.Kind.HYBRID_CUBE_MESH, 8);
        assertEquals(9 * 512 << 10, new RegionLayout(options, mesh).half(Algorithm.MESH));
        assertEquals(0, new RegionLayout(options, mesh).half(Algorithm.ONE_SHOT));
        P2pLinks four = P2pLinks.of(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, 4);
        assertEquals(48 << 20, new RegionLayout(options, four).half(Algorithm.TWO_SHOT));
        P2pLinks eight = P2pLinks.of(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, 8);
        assertEquals(7 * 4 << 20, new RegionLayout(options, eight).half(Algorithm.TWO_SHOT));
    }

    /** Two-shot up to the default or the user's limit; in a graph, up to the largest default. */
    @ParameterizedTest
    @CsvSource({
        "2, 67108864, ONE_SHOT",
        "2, 67108865, DIRECT",
        "3, 393217, TWO_SHOT",
        "4, 67108864, TWO_SHOT",
        "4, 67108865, DIRECT",
        "5, 16777217, ",
        "8, 112347, ONE_SHOT",
        "8, 112348, TWO_SHOT",
        "8, 16777216, TWO_SHOT",
        "8, 16777217, "
    })
    void howManyRanksThereAreDecides(int ranks, long byteSize, Algorithm algorithm) {
        P2pLinks links = P2pLinks.of(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, ranks);
        CudaP2pOptions usual = CudaP2pOptions.builder().build();
        assertEquals(algorithm, P2p.algorithm(usual, links, byteSize, () -> false));
        boolean twoShot = algorithm == null && byteSize <= 64 << 20;
        assertEquals(
                twoShot ? Algorithm.TWO_SHOT : algorithm == null ? Algorithm.DIRECT : algorithm,
                P2p.algorithm(usual, links, byteSize, () -> true));
        CudaP2pOptions set =
                CudaP2pOptions.builder().optOneShotBytes(0).optTwoShotBytes(byteSize).build();
        assertEquals(Algorithm.TWO_SHOT, P2p.algorithm(set, links, byteSize, () -> false));
        assertEquals(Algorithm.DIRECT, P2p.algorithm(set, links, byteSize + 1, () -> true));
        for (boolean allowed : new boolean[] {false, true}) {
            CudaP2pOptions told =
                    CudaP2pOptions.builder()
                            .optOneShotBytes(0)
                            .optTwoShotBytes(0)
                            .optDirect(allowed)
                            .build();
            assertEquals(
                    allowed ? Algorithm.DIRECT : null,
                    P2p.algorithm(told, links, byteSize, () -> false));
        }
    }

    @ParameterizedTest
    @CsvSource({"1, MESH", "262144, MESH", "262145, "})
    void meshUpTo256KiB(long byteSize, Algorithm algorithm) {
        P2pLinks links = P2pLinks.of(GpuTopology.Kind.HYBRID_CUBE_MESH, 8);
        CudaP2pOptions usual = CudaP2pOptions.builder().build();
        assertEquals(algorithm, P2p.algorithm(usual, links, byteSize, () -> false));
        CudaP2pOptions set = CudaP2pOptions.builder().optOneShotBytes(byteSize).build();
        assertEquals(Algorithm.MESH, P2p.algorithm(set, links, byteSize, () -> false));
        assertNull(P2p.algorithm(set, links, byteSize + 1, () -> false));
    }

    /** NCCL allocates buffers for the measurement: by default, only where it may be faster. */
    @Test
    void theLimitAgainstNcclIsMeasuredIfNcclMayUseMulticast() {
        CudaP2pOptions usual = CudaP2pOptions.builder().build();
        assertTrue(usual.measuresNcclLimit(2, true));
        assertFalse(usual.measuresNcclLimit(2, false));
        CudaP2pOptions always = CudaP2pOptions.builder().optMeasureNcclLimit(true).build();
        assertTrue(always.measuresNcclLimit(2, false));
        assertFalse(always.measuresNcclLimit(1, true));
        assertFalse(
                CudaP2pOptions.builder()
                        .optMeasureNcclLimit(true)
                        .optTwoShotBytes(1 << 20)
                        .build()
                        .measuresNcclLimit(2, true));
        assertNotEquals(usual.toString(), always.toString());
    }
}
