// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.engine.EngineException;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.IntFunction;
import java.util.stream.IntStream;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.TestLog;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.HashStore;
import org.djlx.nativeops.cuda.GpuLink;
import org.djlx.nativeops.cuda.GpuTopology;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Reasons against P2P, found from the information of all ranks. */
class RegionHandshakeTest {

    private static final Duration SECONDS = Duration.ofSeconds(30);

    private static List<RegionHandshake.RankInfo> infos() {
        return IntStream.range(0, 3)
                .mapToObj(
                        rank -> {
                            RegionHandshake.RankInfo info = new RegionHandshake.RankInfo();
                            info.options = CudaP2pOptions.builder().build().toString();
                            info.problem = "";
                            info.host = "host";
                            info.bus = "0000:0" + rank + ":00.0";
                            return info;
                        })
                .toList();
    }

    private static String problem(Consumer<RegionHandshake.RankInfo> change) {
        List<RegionHandshake.RankInfo> infos = infos();
        change.accept(infos.get(2));
        return RegionHandshake.reasonAgainst(infos, false);
    }

    private static void assertOptionsDiffer(CudaP2pOptions.Builder options, String text) {
        String problem = problem(info -> info.options = options.build().toString());
        assertTrue(problem.startsWith("rank 0 and rank 2 have different options: "), problem);
        assertTrue(problem.contains(text), problem);
    }

    @Test
    void ranksThatAgreeHaveNoProblem() {
        assertNull(problem(info -> {}));
    }

    @Test
    void problemNamesTheFailedRank() {
        assertEquals("rank 2: no memory", problem(info -> info.problem = "no memory"));
    }

    @Test
    void problemNamesRanksOnDifferentHosts() {
        assertEquals(
                "rank 0 and rank 2 are on different hosts", problem(info -> info.host = "other"));
    }

    /** All ranks use the links that rank 0 finds. */
    @Test
    void linksAreThoseThatRankZeroSees() {
        List<GpuTopology> seen =
                List.of(
                        P2pLinksTest.hybridCubeMesh(7, 6, 5, 4, 3, 2, 1, 0),
                        P2pLinksTest.hybridCubeMesh(0, 1, 2, 3, 4, 5, 6, 7));
        List<P2pLinks> links = links(CudaP2pOptions.builder(), rank -> seen.get(Math.min(rank, 1)));
        assertEquals(Collections.nCopies(8, P2pLinks.of(seen.get(0))), links);
    }

    @Test
    void unknownLinksAreOfKindOther() {
        List<P2pLinks> links =
                links(
                        CudaP2pOptions.builder(),
                        rank -> {
                            throw new UnsatisfiedLinkError("there is no NVML");
                        });
        P2pLinks all = P2pLinks.of(GpuTopology.Kind.OTHER, 8);
        assertEquals(Collections.nCopies(8, all), links);
    }

    /** Rank 0 says in one line what it has found and what it means, without a stack trace. */
    @Test
    void rankZeroLogsTheLinks() {
        GpuLink self = GpuLink.of(GpuLink.Kind.SELF);
        GpuTopology shared = new GpuTopology(new GpuLink[][] {{self, self}, {self, self}});
        try (TestLog log = new TestLog(RegionHandshake.class)) {
            links(CudaP2pOptions.builder(), rank -> shared);
            String line =
                    "group 'g': every two GPUs are one GPU or linked by NVLink (X);"
                            + " all-reduces of floats go from GPU to GPU";
            assertEquals(1, log.count(line));
            assertEquals(1, log.count("GPU"));
        }
    }

    @Test
    void topologyOfTheOptionsIsUsedWithoutAskingTheDriver() {
        GpuTopology.Kind kind = GpuTopology.Kind.HYBRID_CUBE_MESH;
        List<P2pLinks> links =
                links(
                        CudaP2pOptions.builder().optTopology(kind),
                        rank -> {
                            throw new AssertionError("nobody is to ask");
                        });
        assertEquals(Collections.nCopies(8, P2pLinks.of(kind, 8)), links);
    }

