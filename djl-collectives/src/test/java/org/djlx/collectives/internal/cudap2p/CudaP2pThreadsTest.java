// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.DynamicTest.dynamicTest;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.OptionalDouble;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.function.BiConsumer;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.ContractCases;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.NcclBatch;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.nccl.NcclCases;
import org.djlx.collectives.p2p.P2pAllocator;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Reductions;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.GpuRates;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** All-reduce between GPUs, on all GPUs of the machine, with ranks that are threads. */
@Tag("gpu")
@Timeout(300)
class CudaP2pThreadsTest {

    private static final Operation.Agreed NOTHING =
            new Operation.Agreed(null, new long[0], null, 0);

    private static final Set<String> COPIED =
            Set.of(
                    "allReduce",
                    "allReduceStrided",
                    "allReduceSameBits",
                    "allReduceCoalesced",
                    "reduceScatter",
                    "reduceScatterTensor",
                    "reduceScatterInPlace",
                    "reduceScatterCoalesced",
                    "broadcast",
                    "conjugated",
                    "allGather",
                    "allGatherIntoTensor",
                    "allGatherInPlace",
                    "allGatherCoalesced");

    private int worldSize;

    @BeforeEach
    void requireGpus() {
        worldSize = P2pRanks.require();
    }

    private List<ProcessGroup> groups(CudaP2pOptions.Builder options) {
        return ProcessGroups.local("cuda_p2p", worldSize, options.optBufferSize(1 << 20).build());
    }

    private void run(CudaP2pOptions.Builder options, BiConsumer<ProcessGroup, NDManager> body) {
        List<ProcessGroup> groups = groups(options);
        try {
            run(groups, body);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void run(List<ProcessGroup> groups, BiConsumer<ProcessGroup, NDManager> body) {
        ProcessGroups.run(
                groups,
                group -> {
                    P2pRanks.run(
                            group,
                            () -> {
                                try (NDManager manager =
                                        NDManager.newBaseManager(group.device(), "PyTorch")) {
                                    body.accept(group, manager);
                                }
                            });
                    return null;
                });
    }

    /** Groups of ranks that share a GPU do not connect NCCL, even if the options name the GPU. */
    @Test
    void sumsOnNamedDevices() {
        Device[] devices =
                IntStream.range(0, P2pRanks.isShared() ? 1 : worldSize)
                        .mapToObj(Device::gpu)
                        .toArray(Device[]::new);
        run(
                P2pRanks.options(devices),
                (group, manager) -> {
                    NDArray tensor = manager.ones(new Shape(1000));
                    group.allReduce(tensor, ReduceOp.SUM).await();
                    assertEquals(worldSize, tensor.getFloat(999));
                });
    }

    @TestFactory
    Stream<DynamicTest> contract() {
        P2pRanks.requireNccl();
        return ContractCases.tests(
                NcclCases.cases(worldSize), () -> groups(P2pRanks.options()), P2pRanks::run);
    }

    /** The cases of collectives that run by copies, in rounds if they are large. */
    @TestFactory
    Stream<DynamicTest> contractByCopies() {
        Map<String, ContractCases.Case> cases = NcclCases.cases(worldSize);
        cases.keySet().retainAll(COPIED);
        return ContractCases.tests(cases, () -> groups(P2pRanks.copiesOptions()), P2pRanks::run);
    }

    /** With the calls of all ranks compared before they run. */
    @TestFactory
    Stream<DynamicTest> verifiedContract() {
        P2pRanks.requireNccl();
        return ContractCases.testsOnOwnGroups(
                NcclCases.verifiedCases(), () -> groups(P2pRanks.verifiedOptions()), P2pRanks::run);
    }

    /** Two calls, of which the last rank makes the second where the others make the first. */
    private record Differing(
            String one,
            Consumer<ProcessGroup> first,
            String other,
            Consumer<ProcessGroup> second) {}

    private static NDArray ones(ProcessGroup group, long count) {
        return group.device().isGpu()
                ? NDManager.newBaseManager(group.device(), "PyTorch").ones(new Shape(count))
                : null;
    }

    private static void allReduce(ProcessGroup group, long count) {
        group.allReduce(ones(group, count), ReduceOp.SUM).await();
    }

    private static void capture(ProcessGroup group, Runnable call) {
        try (CudaDevice device = CudaDevice.open(group.device());
                CudaStream stream = CudaStream.create(device)) {
            CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
            try {
                CudaGraph.capture(stream, call).close();
            } finally {
                guard.close();
            }
            // The graph is never launched: the next call detects the mismatch.
            allReduce(group, 10);
        }
    }

    /**
     * All ranks detect that their calls differ, and name the calls, although no host waits for
     * another. Any of the calls may run by NCCL or by P2P.
     */
    @TestFactory
    Stream<DynamicTest> callsThatDifferBreakTheGroup() {
        return differing(this::breaksTheGroup);
    }

    /** With verification, the group stays usable after a mismatch. */
    @TestFactory
    Stream<DynamicTest> callsThatDifferLeaveAVerifiedGroupUsable() {
        return differing(this::leavesTheGroupUsable);
    }

    private static Stream<DynamicTest> differing(Consumer<Differing> check) {
        OpType gather = new OpType("gatherByHand");
        return Stream.of(
                        new Differing(
                                "allReduce(float32, (10), SUM)",
                                group -> allReduce(group, 10),
                                "allReduce(float32, (1000), SUM)",
                                group -> allReduce(group, 1000)),
                        new Differing(
                                "allReduce(float32, (1000), SUM)",
                                group -> allReduce(group, 1000),
                                "allReduce(float32, (8000000), SUM)", // By NCCL.
                                group -> allReduce(group, 8_000_000)),
                        new Differing(
                                "gatherByHand()",
                                group ->
                                        group.execute(
                                                        gather,
                                                        NOTHING,
                                                        operation -> waitForAll(group, operation))
                                                .await(),
                                "broadcast(float32, (10), root 0)", // On the group's stream.
                                group -> group.broadcast(ones(group, 10), 0).await()),
                        new Differing(
                                "allReduce(float32, (10), SUM)",
                                group -> allReduce(group, 10),
                                "allReduce(float32, (10), SUM) into a graph",
                                group -> {
                                    NDArray tensor = ones(group, 10);
                                    capture(group, () -> group.allReduce(tensor, ReduceOp.SUM));
                                }))
                .map(
                        differing ->
                                dynamicTest(
                                        differing.one() + ", " + differing.other(),
                                        () -> {
                                            // NCCL needs a GPU for each rank.
                                            if (!P2pRanks.isShared()
                                                    || !differing.other().contains("8000000")) {
                                                check.accept(differing);
                                            }
                                        }));
    }

    private static void waitForAll(ProcessGroup group, Operation operation) {
        P2pBuffers buffers = group.p2pBuffers().orElseThrow();
        long epoch = buffers.epoch(operation);
        for (int peer = 0; peer < group.worldSize(); peer++) {
            buffers.putSignal(peer, 1, epoch);
        }
        for (int peer = 0; peer < group.worldSize(); peer++) {
            buffers.waitSignal(operation, peer, 1, epoch);
        }
    }

    private void breaksTheGroup(Differing differing) {
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    allReduce(group, 10);
                    boolean odd = group.rank() == group.worldSize() - 1;
                    String message =
                            assertThrows(
                                            CollectiveException.class,
                                            () ->
                                                    (odd ? differing.second() : differing.first())
                                                            .accept(group))
                                    .getMessage();
                    assertTrue(message.contains(differing.one()), message);
                    assertTrue(message.contains(differing.other()), message);
                    assertTrue(message.contains("flight record: "), message);
                    // The group is broken on all ranks.
                    assertThrows(
                            CollectiveException.class,
                            () -> {
                                while (true) {
                                    allReduce(group, 10);
                                }
                            });
                });
    }

