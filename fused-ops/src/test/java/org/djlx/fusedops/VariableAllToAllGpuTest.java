// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.function.BiConsumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** All-to-all with splits on the device, on all GPUs of the machine, with ranks as threads. */
@Tag("gpu")
@Timeout(300)
class VariableAllToAllGpuTest {

    private int worldSize;

    @BeforeEach
    void requireGpus() {
        worldSize = P2pRanks.require();
    }

    private void run(long bufferSize, BiConsumer<ProcessGroup, NDManager> body) {
        LocalRanks.run(
                ProcessGroups.local(
                        "cuda_p2p",
                        worldSize,
                        P2pRanks.options().optBufferSize(bufferSize).build()),
                group ->
                        P2pRanks.run(
                                group,
                                () -> {
                                    try (NDManager manager =
                                            NDManager.newBaseManager(group.device(), "PyTorch")) {
                                        body.accept(group, manager);
                                    }
                                }));
    }

    private void checkAll(long bufferSize, List<VdevCase> cases) {
        try (UsageCounter usage = FusedOps.countUsage()) {
            run(bufferSize, (group, manager) -> cases.forEach(one -> one.check(group)));
            long calls = cases.stream().mapToLong(one -> one.experts() == 0 ? 1 : 2).sum();
            assertEquals(calls * worldSize, usage.calls(Path.FUSED));
            assertEquals(calls * worldSize, usage.calls());
        }
    }

    @Test
    void movesRows() {
        checkAll(8 << 20, VdevCase.grid());
    }

    /** Streams of many pieces: more bytes than a stage, a lane, and the buffer. */
    @Test
    void manyPieces() {
        List<VdevCase> cases = new ArrayList<>();
        for (ScalarType type : List.of(ScalarType.FLOAT32, ScalarType.BFLOAT16, ScalarType.INT8)) {
            cases.add(new VdevCase(type, new Shape(1024), 0, 0, 300, 1));
            cases.add(new VdevCase(type, new Shape(1022), 2, 16, 90, 2));
            cases.add(new VdevCase(type, new Shape(331), 3, 0, 90, 3));
        }
        checkAll(128 << 10, cases);
        checkAll(4 << 20, cases);
    }

    @Test
    void manyExperts() {
        checkAll(
                8 << 20,
                List.of(new VdevCase(ScalarType.FLOAT32, new Shape(4), 1024 / worldSize, 4, 2, 3)));
    }

    /** The operations of a group count by the same words, whichever kernels run them. */
    @Test
    void amongOtherOperations() {
        run(
                8 << 20,
                (group, manager) -> {
                    NDArray shard = manager.full(new Shape(256), group.rank() + 1f);
                    NDArray gathered = manager.zeros(new Shape(worldSize, 256));
                    NDArray a =
                            TestArrays.of(
                                    manager,
                                    ScalarType.BFLOAT16,
                                    new Shape(64L * worldSize, 64),
                                    ones(64 * worldSize * 64));
                    NDArray b =
                            TestArrays.of(
                                    manager, ScalarType.BFLOAT16, new Shape(64, 64), ones(64 * 64));
                    Random random = new Random(9);
                    for (int i = 0; i < 200; i++) {
                        switch (random.nextInt(3)) {
                            case 0 -> {
                                LowContention.allGather(group, gathered, shard).await();
                                assertEquals(
                                        256.0 * worldSize * (worldSize + 1) / 2,
                                        TestArrays.awaited(gathered.sum()).getFloat());
                            }
                            case 1 -> {
                                try (NDArray sum =
                                        FusedOps.matmulReduceScatter(
                                                a, b, ReduceOp.SUM, 0, group)) {
                                    for (double value : TestArrays.values(sum)) {
                                        assertEquals(64.0 * worldSize, value);
                                    }
                                }
                            }
                            default ->
                                    new VdevCase(
                                                    ScalarType.FLOAT32,
                                                    new Shape(24),
                                                    random.nextInt(4),
                                                    0,
                                                    20,
                                                    i)
                                            .check(group);
                        }
                    }
                });
    }

    private static double[] ones(int count) {
        double[] ones = new double[count];
        Arrays.fill(ones, 1);
        return ones;
    }

    /** The kernels of two groups run at once, in another order on each rank. */
    @Test
    void besideAnotherGroup() {
        CudaP2pOptions options = P2pRanks.options().optBufferSize(4 << 20).build();
        List<ProcessGroup> one = ProcessGroups.local("cuda_p2p", worldSize, options);
        try {
            List<ProcessGroup> other = ProcessGroups.local("cuda_p2p", worldSize, options);
            try {
                calls(one, 1); // loads the kernels
                calls(other, 1);
                CompletableFuture<Void> behind =
                        CompletableFuture.runAsync(() -> calls(other, 1000));
                calls(one, 1000);
                behind.join();
            } finally {
                other.forEach(ProcessGroup::destroy);
            }
        } finally {
            one.forEach(ProcessGroup::destroy);
        }
    }