    /** Eight ranks agree on the links of rank 0, although each would find other ones. */
    private static List<P2pLinks> links(
            CudaP2pOptions.Builder options, IntFunction<GpuTopology> topology) {
        List<String> buses = IntStream.range(0, 8).mapToObj(i -> "0000:0" + i + ":00.0").toList();
        return onRanks(
                8,
                context ->
                        RegionHandshake.links(
                                context,
                                options.build(),
                                buses,
                                asked -> {
                                    assertEquals(buses, asked);
                                    return topology.apply(context.rank());
                                }));
    }

    /** GPUs of different architectures do not have the same kernels. */
    @Test
    void ranksKeepTheKernelsThatAllHave() {
        Set<String> all = Set.of("mesh_float32", "mesh_float16", "mesh_bfloat16");
        Set<String> old = Set.of("mesh_float32", "mesh_float16");
        assertEquals(List.of(all, all), common(List.of(all, all)));
        assertEquals(List.of(old, old, old), common(List.of(all, old, all)));
        assertEquals(List.of(Set.of(), Set.of(), Set.of()), common(List.of(all, Set.of(), old)));
    }

    private static List<Set<String>> common(List<Set<String>> names) {
        return onRanks(
                names.size(),
                context -> RegionHandshake.common(context, "kernels", names.get(context.rank())));
    }

    /** Runs code on one thread for each rank, with a common store. */
    private static <T> List<T> onRanks(int ranks, Function<GroupContext, T> body) {
        HashStore store = new HashStore();
        BackendOptions options = CudaP2pOptions.builder().optTimeout(SECONDS).build();
        ExecutorService threads = Executors.newFixedThreadPool(ranks);
        try {
            return IntStream.range(0, ranks)
                    .mapToObj(rank -> new GroupContext("g", rank, ranks, store, options, null))
                    .map(
                            context ->
                                    CompletableFuture.supplyAsync(
                                            () -> body.apply(context), threads))
                    .toList()
                    .stream()
                    .map(CompletableFuture::join)
                    .toList();
        } finally {
            threads.shutdownNow();
        }
    }

    @Test
    void refusesRanksOnOneGpuUnlessShared() {
        assertEquals(
                "rank 0 and rank 2 are on the same GPU",
                problem(info -> info.bus = "0000:00:00.0"));
        List<RegionHandshake.RankInfo> infos = infos();
        infos.forEach(info -> info.bus = "0000:00:00.0");
        assertNull(RegionHandshake.reasonAgainst(infos, true));
    }

    /** Even if the regions have the same size. */
    @Test
    void refusesRanksWithOtherOptions() {
        CudaP2pOptions.Builder swapped =
                CudaP2pOptions.builder().optBufferSize(0).optHeapSize(256 << 20);
        assertOptionsDiffer(swapped, "a buffer of 0 bytes, a heap of 268435456");
        assertOptionsDiffer(CudaP2pOptions.builder().optOneShotBytes(1), "one-shot up to 1,");
        assertOptionsDiffer(CudaP2pOptions.builder().optTwoShotBytes(1), "two-shot up to 1,");
        assertOptionsDiffer(CudaP2pOptions.builder().optDirect(false), ", not direct");
        assertOptionsDiffer(CudaP2pOptions.builder().optSharedGpus(true), "shared GPUs");
        assertOptionsDiffer(
                CudaP2pOptions.builder().optTopology(GpuTopology.Kind.OTHER), "topology OTHER");
    }

    /** Four streams a rank: 8 queues unless set, and 32 at most. */
    @ParameterizedTest
    @CsvSource({"1,", "1, 1", "2,", "2, 8", "8, 32", "2, many", "3, 12"})
    void ranksWithQueuesOfTheirOwn(int ranks, String queues) {
        RegionHandshake.checkStreams(true, ranks, queues);
    }

    @ParameterizedTest
    @CsvSource({"3,", "2, 7", "4, 8", "9, 32", "9, 64", "16, 32"})
    void moreRanksThanQueuesAreRefusedWhereTheyShareAGpu(int ranks, String queues) {
        EngineException refused =
                assertThrows(
                        EngineException.class,
                        () -> RegionHandshake.checkStreams(true, ranks, queues));
        assertTrue(
                refused.getMessage().contains("set CUDA_DEVICE_MAX_CONNECTIONS=32"),
                refused::getMessage);
        RegionHandshake.checkStreams(false, ranks, queues); // Groups of one rank each.
    }
}