    private void leavesTheGroupUsable(Differing differing) {
        run(
                P2pRanks.verifiedOptions(),
                (group, manager) -> {
                    for (int round = 0; round < 3; round++) {
                        boolean odd = group.rank() == round % group.worldSize();
                        CollectiveMismatchException e =
                                assertThrows(
                                        CollectiveMismatchException.class,
                                        () ->
                                                (odd ? differing.second() : differing.first())
                                                        .accept(group));
                        assertTrue(e.getMessage().contains(differing.one()), e.getMessage());
                        assertTrue(e.getMessage().contains(differing.other()), e.getMessage());
                        assertFalse(e.isGroupBroken(), e.getMessage());
                        NDArray tensor = manager.ones(new Shape(1000));
                        group.allReduce(tensor, ReduceOp.SUM).await(group.timeout());
                        assertEquals(worldSize, TestArrays.awaited(tensor.min()).getFloat());
                        assertEquals(worldSize, TestArrays.awaited(tensor.max()).getFloat());
                    }
                });
    }

    /** With verification, ranks can capture a graph, although each call waits for the others. */
    @Test
    void graphsOfVerifiedAllReduces() {
        run(
                P2pRanks.verifiedOptions(),
                (group, manager) ->
                        Replays.check(
                                group,
                                new Shape(1000),
                                input -> {
                                    group.allReduce(input, ReduceOp.SUM).blockCurrentStream();
                                    return Torch.alias(manager, input);
                                },
                                (value, ranks) -> ranks * value + ranks * (ranks - 1) / 2.0));
    }