    private static void calls(List<ProcessGroup> groups, int calls) {
        VdevCase large = new VdevCase(ScalarType.FLOAT32, new Shape(512), 0, 0, 200, 1);
        ProcessGroups.run(
                groups,
                group -> {
                    calls(group, large, calls);
                    return null;
                });
    }

    private static void calls(ProcessGroup group, VdevCase one, int calls) {
        int ranks = group.worldSize();
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch");
                CudaDevice device = CudaDevice.open(group.device());
                CudaStream stream = CudaStream.create(device)) {
            CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
            try {
                VdevCase.Operands2d arrays = one.new Operands2d(manager, ranks, group.rank(), 0);
                for (int i = 0; i < calls; i++) {
                    one.issue(group, arrays);
                }
                stream.synchronize();
                one.verify(ranks, group.rank(), arrays);
            } finally {
                guard.close();
            }
        }
    }

    /** One graph, there and back; each replay has other splits and rows. */
    @Test
    void graphsReplayWithOtherSplits() {
        run(
                1 << 20,
                (group, manager) -> {
                    try (CudaDevice device = CudaDevice.open(group.device());
                            CudaStream stream = CudaStream.create(device)) {
                        CudaStreamGuard guard =
                                Torch.cudaStreamGuard(group.device(), stream.handle());
                        try {
                            replay(group, manager, stream);
                        } finally {
                            guard.close();
                        }
                    }
                });
    }

    private static VdevCase replayed(int seed) {
        return new VdevCase(ScalarType.FLOAT32, new Shape(16), 2, 4, 1 + seed % 40, seed);
    }

    private void replay(ProcessGroup group, NDManager manager, CudaStream stream) {
        VdevCase first = replayed(1);
        VdevCase.Operands2d fixed =
                replayed(39).new Operands2d(manager, worldSize, group.rank(), 600);
        VdevCase.Operands2d warm = first.new Operands2d(manager, worldSize, group.rank(), 0);
        first.issue(group, warm);
        stream.synchronize();
        try (CudaGraph graph = CudaGraph.capture(stream, () -> first.issue(group, fixed))) {
            for (int round = 0; round < 200; round++) {
                VdevCase one = replayed(round);
                try (NDManager inner = manager.newSubManager()) {
                    VdevCase.Operands2d given =
                            one.new Operands2d(inner, worldSize, group.rank(), 0);
                    for (int i = 0; i < fixed.all().length; i++) {
                        Torch.copy(begin(fixed.all()[i], given.all()[i]), given.all()[i]);
                    }
                    graph.launch(stream);
                    for (int i = 0; i < fixed.all().length; i++) {
                        Torch.copy(given.all()[i], begin(fixed.all()[i], given.all()[i]));
                    }
                    one.verify(worldSize, group.rank(), given);
                    if (round % 20 == 7) {
                        one.check(group); // Eager calls between replays.
                    }
                }
            }
            stream.synchronize();
        }
    }

    private static NDArray begin(NDArray of, NDArray like) {
        return Torch.narrow(of, 0, 0, like.getShape().get(0));
    }

    private interface Misuse {
        void change(ProcessGroup group, NDManager manager, Arguments arguments);
    }

    private static final class Arguments {
        private NDArray output;
        private NDArray splits;
        private boolean combine;
    }

    /** The work of the rank fails with the text; rows beyond the output are not written. */
    private void assertRefused(Misuse misuse, String text) {
        run(
                1 << 20,
                (group, manager) -> {
                    NDArray memory = manager.full(new Shape(60, 4), 5f);
                    NDArray input = manager.ones(new Shape(12, 4));
                    Shape two = new Shape(2, worldSize);
                    NDArray outSplits = longs(manager, two, new double[2 * worldSize]);
                    Arguments arguments = new Arguments();
                    arguments.output = Torch.narrow(memory, 0, 20, 40);
                    arguments.splits = equal(manager, 1);
                    // No rank loads a kernel while others wait.
                    VariableAllToAll.allToAllVdev(
                                    group, arguments.output, input, arguments.splits, outSplits)
                            .await();
                    TestArrays.values(outSplits);
                    memory.subi(memory).addi(5);
                    misuse.change(group, manager, arguments);
                    String message = "";
                    try {
                        for (int i = 0; i < 1_000_000; i++) {
                            if (arguments.combine) {
                                VariableAllToAll.allToAllVdev2dOffset(
                                                group,
                                                arguments.output,
                                                input,
                                                arguments.splits,
                                                outSplits)
                                        .await();
                            } else {
                                VariableAllToAll.allToAllVdev(
                                                group,
                                                arguments.output,
                                                input,
                                                arguments.splits,
                                                outSplits)
                                        .await();
                            }
                            TestArrays.values(outSplits);
                        }
                    } catch (CollectiveException e) {
                        message = e.getMessage();
                    }
                    assertTrue(message.contains(text), message);
                    double[] values = TestArrays.values(memory);
                    for (int i = 0; i < values.length; i++) {
                        if (i < 80 || i >= 80 + arguments.output.size()) {
                            assertEquals(5, values[i]);
                        }
                    }
                });
    }

    private NDArray equal(NDManager manager, int split) {
        double[] splits = new double[worldSize];
        Arrays.fill(splits, split);
        return longs(manager, new Shape(worldSize), splits);
    }

    private static NDArray longs(NDManager manager, Shape shape, double... values) {
        return TestArrays.of(manager, ScalarType.INT64, shape, values);
    }

    private boolean isLast(ProcessGroup group) {
        return group.rank() == worldSize - 1;
    }

    @Test
    void negativeSplitsAreRefused() {
        assertRefused(
                (group, manager, arguments) -> {
                    if (isLast(group)) {
                        arguments.splits = equal(manager, -3);
                    }
                },
                "rank " + (worldSize - 1) + ": split 0 is -3, but must be from 0 to 12");
    }

    @Test
    void tooManyRowsAreRefused() {
        assertRefused(
                (group, manager, arguments) -> {
                    if (isLast(group)) {
                        double[] splits = new double[worldSize];
                        splits[0] = 7;
                        splits[worldSize - 1] += 6;
                        arguments.splits = longs(manager, new Shape(worldSize), splits);
                    }
                },
                worldSize == 1
                        ? "rank 0: split 0 is 13, but must be from 0 to 12"
                        : "the splits add up to 13 rows, but the input has 12");
    }

    @Test
    void offsetsOutsideTheInputAreRefused() {
        assertRefused(
                (group, manager, arguments) -> {
                    arguments.combine = true;
                    double[] values = new double[2 * worldSize];
                    values[worldSize - 1] = 2;
                    values[2 * worldSize - 1] = isLast(group) ? 11 : 10;
                    arguments.splits = longs(manager, new Shape(2, worldSize), values);
                },
                "offset " + (worldSize - 1) + " is 11, but must be from 0 to 10");
    }

    @Test
    void outputsWithTooFewRowsAreRefused() {
        assertRefused(
                (group, manager, arguments) -> {
                    arguments.splits = equal(manager, 3);
                    if (isLast(group)) {
                        arguments.output = Torch.narrow(arguments.output, 0, 0, 2);
                    }
                },
                "the received rows and their padding take "
                        + 3 * worldSize
                        + " rows, but the output has 2: pass a larger output");
    }

    /** The host would have to read the splits. */
    @Test
    void theFallbackIsNotRecorded() {
        FusedOps.Scope forced = FusedOps.forceFallback("allToAllVdev2d");
        try {
            run(1 << 20, this::assertNotRecorded);
        } finally {
            forced.close();
        }
    }

    private void assertNotRecorded(ProcessGroup group, NDManager manager) {
        VdevCase one = replayed(1);
        VdevCase.Operands2d arrays = one.new Operands2d(manager, worldSize, group.rank(), 0);
        try (CudaDevice device = CudaDevice.open(group.device());
                CudaStream stream = CudaStream.create(device)) {
            CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
            try {
                String message =
                        assertThrows(
                                        IllegalStateException.class,
                                        () ->
                                                CudaGraph.capture(
                                                        stream, () -> one.issue(group, arrays)))
                                .getMessage();
                assertTrue(message.contains("cannot be recorded"), message);
            } finally {
                guard.close();
            }
        }
    }

    /** On GPUs, too, the host can read the splits and call allToAllSingle. */
    @Test
    void fallsBack() {
        P2pRanks.requireNccl();
        FusedOps.Scope forced = FusedOps.forceFallback();
        try (UsageCounter usage = FusedOps.countUsage()) {
            run(1 << 20, (group, manager) -> VdevCase.grid().forEach(one -> one.check(group)));
            assertEquals(usage.calls(), usage.calls(Path.NCCL));
        } finally {
            forced.close();
        }
    }
}
