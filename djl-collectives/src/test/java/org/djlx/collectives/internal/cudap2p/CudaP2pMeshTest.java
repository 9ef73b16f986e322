// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BiConsumer;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.RankProcesses;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.spi.Backends;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * Eight ranks that are linked as the GPUs of a hybrid cube mesh, on the GPUs of the machine. A rank
 * has no address for the memory of a rank that it is not linked to, so any access to it fails.
 */
@Tag("gpu")
@Timeout(300)
class CudaP2pMeshTest {

    private static final String BACKEND = "cuda_p2p without links";
    private static final int RANKS = 8;

    @BeforeEach
    void requireGpus() {
        P2pRanks.require();
        int sharing = (RANKS + CudaDevice.count() - 1) / CudaDevice.count();
        Assumptions.assumeTrue(
                sharing <= 2 || System.getenv("CUDA_DEVICE_MAX_CONNECTIONS") != null,
                "ranks share GPUs: needs CUDA_DEVICE_MAX_CONNECTIONS=32");
    }

    /** Runs ranks with other quads than 0 to 3 and 4 to 7, and other relays. */
    private static void run(BiConsumer<ProcessGroup, NDManager> body) {
        Backends.register(
                BACKEND,
                new CudaP2pBackendFactory(
                        buses -> P2pLinksTest.hybridCubeMesh(5, 0, 7, 2, 4, 1, 6, 3)));
        List<ProcessGroup> groups =
                ProcessGroups.local(BACKEND, RANKS, P2pRanks.unlinkedOptions().build());
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        P2pRanks.runOnStream(
                                group,
                                () -> {
                                    try (NDManager manager =
                                            NDManager.newBaseManager(group.device(), "PyTorch")) {
                                        body.accept(group, manager);
                                    }
                                });
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void meet(CyclicBarrier barrier) {
        try {
            barrier.await(1, TimeUnit.MINUTES);
        } catch (InterruptedException | BrokenBarrierException | TimeoutException e) {
            throw new AssertionError(e);
        }
    }

    @Test
    void allReduceBetweenLinkedRanks() {
        CyclicBarrier ready = new CyclicBarrier(8);
        run(
                (group, manager) ->
                        AllReduceCases.checkMesh(
                                group,
                                manager,
                                List.of(1, 3, 5, 7), // On GPUs 0 to 3.
                                List.of(0, 2, 4, 6),
                                () -> meet(ready)));
    }

    /**
     * Graphs do not access unlinked ranks, either. Ranks that share GPUs replay fewer times because
     * they share the GPU's queues. Eight ranks on one GPU take all 32 queues, and none is left for
     * streams of other tests: see {@link CudaP2pOptions.Builder#optSharedGpus}.
     */
    @Test
    void graphsAccessLinkedRanksOnly() {
        GpuTests.require(2);
        OpType type = new OpType("nothing");
        Operation.Agreed nothing = new Operation.Agreed(null, new long[0], null, 0);
        run(
                (group, manager) ->
                        Replays.check(
                                group,
                                ScalarType.FLOAT32,
                                new Shape(1000),
                                input -> {
                                    group.execute(type, nothing, operation -> {})
                                            .blockCurrentStream();
                                    group.allReduce(input, ReduceOp.SUM).blockCurrentStream();
                                    return Torch.alias(manager, input);
                                },
                                (value, ranks) -> ranks * value + ranks * (ranks - 1) / 2.0,
                                CudaDevice.count() < 8 ? 200 : 1000));
    }

    /** Only linked ranks exchange descriptors of their memory. */
    @Test
    void processesExchangeMemoryWithLinkedRanksOnly() throws InterruptedException {
        try (RankProcesses ranks =
                new RankProcesses(
                        8,
                        rank -> Map.of("LOCAL_RANK", "" + rank % CudaDevice.count()),
                        CudaP2pRankMain.class,
                        "mesh")) {
            ranks.awaitSuccess();
        }
    }
}