    /** A rank that is far ahead of another waits for it. */
    @Test
    void aRankCanBeFarAhead() {
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    NDArray tensor = manager.ones(new Shape(4));
                    for (int i = 0; i < 3000; i++) {
                        if (group.rank() == 0 && i % 1000 == 500) {
                            try {
                                Thread.sleep(100);
                            } catch (InterruptedException e) {
                                throw new AssertionError(e);
                            }
                        }
                        group.allReduce(tensor, ReduceOp.AVG);
                    }
                    group.allReduce(tensor, ReduceOp.SUM).await(group.timeout());
                    assertEquals(worldSize, TestArrays.awaited(tensor.max()).getFloat());
                });
    }

    @Test
    void allReduceHasTheBitsOfRankOrder() {
        run(P2pRanks.options(), AllReduceCases::check);
    }

    @Test
    void directAllReduceHasTheBitsOfRankOrder() {
        run(P2pRanks.directOptions(), AllReduceCases::checkDirect);
    }

    /** Peers cannot access such memory: a copy is reduced. */
    @Test
    void directAllReduceOfMemoryThatPeersDoNotReach() {
        run(
                P2pRanks.directOptions().optHeapSize(1 << 20),
                (group, manager) -> {
                    P2pAllocator heap = group.p2pBuffers().orElseThrow().allocator();
                    try (NDArray tensor =
                            heap.allocate(manager, new Shape(1000), ScalarType.FLOAT32)) {
                        tensor.muli(0).addi(group.rank() + 1);
                        group.allReduce(tensor, ReduceOp.SUM).await(group.timeout());
                        float sum = worldSize * (worldSize + 1) / 2f;
                        assertEquals(sum, TestArrays.awaited(tensor.max()).getFloat());
                        assertEquals(sum, TestArrays.awaited(tensor.min()).getFloat());
                    }
                });
    }

    /**
     * Rank 0 times out in two sums, closes its tensors and continues; late peers do not change its
     * memory. A strided tensor is copied.
     */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void directAllReduceThatOneRankCallsTooLate(boolean strided) {
        CountDownLatch failed = new CountDownLatch(1);
        Shape shape = new Shape(1000, 100);
        run(
                P2pRanks.directOptions(),
                (group, manager) -> {
                    NDArray whole = manager.ones(shape);
                    NDArray tensor = strided ? whole.transpose() : whole;
                    group.allReduce(tensor, ReduceOp.AVG).await(group.timeout());
                    if (group.rank() > 0) {
                        Replays.await(failed);
                    }
                    ProcessGroup hasty = group.withTimeout(Duration.ofSeconds(1));
                    NDArray small = manager.ones(new Shape(10));
                    Executable sums =
                            () -> {
                                Work first = hasty.allReduce(tensor, ReduceOp.SUM);
                                hasty.allReduce(small, ReduceOp.SUM);
                                first.await(group.timeout());
                            };
                    String message = assertThrows(CollectiveException.class, sums).getMessage();
                    assertTrue(message.contains("rank"), message);
                    whole.close();
                    small.close();
                    NDArray next = manager.full(shape, 7f);
                    failed.countDown();
                    group.destroy();
                    assertEquals(7, TestArrays.awaited(next.max()).getFloat());
                    assertEquals(7, TestArrays.awaited(next.min()).getFloat());
                });
    }

    /**
     * The same with graphs: rank 0 replays alone and times out, closes graph and tensor, and
     * continues. Its peers replay too late.
     */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void directAllReduceOfAGraphThatOneRankReplaysTooEarly(boolean strided) {
        CountDownLatch failed = new CountDownLatch(1);
        Shape shape = new Shape(1000, 100);
        run(
                P2pRanks.directOptions(),
                (group, manager) -> {
                    ProcessGroup hasty = group.withTimeout(Duration.ofSeconds(1));
                    try (CudaDevice device = CudaDevice.open(group.device());
                            CudaStream stream = CudaStream.create(device)) {
                        CudaStreamGuard guard =
                                Torch.cudaStreamGuard(group.device(), stream.handle());
                        try {
                            NDArray whole = manager.ones(shape);
                            NDArray tensor = strided ? whole.transpose() : whole;
                            group.allReduce(tensor, ReduceOp.AVG).await(group.timeout());
                            manager.zeros(shape).close(); // a block for the copy in the graph
                            try (CudaGraph graph =
                                    CudaGraph.capture(
                                            stream,
                                            () ->
                                                    hasty.allReduce(tensor, ReduceOp.AVG)
                                                            .blockCurrentStream())) {
                                if (group.rank() > 0) {
                                    Replays.await(failed);
                                }
                                graph.launch(stream);
                                stream.synchronize();
                            }
                            tensor.close();
                            whole.close();
                            NDArray next = manager.full(shape, 7f);
                            stream.synchronize();
                            failed.countDown();
                            group.destroy();
                            assertEquals(7, TestArrays.awaited(next.max()).getFloat());
                            assertEquals(7, TestArrays.awaited(next.min()).getFloat());
                        } finally {
                            guard.close();
                        }
                    }
                });
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void stridedTensors(boolean direct) {
        run(
                direct ? P2pRanks.directOptions() : P2pRanks.options(),
                (group, manager) -> {
                    Shape shape = new Shape(37, 5);
                    NDArray tensor =
                            TestArrays.randomStrided(
                                    manager, ScalarType.BFLOAT16, shape, group.rank());
                    List<NDArray> parts = new ArrayList<>();
                    for (int rank = 0; rank < worldSize; rank++) {
                        parts.add(TestArrays.random(manager, ScalarType.BFLOAT16, shape, rank));
                    }
                    NDArray expected = Torch.empty(manager, shape, ScalarType.BFLOAT16);
                    Reductions.reduce(expected, parts, ReduceOp.SUM);
                    group.allReduce(tensor, ReduceOp.SUM).await();
                    assertArrayEquals(TestArrays.values(expected), TestArrays.values(tensor));
                });
    }

    @Test
    void randomSizesOneAfterTheOther() {
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    Random random = new Random(3);
                    for (int i = 0; i < 200; i++) {
                        long count = 1 + (long) Math.exp(random.nextDouble() * Math.log(3e6));
                        NDArray tensor = manager.ones(new Shape(count)).mul(group.rank() + i);
                        List<Work> works = new ArrayList<>();
                        for (int k = 0; k < 3; k++) {
                            works.add(group.allReduce(tensor, ReduceOp.AVG));
                        }
                        works.get(2).await();
                        float expected = i + (worldSize - 1) / 2f;
                        assertEquals(expected, TestArrays.awaited(tensor.max()).getFloat());
                        assertEquals(expected, TestArrays.awaited(tensor.min()).getFloat());
                        tensor.close();
                    }
                });
    }

    /**
     * Alternates operations of NCCL, on the group's stream, and of P2P, from two current streams,
     * without waits in between. A round leaves rank 0's value plus 1.
     */
    @Test
    void nextToThoseOfNccl() {
        P2pRanks.requireNccl();
        int rounds = 100;
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    try (CudaDevice device = CudaDevice.open(group.device());
                            CudaStream other = CudaStream.create(device)) {
                        NDArray tensor = manager.full(new Shape(50_000), (float) group.rank());
                        NDArray ones = manager.ones(new Shape(50_000));
                        group.broadcast(tensor, 0).await(group.timeout());
                        group.allReduce(tensor, ReduceOp.AVG).await(group.timeout());
                        device.synchronize();
                        Work last = null;
                        for (int i = 0; i < rounds; i++) {
                            group.broadcast(tensor, 0);
                            CudaStreamGuard guard =
                                    Torch.cudaStreamGuard(group.device(), other.handle());
                            group.allReduce(tensor, ReduceOp.AVG);
                            guard.close();
                            group.reduce(tensor, 0, ReduceOp.MAX);
                            group.broadcast(tensor, 0).blockCurrentStream();
                            TorchInPlace.add(tensor, ones);
                            last = group.allReduce(tensor, ReduceOp.AVG);
                        }
                        last.await(group.timeout());
                        assertEquals(rounds, TestArrays.awaited(tensor.max()).getFloat());
                        assertEquals(rounds, TestArrays.awaited(tensor.min()).getFloat());
                    }
                });
    }

    /**
     * Alternates reductions on the group's stream and operators on two other streams, without waits
     * in between. If one began before the previous one had ended, an addition would be lost.
     */
    @Test
    void reductionsAndOperatorsOfOtherStreamsRunInOrder() {
        OpType add = new OpType("add");
        int rounds = 200;
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    try (CudaDevice device = CudaDevice.open(group.device());
                            CudaStream other = CudaStream.create(device)) {
                        NDArray tensor = manager.full(new Shape(500_000), 3f);
                        NDArray ones = manager.ones(new Shape(500_000));
                        Runnable adds =
                                () ->
                                        group.execute(
                                                add,
                                                NOTHING,
                                                operation -> TorchInPlace.add(tensor, ones));
                        // Made, before another stream uses them.
                        assertEquals(3, TestArrays.awaited(tensor.min()).getFloat());
                        assertEquals(1, TestArrays.awaited(ones.min()).getFloat());
                        for (int i = 0; i < rounds; i++) {
                            adds.run();
                            CudaStreamGuard guard =
                                    Torch.cudaStreamGuard(group.device(), other.handle());
                            adds.run();
                            adds.run();
                            guard.close();
                            // On the group's stream, then on the current one.
                            group.allReduce(tensor, ReduceOp.AVG);
                            if (i % 3 == 0) {
                                group.allReduce(tensor, ReduceOp.AVG, false);
                            }
                            if (i % 2 == 0) {
                                group.allReduceCoalesced(List.of(tensor), ReduceOp.AVG);
                            }
                        }
                        group.allReduce(tensor, ReduceOp.AVG).await(group.timeout());
                        assertEquals(3 + 3 * rounds, TestArrays.awaited(tensor.max()).getFloat());
                        assertEquals(3 + 3 * rounds, TestArrays.awaited(tensor.min()).getFloat());
                        other.synchronize();
                    }
                });
    }

    /** Runs code with a current stream of its own. */
    private static void onStream(ProcessGroup group, Consumer<CudaStream> body) {
        try (CudaDevice device = CudaDevice.open(group.device());
                CudaStream stream = CudaStream.create(device)) {
            CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
            try {
                body.accept(stream);
            } finally {
                guard.close();
                stream.synchronize();
            }
        }
    }

    /**
     * Rank 1 joins an all-reduce, by a kernel or by NCCL, only when it has the message that rank 0
     * sends behind it: on the same stream, and from another thread, while the stream of the
     * all-reduce waits for it. The first message behind NCCL is left out: NCCL may wait for its own
     * kernels while it sets up what messages need.
     */
    @TestFactory
    Stream<DynamicTest> messagesPassAllReduces() {
        P2pRanks.requireNccl();
        return Stream.of(
                dynamicTest("one-shot, the first message", () -> messagesPass(1000, false)),
                dynamicTest("one-shot", () -> messagesPass(1000, true)),
                dynamicTest("two-shot, the first message", () -> messagesPass(500_000, false)),
                dynamicTest("two-shot", () -> messagesPass(500_000, true)),
                dynamicTest(
                        "direct, the first message",
                        () -> messagesPass(P2pRanks.directOptions(), 500_000, false)),
                dynamicTest("direct", () -> messagesPass(P2pRanks.directOptions(), 500_000, true)),
                dynamicTest("NCCL", () -> messagesPass(8_000_000, true)));
    }

    private void messagesPass(int count, boolean connected) {
        messagesPass(P2pRanks.options(), count, connected);
    }

    private void messagesPass(CudaP2pOptions.Builder options, int count, boolean connected) {
        run(
                options,
                (group, manager) -> {
                    NDArray message = manager.full(new Shape(100), (float) group.rank());
                    NDArray tensor = manager.ones(new Shape(count));
                    Duration patience = group.timeout();
                    group.allReduce(tensor, ReduceOp.AVG).await(patience);
                    if (connected && group.rank() == 0) {
                        group.send(message, 1, 0).await(patience);
                    } else if (connected && group.rank() == 1) {
                        group.recv(message, 0, 0).await(patience);
                    }
                    for (int round = 1; round <= 5; round++) {
                        message.muli(0).addi(10 * round + group.rank());
                        assertEquals(
                                10 * round + group.rank(),
                                TestArrays.awaited(message.max()).getFloat());
                        if (group.rank() == 0 && round % 2 == 0) {
                            onStream(group, stream -> sumThenSend(group, tensor, message));
                        } else if (group.rank() == 0) {
                            Work sum = group.allReduce(tensor, ReduceOp.AVG);
                            group.send(message, 1, 0).await(patience);
                            sum.await(patience);
                        } else {
                            if (group.rank() == 1) {
                                group.recv(message, 0, 0).await(patience);
                                assertEquals(
                                        10 * round, TestArrays.awaited(message.max()).getFloat());
                            }
                            group.allReduce(tensor, ReduceOp.AVG).await(patience);
                        }
                        assertEquals(1, TestArrays.awaited(tensor.max()).getFloat());
                    }
                });
    }

    /** The calling thread's stream waits for the sum; the message is another thread's. */
    private static void sumThenSend(ProcessGroup group, NDArray tensor, NDArray message) {
        Work sum = group.allReduce(tensor, ReduceOp.AVG);
        sum.blockCurrentStream();
        CompletableFuture.runAsync(
                        () ->
                                onStream(
                                        group,
                                        stream -> group.send(message, 1, 0).await(group.timeout())))
                .join();
        sum.await(group.timeout());
    }

    /**
     * Rank 0 tells its stream to wait, and destroys the group long before the others have called
     * what it has: by then the results are there, of kernels, NCCL and operators.
     */
    @Test
    void destroyLetsOperationsEnd() {
        boolean alone = P2pRanks.isShared(); // No NCCL.
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    NDArray small = manager.full(new Shape(1000), group.rank() + 1f);
                    NDArray large = manager.full(new Shape(8_000_000), group.rank() + 1f);
                    NDArray code = manager.full(new Shape(1000), 5f);
                    group.allReduce(small, ReduceOp.AVG).await(group.timeout());
                    small.muli(0).addi(group.rank() + 1);
                    if (!alone) {
                        group.allReduce(large, ReduceOp.SUM).await(group.timeout());
                        large.muli(0).addi(group.rank() + 1);
                    }
                    pause(group.rank() == 0 ? 0 : 1000);
                    List<Work> works = new ArrayList<>();
                    works.add(group.allReduce(small, ReduceOp.SUM));
                    if (!alone) {
                        works.add(group.allReduce(large, ReduceOp.SUM));
                    }
                    works.add(
                            group.execute(
                                    new OpType("exchange"),
                                    NOTHING,
                                    operation -> {
                                        waitForAll(group, operation);
                                        code.muli(2);
                                    }));
                    works.forEach(Work::blockCurrentStream);
                    NDArray twice = small.add(small);
                    group.destroy();
                    for (Work work : works) {
                        assertTrue(work.isSuccess(), work.toString());
                    }
                    int sum = worldSize * (worldSize + 1) / 2;
                    assertEquals(2 * sum, TestArrays.awaited(twice.min()).getFloat());
                    assertEquals(2 * sum, TestArrays.awaited(twice.max()).getFloat());
                    assertEquals(10, TestArrays.awaited(code.max()).getFloat());
                    if (!alone) {
                        assertEquals(sum, TestArrays.awaited(large.min()).getFloat());
                        assertEquals(sum, TestArrays.awaited(large.max()).getFloat());
                    }
                });
    }

    /** Operations that wait for a rank that has destroyed the group fail and name the rank. */
    @Test
    void destroyDoesNotWaitForDestroyedPeers() {
        List<ProcessGroup> groups =
                ProcessGroups.local(
                        "cuda_p2p", worldSize, P2pRanks.options().optBufferSize(1 << 20).build());
        int last = worldSize - 1;
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        P2pRanks.run(group, () -> leaveOrWait(group, last));
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void leaveOrWait(ProcessGroup group, int leaver) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            NDArray tensor = manager.ones(new Shape(1000));
            ProcessGroup patient = group.withTimeout(Duration.ofMinutes(10));
            Work both = patient.allReduce(tensor, ReduceOp.SUM);
            if (group.rank() == leaver) {
                group.destroy();
                assertTrue(both.isSuccess(), both.toString());
                return;
            }
            Work late = patient.allReduce(tensor, ReduceOp.SUM);
            if (group.rank() == 0) {
                group.destroy(); // waits, too
            } else {
                assertThrows(CollectiveException.class, () -> late.await(group.timeout()));
            }
            assertTrue(both.isSuccess(), both.toString());
            String message = late.exception().orElseThrow().getMessage();
            // or the error of another rank that failed for this reason
            assertTrue(message.contains("rank " + leaver + " has destroyed"), message);
        }
    }

    /**
     * One thread destroys the groups of all ranks, of which only the first has called something.
     */
    @Test
    void oneThreadDestroysAllRanks() {
        List<ProcessGroup> groups =
                ProcessGroups.local("cuda_p2p", worldSize, P2pRanks.options().build());
        ProcessGroup group = groups.get(0);
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            NDArray tensor = manager.ones(new Shape(1000));
            Work work = group.withTimeout(Duration.ofSeconds(2)).allReduce(tensor, ReduceOp.SUM);
            groups.forEach(ProcessGroup::destroy);
            String message = assertThrows(CollectiveException.class, work::await).getMessage();
            assertTrue(message.contains("timed out") || message.contains("arrive"), message);
        }
    }

    private static void pause(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** One thread issues the operations of all ranks: kernels and NCCL's, in one batch. */
    @Test
    void oneThreadDrivesAllRanks() {
        P2pRanks.requireNccl();
        List<ProcessGroup> groups =
                ProcessGroups.local("cuda_p2p", worldSize, P2pRanks.options().build());
        try (NDManager manager = NDManager.newBaseManager()) {
            for (int round = 0; round < 3; round++) {
                List<NDArray> tensors = new ArrayList<>();
                for (ProcessGroup group : groups) {
                    NDManager own = manager.newSubManager(group.device());
                    tensors.add(own.full(new Shape(1000), (float) group.rank()));
                }
                List<Work> works = new ArrayList<>();
                NcclBatch.run(
                        () -> {
                            for (int rank = 0; rank < worldSize; rank++) {
                                ProcessGroup group = groups.get(rank);
                                NDArray tensor = tensors.get(rank);
                                works.add(group.broadcast(tensor, 1));
                                works.add(group.allReduce(tensor, ReduceOp.SUM));
                                works.add(group.reduce(tensor, 0, ReduceOp.MAX));
                                works.add(group.allReduce(tensor, ReduceOp.SUM));
                            }
                        });
                works.forEach(work -> work.await(Duration.ofSeconds(30)));
                for (NDArray tensor : tensors) {
                    assertEquals(
                            worldSize * worldSize, TestArrays.awaited(tensor.max()).getFloat());
                    assertEquals(
                            worldSize * worldSize, TestArrays.awaited(tensor.min()).getFloat());
                }
            }
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Coalesced operations and batches run after earlier NCCL operations without a wait. */
    @Test
    void batchesRunAfterEarlierNcclOperations() {
        P2pRanks.requireNccl();
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    NDArray tensor = manager.zeros(new Shape(100_000));
                    NDArray other = manager.zeros(new Shape(100_000));
                    group.broadcast(tensor, 0).await(group.timeout());
                    group.reduce(other, 0, ReduceOp.MAX).await(group.timeout());
                    for (int round = 1; round <= 50; round++) {
                        try (NDArray value = manager.full(tensor.getShape(), (float) round)) {
                            if (group.rank() == 0) {
                                Torch.copy(tensor, value);
                            }
                        }
                        group.broadcast(tensor, 0);
                        group.reduce(other, 0, ReduceOp.MAX); // by NCCL
                        List<Work> works = new ArrayList<>();
                        if (round % 2 == 0) {
                            works.add(group.allReduceCoalesced(List.of(tensor), ReduceOp.SUM));
                        } else {
                            NcclBatch.run(() -> works.add(group.allReduce(tensor, ReduceOp.SUM)));
                        }
                        works.get(0).await(group.timeout());
                        assertEquals(
                                worldSize * round, TestArrays.awaited(tensor.max()).getFloat());
                        assertEquals(
                                worldSize * round, TestArrays.awaited(tensor.min()).getFloat());
                    }
                });
    }

    @Test
    void capturingNcclOperationsFails() {
        P2pRanks.requireNccl();
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    try (CudaDevice device = CudaDevice.open(group.device());
                            CudaStream stream = CudaStream.create(device)) {
                        NDArray tensor = manager.ones(new Shape(1000));
                        group.allReduce(tensor, ReduceOp.MAX).await(group.timeout());
                        CudaStreamGuard guard =
                                Torch.cudaStreamGuard(group.device(), stream.handle());
                        IllegalStateException e =
                                assertThrows(
                                        IllegalStateException.class,
                                        () ->
                                                CudaGraph.capture(
                                                        stream,
                                                        () ->
                                                                group.allReduce(
                                                                        tensor, ReduceOp.MAX)));
                        guard.close();
                        assertTrue(e.getMessage().contains("CUDA graph"), e.getMessage());
                        group.allReduce(tensor, ReduceOp.SUM).await(group.timeout());
                        assertEquals(worldSize, TestArrays.awaited(tensor.max()).getFloat());
                    }
                });
    }

    @Test
    void graphsOfStridedTensors() {
        run(
                P2pRanks.options(),
                (group, manager) ->
                        checkReplays(group, manager, new Shape(100, 30), NDArray::transpose));
    }

    /** Replays an all-reduce of a view of the input. */
    private static void checkReplays(
            ProcessGroup group, NDManager manager, Shape shape, UnaryOperator<NDArray> viewed) {
        Replays.check(
                group,
                shape,
                input -> {
                    try (NDArray view = viewed.apply(Torch.alias(manager, input))) {
                        group.allReduce(view, ReduceOp.SUM).blockCurrentStream();
                    }
                    return Torch.alias(manager, input);
                },
                (value, ranks) -> ranks * value + ranks * (ranks - 1) / 2.0);
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void graphsOfAllReduces(boolean direct) {
        for (long count : new long[] {1000, 500_000}) {
            run(
                    direct ? P2pRanks.directOptions() : P2pRanks.options(),
                    (group, manager) ->
                            checkReplays(
                                    group, manager, new Shape(count), UnaryOperator.identity()));
        }
    }

    /** Tensors larger than a slot take several launches; two ranks use one-shot by default. */
    @ParameterizedTest
    @ValueSource(longs = {0, 64 << 20})
    void graphsOfSeveralLaunches(long oneShotBytes) {
        run(
                P2pRanks.options().optOneShotBytes(oneShotBytes),
                (group, manager) ->
                        checkReplays(
                                group, manager, new Shape(16_000_001), UnaryOperator.identity()));
    }

    /** A NaN with the bits that mark absent data arrives, and the sum is NaN. */
    @ParameterizedTest
    @ValueSource(longs = {0, 1 << 20})
    void emptyMarkerNanIsReplaced(long oneShotBytes) {
        run(
                P2pRanks.options().optOneShotBytes(oneShotBytes),
                (group, manager) -> {
                    for (ScalarType type : List.of(ScalarType.FLOAT32, ScalarType.BFLOAT16)) {
                        NDArray tensor = Torch.empty(manager, new Shape(4000), type);
                        TestArrays.bytes(manager, tensor).muli(0).subi(1);
                        group.allReduce(tensor, ReduceOp.SUM).await(group.timeout());
                        for (double value : TestArrays.values(tensor)) {
                            assertTrue(Double.isNaN(value));
                        }
                    }
                });
    }

    /** A replayed kernel times out, which breaks the group on all ranks. */
    @Test
    void graphThatOneRankReplaysAlone() {
        CountDownLatch replayed = new CountDownLatch(1);
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    ProcessGroup hasty = group.withTimeout(Duration.ofSeconds(2));
                    NDArray tensor = manager.ones(new Shape(1000));
                    try (CudaDevice device = CudaDevice.open(group.device());
                            CudaStream stream = CudaStream.create(device)) {
                        CudaStreamGuard guard =
                                Torch.cudaStreamGuard(group.device(), stream.handle());
                        group.allReduce(tensor, ReduceOp.AVG).await(group.timeout());
                        try (CudaGraph graph =
                                CudaGraph.capture(
                                        stream,
                                        () ->
                                                hasty.allReduce(tensor, ReduceOp.AVG)
                                                        .blockCurrentStream())) {
                            if (group.rank() == 0) {
                                graph.launch(stream);
                                stream.synchronize();
                                replayed.countDown();
                            }
                            Replays.await(replayed); // Calls of peers would be taken for a replay.
                            Executable untilItFails =
                                    () -> {
                                        while (true) {
                                            group.allReduce(tensor, ReduceOp.AVG)
                                                    .await(group.timeout());
                                        }
                                    };
                            String message =
                                    assertThrows(CollectiveException.class, untilItFails)
                                            .getMessage();
                            assertTrue(message.contains("did not arrive"), message);
                        } finally {
                            guard.close();
                        }
                    }
                });
    }

    /**
     * The output of a kernel that gave up is arbitrary; nothing on its stream may be based on it.
     */
    @Test
    void callAfterATimedOutWaitFails() {
        CountDownLatch failed = new CountDownLatch(1);
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    NDArray tensor = manager.ones(new Shape(1000));
                    group.allReduce(tensor, ReduceOp.AVG).await(group.timeout());
                    if (group.rank() != 0) {
                        Replays.await(failed);
                        return;
                    }
                    ProcessGroup hasty = group.withTimeout(Duration.ofSeconds(1));
                    Work work = hasty.allReduce(tensor, ReduceOp.AVG);
                    work.blockCurrentStream();
                    CurrentStreams.await(group.device());
                    String message =
                            assertThrows(
                                            CollectiveException.class,
                                            () -> group.allReduce(tensor, ReduceOp.AVG))
                                    .getMessage();
                    assertTrue(message.contains("did not arrive"), message);
                    assertTrue(
                            work.exception().orElseThrow() instanceof CollectiveTimeoutException);
                    failed.countDown();
                });
    }

    /** On each of two channels, every rank sends its number and the round to all ranks. */
    @Test
    void everyRankReceivesFromAllRanksOnTwoChannels() {
        OpType exchange = new OpType("exchange");
        int channels = 2;
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    P2pBuffers buffers = group.p2pBuffers().orElseThrow();
                    int rank = group.rank();
                    NDArray[] values = new NDArray[channels];
                    Shape all = new Shape(channels, worldSize);
                    for (int round = 0; round < 10; round++) {
                        for (int channel = 0; channel < channels; channel++) {
                            values[channel] =
                                    manager.create(new float[] {rank + 10 * channel + 100 * round});
                        }
                        NDArray result = manager.zeros(all);
                        group.execute(
                                        exchange,
                                        NOTHING,
                                        operation -> {
                                            long epoch = buffers.epoch(operation);
                                            long half = epoch % 2 * buffers.bufferSize() / 2;
                                            send(buffers, operation, rank, values, half);
                                            buffers.awaitAgreement(operation);
                                            for (int i = 0; i < channels * worldSize; i++) {
                                                buffers.waitSignal(
                                                        operation,
                                                        i % worldSize,
                                                        1 + i / worldSize,
                                                        epoch);
                                            }
                                            takeSent(buffers, result, half);
                                        })
                                .await();
                        double[] got = TestArrays.values(result);
                        for (int i = 0; i < got.length; i++) {
                            int want = i % worldSize + 10 * (i / worldSize) + 100 * round;
                            assertEquals(want, got[i]);
                        }
                    }
                    assertThrows(
                            IllegalArgumentException.class,
                            () ->
                                    buffers.p2pBuffer(
                                            manager,
                                            rank,
                                            new Shape(2),
                                            ScalarType.FLOAT32,
                                            buffers.bufferSize() - 4));
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> buffers.putSignal(0, buffers.channels(), 1));
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> buffers.putSignal(worldSize, 0, 1));
                });
    }

    /** The current stream waits for data that the side streams of peers send. */
    @Test
    void sideStreamRunsWhileTheCurrentStreamWaits() {
        OpType exchange = new OpType("test.sides");
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    P2pBuffers buffers = group.p2pBuffers().orElseThrow();
                    int rank = group.rank();
                    Shape all = new Shape(worldSize);
                    NDArray value = manager.create(new float[] {1 + rank});
                    NDArray result = manager.zeros(all);
                    group.execute(
                                    exchange,
                                    NOTHING,
                                    operation -> {
                                        long epoch = buffers.epoch(operation);
                                        long half = epoch % 2 * buffers.bufferSize() / 2;
                                        try (P2pStream side = buffers.sideStream(operation);
                                                P2pStream current =
                                                        buffers.currentStream(operation)) {
                                            current.waitSignals(0, epoch);
                                            for (int peer = 0; peer < worldSize; peer++) {
                                                side.put(
                                                        peer,
                                                        half + (long) rank * Float.BYTES,
                                                        Torch.dataPointer(value),
                                                        Float.BYTES);
                                                side.signal(peer, 0, epoch);
                                            }
                                            current.waitEvent(side.record());
                                        }
                                        takeSent(buffers, result, half);
                                    })
                            .await();
                    double[] got = TestArrays.values(result);
                    for (int i = 0; i < worldSize; i++) {
                        assertEquals(1 + i, got[i]);
                    }
                    assertThrows(IllegalArgumentException.class, () -> buffers.putSignal(0, 0, 2));
                });
    }

    /** Rank 0 signals in 400 operations before its peers wait for the first of the signals. */
    @Test
    void signalsOfARankThatIsFarAhead() {
        OpType signal = new OpType("test.ahead");
        CountDownLatch ahead = new CountDownLatch(1);
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    P2pBuffers buffers = group.p2pBuffers().orElseThrow();
                    if (group.rank() > 0) {
                        Replays.await(ahead);
                    }
                    Work last = null;
                    for (int i = 0; i < 400; i++) {
                        last =
                                group.execute(
                                        signal,
                                        NOTHING,
                                        operation -> {
                                            long epoch = buffers.epoch(operation);
                                            for (int peer = 1; peer < worldSize; peer++) {
                                                if (group.rank() == 0) {
                                                    buffers.putSignal(peer, 0, epoch);
                                                }
                                            }
                                            if (group.rank() > 0) {
                                                buffers.waitSignal(operation, 0, 0, epoch);
                                            }
                                        });
                    }
                    last.await(group.timeout());
                    ahead.countDown();
                });
    }

    /**
     * A side stream signals after the operation's body has ended. The signal is not taken for one
     * of the next operation, which brings the data only later.
     */
    @Test
    void lateSideStreamSignalIsNotTakenForTheNextOperation() {
        OpType send = new OpType("test.late");
        CountDownLatch entered = new CountDownLatch(1);
        CountDownLatch taken = new CountDownLatch(1);
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    P2pBuffers buffers = group.p2pBuffers().orElseThrow();
                    int rank = group.rank();
                    NDArray value = manager.full(new Shape(1), 7f);
                    NDArray result = manager.zeros(new Shape(1));
                    group.execute(
                            send,
                            NOTHING,
                            operation -> {
                                long epoch = buffers.epoch(operation);
                                if (rank == 0) {
                                    try (P2pStream side = buffers.sideStream(operation)) {
                                        side.waitSignal(1, 1, epoch);
                                        side.signal(1, 0, epoch);
                                    }
                                } else if (rank == 1) {
                                    waitFor(entered);
                                    buffers.putSignal(0, 1, epoch);
                                    buffers.waitSignal(operation, 0, 0, epoch);
                                }
                            });
                    Work second =
                            group.execute(
                                    send,
                                    NOTHING,
                                    operation -> {
                                        long epoch = buffers.epoch(operation);
                                        if (rank == 0) {
                                            entered.countDown();
                                            waitFor(taken);
                                            try (P2pStream stream =
                                                    buffers.currentStream(operation)) {
                                                long source = Torch.dataPointer(value);
                                                stream.put(1, 0, source, Float.BYTES);
                                                stream.signal(1, 0, epoch);
                                            }
                                        } else if (rank == 1) {
                                            buffers.waitSignal(operation, 0, 0, epoch);
                                            takeSent(buffers, result, 0);
                                        }
                                    });
                    if (rank == 1) {
                        pause();
                        taken.countDown();
                    }
                    second.await(group.timeout());
                    if (rank == 1) {
                        assertEquals(7, TestArrays.values(result)[0]);
                    }
                });
    }

    /** Waits for a latch, and then long enough that a GPU does what it need not wait for. */
    private static void waitFor(CountDownLatch latch) {
        Replays.await(latch);
        pause();
    }

    private static void pause() {
        try {
            Thread.sleep(200);
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    /** Ranks choose paths by the rates of the slowest GPU, from the kernel cache. */
    @Test
    void ranksAgreeOnTheRatesOfTheirGpus() {
        GpuTests.require(1, NativeLibrary.CUBLASLT);
        Set<GpuRates> rates = ConcurrentHashMap.newKeySet();
        run(
                P2pRanks.options(),
                (group, manager) ->
                        rates.add(group.p2pBuffers().orElseThrow().gpuRates().orElseThrow()));
        assertEquals(1, rates.size(), rates::toString);
    }

    /** The bounds hold for all links: PCIe 3.0 copies 12 GB/s, NVLink 5.0 less than 900. */
    @Test
    void allRanksReportTheSameLinkRate() {
        Set<OptionalDouble> rates = ConcurrentHashMap.newKeySet();
        run(
                P2pRanks.options(),
                (group, manager) -> rates.add(group.p2pBuffers().orElseThrow().linkRate()));
        assertEquals(1, rates.size(), rates::toString);
        OptionalDouble rate = rates.iterator().next();
        assertEquals(P2pRanks.isShared(), rate.isEmpty());
        rate.ifPresent(each -> assertTrue(each > 5 && each < 1000, each + " GB/s"));
    }

    /** The measurement runs kernels in the group's slots, which the first operations use again. */
    @Test
    void allReducesAreRightAfterAnEagerGroupMeasuredTheNcclLimit() {
        P2pRanks.requireNccl();
        Device[] gpus = IntStream.range(0, worldSize).mapToObj(Device::gpu).toArray(Device[]::new);
        NcclOptions nccl = NcclOptions.builder().optDevices(gpus).build();
        CudaP2pOptions options =
                CudaP2pOptions.builder().optNcclOptions(nccl).optMeasureNcclLimit(true).build();
        List<ProcessGroup> groups = ProcessGroups.local("cuda_p2p", worldSize, options);
        try {
            run(
                    groups,
                    (group, manager) -> {
                        for (long count : new long[] {10, 1 << 20, 20 << 20}) {
                            NDArray sum = manager.ones(new Shape(count));
                            group.allReduce(sum, ReduceOp.SUM).await();
                            assertEquals(worldSize, sum.min().getFloat());
                            assertEquals(worldSize, sum.max().getFloat());
                        }
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void signalsOutsideOfOperationsAreRefused() {
        run(
                P2pRanks.options(),
                (group, manager) -> {
                    P2pBuffers buffers = group.p2pBuffers().orElseThrow();
                    String message =
                            assertThrows(
                                            IllegalStateException.class,
                                            () -> buffers.putSignal(0, 0, 1))
                                    .getMessage();
                    assertTrue(message.contains("ProcessGroup.execute"), message);
                });
    }

    /** Copies from this rank's buffer. */
    private static void takeSent(P2pBuffers buffers, NDArray result, long offset) {
        NDManager manager = result.getManager();
        Shape shape = result.getShape();
        Torch.copy(
                result,
                buffers.p2pBuffer(manager, buffers.rank(), shape, ScalarType.FLOAT32, offset));
    }

    private void send(
            P2pBuffers buffers, Operation operation, int rank, NDArray[] values, long half) {
        long epoch = buffers.epoch(operation);
        try (P2pStream stream = buffers.currentStream(operation)) {
            for (int channel = 0; channel < values.length; channel++) {
                for (int peer = 0; peer < worldSize; peer++) {
                    int place = channel * worldSize + rank;
                    long offset = half + (long) place * Float.BYTES;
                    long source = Torch.dataPointer(values[channel]);
                    stream.put(peer, offset, source, Float.BYTES);
                    stream.signal(peer, 1 + channel, epoch);
                }
            }
        }
    }

    @Test
    void buffersOfADestroyedGroupAreAnError() {
        run(
                P2pRanks.options().optHeapSize(1 << 20),
                (group, manager) -> {
                    P2pBuffers buffers = group.p2pBuffers().orElseThrow();
                    Shape shape = new Shape(1);
                    int rank = group.rank();
                    group.destroy();
                    for (Executable call :
                            List.<Executable>of(
                                    () ->
                                            buffers.p2pBuffer(
                                                    manager, rank, shape, ScalarType.INT8, 0),
                                    () ->
                                            buffers.allocator()
                                                    .allocate(manager, shape, ScalarType.INT8),
                                    () -> buffers.currentStream(null),
                                    () -> buffers.sideStream(null),
                                    () -> buffers.putSignal(0, 0, 1),
                                    () -> buffers.waitSignal((Operation) null, 0, 0, 1),
                                    () -> buffers.intraNodeBarrier(null))) {
                        String message =
                                assertThrows(IllegalStateException.class, call).getMessage();
                        assertTrue(message.contains("destroyed"), message);
                    }
                });
    }
}
