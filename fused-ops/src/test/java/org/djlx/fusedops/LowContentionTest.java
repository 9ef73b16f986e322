// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.djlx.fusedops.FusedOpsErrorsTest.assertRejected;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.p2p.P2pAllocator;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(300)
class LowContentionTest {

    static final List<ScalarType> FLOATS =
            List.of(
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT64,
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16);
    static final List<ScalarType> TYPES =
            List.of(
                    ScalarType.FLOAT32,
                    ScalarType.BFLOAT16,
                    ScalarType.INT64,
                    ScalarType.INT8,
                    ScalarType.BOOL);

    private static void expect(
            int worldSize,
            long bufferSize,
            long heapSize,
            long pipelined,
            FallbackReason reason,
            long fallbacks,
            Consumer<ProcessGroup> body) {
        try (UsageCounter usage = FusedOps.countUsage()) {
            LocalRanks.run(worldSize, bufferSize, heapSize, body);
            assertEquals(pipelined * worldSize, usage.calls(Path.PIPELINED));
            assertEquals(fallbacks * worldSize, usage.calls(Path.NCCL));
            if (reason != null) {
                assertEquals(fallbacks * worldSize, usage.fallbacks(reason));
            }
        }
    }

    static void allGather(ProcessGroup group, LowContentionCase wanted) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            wanted.allGather(group, manager).run();
        }
    }

    static void reduceScatter(ProcessGroup group, LowContentionCase wanted, ReduceOp op) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            wanted.reduceScatter(group, manager, op).run();
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 8})
    void allGathers(int worldSize) {
        List<LowContentionCase> grid = LowContentionCase.grid(TYPES);
        expect(
                worldSize,
                4 << 20,
                1 << 20,
                grid.size(),
                null,
                0,
                group -> grid.forEach(one -> allGather(group, one)));
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 2, 3, 8})
    void reduceScatters(int worldSize) {
        List<LowContentionCase> grid = LowContentionCase.grid(FLOATS);
        expect(
                worldSize,
                8 << 20,
                1 << 20,
                2L * grid.size(),
                null,
                0,
                group ->
                        grid.forEach(
                                one -> {
                                    reduceScatter(group, one, ReduceOp.SUM);
                                    reduceScatter(group, one, ReduceOp.AVG);
                                }));
    }

    /** Both collectives in random order, without waiting until all are issued. */
    @Test
    void manyAtOnce() {
        List<LowContentionCase> grid = LowContentionCase.grid(FLOATS);
        LocalRanks.run(
                3,
                4 << 20,
                64 << 20,
                group -> {
                    List<LowContentionCase> cases = new ArrayList<>(grid);
                    Collections.shuffle(cases, new Random(11));
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        List<Runnable> checks = new ArrayList<>();
                        for (int i = 0; i < cases.size(); i++) {
                            checks.add(
                                    i % 2 == 0
                                            ? cases.get(i).allGather(group, manager)
                                            : cases.get(i)
                                                    .reduceScatter(group, manager, ReduceOp.SUM));
                        }
                        checks.forEach(Runnable::run);
                    }
                    P2pAllocator allocator = group.p2pBuffers().orElseThrow().allocator();
                    assertEquals(64 << 20, allocator.freeBytes());
                });
    }

    /**
     * One rank gathers into its output again while slower ranks still read their previous output.
     */
    @Test
    void outputInTheHeapIsUsedAgainAndAgain() {
        LocalRanks.run(
                4,
                0,
                1 << 20,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray output =
                                group.p2pBuffers()
                                        .orElseThrow()
                                        .allocator()
                                        .allocate(manager, new Shape(4, 1000), ScalarType.FLOAT32);
                        for (int round = 0; round < 200; round++) {
                            NDArray input =
                                    manager.full(new Shape(1000), round * 4f + group.rank());
                            LowContention.allGather(group, output, input).await();
                            if (round % 4 == group.rank()) {
                                LockSupport.parkNanos(100_000); // Slower than the others.
                            }
                            for (int rank = 0; rank < 4; rank++) {
                                assertTrue(
                                        output.get(rank).eq(round * 4 + rank).all().getBoolean());
                            }
                            input.close();
                        }
                    }
                });
    }

    @Test
    void inputsMayBeClosedAtOnce() {
        LocalRanks.run(
                2,
                1 << 20,
                0,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray output = manager.zeros(new Shape(2, 5000));
                        Work work;
                        try (NDArray input = manager.full(new Shape(5000), group.rank() + 1f)) {
                            work = LowContention.allGather(group, output, input);
                        }
                        NDArray other = manager.full(new Shape(5000), -1f);
                        work.await();
                        assertEquals(3 * 5000, output.sum().getFloat());
                        other.close();
                    }
                });
    }

    @Test
    void fallbacks() {
        LowContentionCase small =
                new LowContentionCase(
                        ScalarType.FLOAT32, new Shape(8), LowContentionCase.Place.ANYWHERE, 1);
        LowContentionCase large =
                new LowContentionCase(
                        ScalarType.FLOAT32, new Shape(5000), LowContentionCase.Place.ANYWHERE, 2);
        Consumer<ProcessGroup> both =
                group -> {
                    allGather(group, large);
                    reduceScatter(group, large, ReduceOp.AVG);
                };
        expect(2, 4096, 0, 2, null, 0, both); // in rounds
        expect(2, 1023, 0, 0, FallbackReason.BUFFER_TOO_SMALL, 2, both);
        expect(2, 0, 0, 0, FallbackReason.NO_P2P_BUFFERS, 2, both);
        FusedOps.Scope forced = FusedOps.forceFallback();
        try {
            expect(2, 4096, 0, 0, FallbackReason.FORCED, 1, group -> allGather(group, small));
        } finally {
            forced.close();
        }
    }

    @Test
    void wrongArgumentsAreRejectedBeforeAnythingIsSent() {
        FusedOpsErrorsTest.assertNothingSent(
                (group, manager) -> {
                    NDArray whole = manager.zeros(new Shape(4, 3));
                    NDArray part = manager.zeros(new Shape(2, 3));
                    NDArray ints = manager.zeros(new Shape(4, 3), DataType.INT32);
                    NDArray someInts = manager.zeros(new Shape(2, 3), DataType.INT32);
                    NDArray wide = part.get(":1").broadcast(new Shape(4, 3));
                    assertRejected(() -> LowContention.allGather(null, whole, part), "null");
                    assertRejected(() -> LowContention.allGather(group, null, part), "null");
                    assertRejected(
                            () -> LowContention.allGather(group, part, part),
                            "must have 2 (the world size) times as many elements");
                    assertRejected(() -> LowContention.allGather(group, ints, part), "FLOAT32");
                    assertRejected(
                            () -> LowContention.allGather(group, whole, whole.get("1:3")),
                            "overlap");
                    assertRejected(() -> LowContention.allGather(group, wide, part), "broadcast");
                    assertRejected(
                            () -> LowContention.reduceScatter(group, part, whole, ReduceOp.MAX),
                            "SUM or AVG");
                    assertRejected(
                            () -> LowContention.reduceScatter(group, someInts, ints, ReduceOp.SUM),
                            "INT32");
                });
    }

    /** The output would cut the autograd graph, so inputs that require a gradient are refused. */
    @Test
    void inputsThatRequireGradientsAreRefused() {
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch");
                            GradientScope scope = GradientScope.open()) {
                        NDArray whole = manager.zeros(new Shape(4, 3));
                        NDArray part = manager.zeros(new Shape(2, 3));
                        NDArray wholeLeaf = manager.ones(new Shape(4, 3));
                        NDArray partLeaf = manager.ones(new Shape(2, 3));
                        wholeLeaf.setRequiresGradient(true);
                        partLeaf.setRequiresGradient(true);
                        assertRejected(
                                () -> LowContention.allGather(group, whole, partLeaf.mul(part)),
                                "DifferentiableCollectives.allGather");
                        assertRejected(
                                () ->
                                        LowContention.reduceScatter(
                                                group, part, wholeLeaf, ReduceOp.SUM),
                                "DifferentiableCollectives.reduceScatter");
                        LowContention.allGather(group, whole, partLeaf.stopGradient()).await();
                        assertEquals(12, whole.sum().getFloat());
                        NoGradient.get(
                                        () ->
                                                LowContention.reduceScatter(
                                                        group, part, wholeLeaf, ReduceOp.SUM))
                                .await();
                        assertEquals(12, part.sum().getFloat());
                        assertEquals(scope, GradientScope.current().orElseThrow());
                    }
                });
    }

    /** All ranks must agree on the offset of an output in the heap. */
    @Test
    void outputsAtDifferentPlacesAreAMismatch() {
        LocalRanks.run(
                2,
                1 << 20,
                1 << 20,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        P2pAllocator allocator = group.p2pBuffers().orElseThrow().allocator();
                        NDArray gap = allocator.allocate(manager, new Shape(8), ScalarType.FLOAT32);
                        NDArray next =
                                allocator.allocate(manager, new Shape(8), ScalarType.FLOAT32);
                        NDArray output = group.rank() == 0 ? gap : next;
                        NDArray input = manager.ones(new Shape(4));
                        Work work = LowContention.allGather(group, output, input);
                        CollectiveException e =
                                assertThrows(CollectiveMismatchException.class, work::await);
                        assertTrue(e.getMessage().contains("allGatherIntoTensor"), e::toString);
                        LowContention.allGather(group, next, input).await();
                        assertEquals(8, next.sum().getFloat());
                    }
                });
    }
}
