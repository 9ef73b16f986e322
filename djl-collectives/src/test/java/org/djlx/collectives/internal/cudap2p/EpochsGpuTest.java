// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.concurrent.CyclicBarrier;
import java.util.function.BiConsumer;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.p2p.BarrierCases;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The first and very high epochs of all-reduces and barriers. */
@Tag("gpu")
@Timeout(120)
class EpochsGpuTest {

    private static final int CALLS = 12;

    private static void run(CudaP2pOptions options, BiConsumer<ProcessGroup, NDManager> body) {
        List<ProcessGroup> groups = ProcessGroups.local("cuda_p2p", P2pRanks.require(), options);
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

    private static float sumOfRanks(ProcessGroup group) {
        return group.worldSize() * (group.worldSize() + 1) / 2f;
    }

    /** One-shot, two-shot, direct, and barriers of kernels that signal. */
    @ParameterizedTest
    @CsvSource({"1000, false", "600000, false", "600000, true"})
    void epochsPass32Bits(int count, boolean direct) {
        checkFrom((1L << 32) - 6, (1L << 32) - 6, count, direct);
    }

    /** Words of 32 bits would look as if the peers were ahead. */
    @ParameterizedTest
    @CsvSource({"1000, false", "600000, false", "600000, true"})
    void signalsOfAnEarlierWrapAroundDoNotCount(int count, boolean direct) {
        checkFrom(1L << 32, 10, count, direct);
    }

    private static void checkFrom(long epoch, long rare, int count, boolean direct) {
        int ranks = P2pRanks.require();
        CudaP2pOptions.Builder base = direct ? P2pRanks.directOptions() : P2pRanks.options();
        CudaP2pOptions options = base.optBufferSize(1 << 20).build();
        CyclicBarrier step = new CyclicBarrier(ranks);
        run(
                options,
                (group, manager) -> {
                    NDArray first = manager.ones(new Shape(count));
                    group.allReduce(first, ReduceOp.SUM).await(group.timeout());
                    Epochs.set(group, options, step, epoch, rare);
                    for (int call = 0; call < CALLS; call++) {
                        NDArray tensor =
                                manager.full(new Shape(count), (float) (call + group.rank()));
                        group.allReduce(tensor, ReduceOp.SUM).await(group.timeout());
                        float wanted = sumOfRanks(group) + ranks * (call - 1);
                        assertEquals(wanted, TestArrays.awaited(tensor.min()).getFloat());
                        assertEquals(wanted, TestArrays.awaited(tensor.max()).getFloat());
                    }
                    BarrierCases.exchanges(group, manager);
                });
    }

    /** No operation before; then eager ones between replays. */
    @ParameterizedTest
    @ValueSource(ints = {1000, 600_000})
    void firstCallWithinACapture(int count) {
        CyclicBarrier step = new CyclicBarrier(P2pRanks.require());
        run(
                P2pRanks.options().build(),
                (group, manager) -> {
                    NDArray tensor = manager.zeros(new Shape(count));
                    NDArray value = manager.full(tensor.getShape(), group.rank() + 1f);
                    try (CudaDevice device = CudaDevice.open(group.device());
                            CudaStream stream = CudaStream.create(device)) {
                        device.synchronize();
                        Epochs.await(step); // Else a rank on the same GPU may be capturing already.
                        CudaStreamGuard guard =
                                Torch.cudaStreamGuard(group.device(), stream.handle());
                        try (CudaGraph graph =
                                CudaGraph.capture(
                                        stream,
                                        () ->
                                                group.allReduce(tensor, ReduceOp.SUM)
                                                        .blockCurrentStream())) {
                            for (int launch = 0; launch < 3; launch++) {
                                Torch.copy(tensor, value);
                                graph.launch(stream);
                                requireAll(tensor, sumOfRanks(group));
                                Torch.copy(tensor, value);
                                group.allReduce(tensor, ReduceOp.SUM).await(group.timeout());
                                requireAll(tensor, sumOfRanks(group));
                            }
                        } finally {
                            guard.close();
                            stream.synchronize();
                        }
                    }
                });
    }

    private static void requireAll(NDArray tensor, float wanted) {
        assertEquals(wanted, TestArrays.awaited(tensor.min()).getFloat());
        assertEquals(wanted, TestArrays.awaited(tensor.max()).getFloat());
    }

    /** Without an order, both would take the same epoch. */
    @Test
    void aGraphAndCallsOnAnotherStreamAreOrdered() {
        int count = 40_000;
        CyclicBarrier step = new CyclicBarrier(P2pRanks.require());
        run(
                P2pRanks.options().build(),
                (group, manager) -> {
                    NDArray x = manager.zeros(new Shape(count));
                    NDArray y = manager.zeros(new Shape(count));
                    NDArray one = manager.ones(new Shape(count));
                    NDArray two = manager.full(new Shape(count), 2f);
                    try (CudaDevice device = CudaDevice.open(group.device());
                            CudaStream a = CudaStream.create(device);
                            CudaStream b = CudaStream.create(device)) {
                        device.synchronize();
                        Epochs.await(step); // Else a rank on the same GPU may be capturing already.
                        CudaGraph graph = capture(group, a, x);
                        for (int call = 0; call < 300; call++) {
                            on(a, group, () -> Torch.copy(x, one));
                            graph.launch(a);
                            on(
                                    b,
                                    group,
                                    () -> {
                                        Torch.copy(y, two);
                                        group.allReduce(y, ReduceOp.SUM).blockCurrentStream();
                                    });
                            if (call % 10 == 9) {
                                a.synchronize();
                                b.synchronize();
                                requireAll(x, group.worldSize());
                                requireAll(y, 2 * group.worldSize());
                            }
                        }
                        graph.close();
                    }
                });
    }

    private static CudaGraph capture(ProcessGroup group, CudaStream stream, NDArray tensor) {
        CudaGraph[] graph = new CudaGraph[1];
        on(
                stream,
                group,
                () ->
                        graph[0] =
                                CudaGraph.capture(
                                        stream,
                                        () ->
                                                group.allReduce(tensor, ReduceOp.SUM)
                                                        .blockCurrentStream()));
        return graph[0];
    }

    private static void on(CudaStream stream, ProcessGroup group, Runnable body) {
        CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
        try {
            body.run();
        } finally {
            guard.close();
        }
    }
}
