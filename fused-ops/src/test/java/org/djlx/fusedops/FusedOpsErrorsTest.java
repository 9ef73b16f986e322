// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.BiConsumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Errors of the fused operators. */
@Timeout(120)
class FusedOpsErrorsTest {

    /** Checks that a call is refused, with a message that contains all texts. */
    static void assertRejected(Executable call, String... texts) {
        String message = assertThrows(IllegalArgumentException.class, call).getMessage();
        for (String text : texts) {
            assertTrue(message.contains(text), message);
        }
    }

    /** Runs refused calls on two ranks, and checks that no operator has run on one of them. */
    static void assertNothingSent(BiConsumer<ProcessGroup, NDManager> refused) {
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch");
                            UsageCounter usage = FusedOps.countUsage()) {
                        refused.accept(group, manager);
                        assertEquals(0, usage.calls());
                        group.barrier().await(); // Both ranks are still together.
                    }
                });
    }

    @Test
    void wrongArgumentsAreRejectedBeforeAnythingIsSent() {
        assertNothingSent(FusedOpsErrorsTest::rejectGather);
        assertNothingSent(FusedOpsErrorsTest::rejectScatter);
    }

    private static void rejectGather(ProcessGroup group, NDManager manager) {
        NDArray a = manager.ones(new Shape(2, 3));
        NDArray b = manager.ones(new Shape(3, 4));
        List<NDArray> bs = List.of(b);
        NDArray closed = manager.ones(new Shape(3, 4));
        closed.close();
        assertRejected(() -> FusedOps.allGatherMatmul(a, bs, 0, null), "the group is null");
        assertRejected(() -> FusedOps.allGatherMatmul(null, bs, 0, group), "aShard is null");
        assertRejected(() -> FusedOps.allGatherMatmul(a, null, 0, group), "no B");
        assertRejected(() -> FusedOps.allGatherMatmul(a, List.of(), 0, group), "no B");
        assertRejected(() -> FusedOps.allGatherMatmul(a, List.of(closed), 0, group), "B", "closed");
        assertRejected(() -> FusedOps.allGatherMatmul(a.get(0), bs, 0, group), "(3)", "2 or more");
        assertRejected(
                () -> FusedOps.allGatherMatmul(a, List.of(b.reshape(3, 2, 2)), 0, group),
                "(3, 2, 2)",
                "matrix");
        assertRejected(
                () -> FusedOps.allGatherMatmul(a, List.of(b, a), 0, group),
                "B number 1",
                "(2, 3)",
                "must be 3");
        // Gathered along the last dimension, A has 6 columns.
        assertRejected(() -> FusedOps.allGatherMatmul(a, bs, 1, group), "(3, 4)", "must be 6");
        assertRejected(() -> FusedOps.allGatherMatmul(a, bs, 2, group), "gatherDim 2");
        assertRejected(() -> FusedOps.allGatherMatmul(a, bs, -3, group), "gatherDim -3");
        NDArray halves = Torch.cast(b, ScalarType.FLOAT16);
        assertRejected(
                () -> FusedOps.allGatherMatmul(a, List.of(halves), 0, group), "FLOAT16", "FLOAT32");
        NDArray ints = Torch.cast(a, ScalarType.INT32);
        assertRejected(() -> FusedOps.allGatherMatmul(ints, bs, 0, group), "INT32");
    }

    private static void rejectScatter(ProcessGroup group, NDManager manager) {
        NDArray a = manager.ones(new Shape(2, 3));
        NDArray b = manager.ones(new Shape(3, 5));
        assertRejected(
                () -> FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, null), "the group");
        assertRejected(
                () -> FusedOps.matmulReduceScatter(null, b, ReduceOp.SUM, 0, group), "A is null");
        assertRejected(
                () -> FusedOps.matmulReduceScatter(a, null, ReduceOp.SUM, 0, group), "B is null");
        assertRejected(
                () -> FusedOps.matmulReduceScatter(a.get(0), b, ReduceOp.SUM, 0, group),
                "2 or more");
        assertRejected(
                () -> FusedOps.matmulReduceScatter(a, b.get(0), ReduceOp.SUM, 0, group), "matrix");
        assertRejected(
                () -> FusedOps.matmulReduceScatter(a, a, ReduceOp.SUM, 0, group), "must be 3");
        assertRejected(
                () -> FusedOps.matmulReduceScatter(a, b, ReduceOp.MAX, 0, group), "SUM or AVG");
        assertRejected(() -> FusedOps.matmulReduceScatter(a, b, null, 0, group), "SUM or AVG");
        assertRejected(
                () -> FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 2, group), "scatterDim 2");
        assertRejected(
                () -> FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 1, group),
                "(2, 5)",
                "not divisible",
                "world size 2");
        NDArray doubles = Torch.cast(b, ScalarType.FLOAT64);
        assertRejected(
                () -> FusedOps.matmulReduceScatter(a, doubles, ReduceOp.SUM, 0, group), "FLOAT64");
        assertRejected(() -> FusedOps.matmulAllReduce(a, a, group), "must be 3");
        assertRejected(() -> FusedOps.matmulAllReduce(a.get(0), b, group), "2 or more");
        assertRejected(() -> FusedOps.matmulAllReduce(a, doubles, group), "FLOAT64");
    }

    @Test
    void destroyedGroup() {
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray a = manager.ones(new Shape(2, 2));
                        group.barrier().await();
                        group.destroy();
                        String message =
                                assertThrows(
                                                IllegalStateException.class,
                                                () ->
                                                        FusedOps.allGatherMatmul(
                                                                a, List.of(a), 0, group))
                                        .getMessage();
                        assertTrue(message.contains("destroyed"), message);
                    }
                });
    }

    /** The product of rank 1 takes 32 PiB. The group's timeout is half an hour. */
    @Test
    void lackOfMemoryOnOneRankFailsTheOthersWithItsCause() {
        List<ProcessGroup> groups = ProcessGroups.local(2);
        CollectiveException e =
                assertThrows(
                        CollectiveException.class,
                        () -> LocalRanks.run(groups, FusedOpsErrorsTest::gatherWithWideB));
        assertEquals(1, e.getSuppressed().length);
        for (Throwable each : List.of(e, e.getSuppressed()[0])) {
            assertTrue(each.getMessage().contains("Torch.empty of float32 ["), each.getMessage());
        }
    }

    private static void gatherWithWideB(ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray a = manager.ones(new Shape(4096, 1));
            long columns = group.rank() == 1 ? 1L << 40 : 4;
            NDArray b = manager.ones(new Shape(1, 1)).broadcast(new Shape(1, columns));
            FusedOps.allGatherMatmul(a, List.of(b), 0, group, false)
                    .outputs()
                    .forEach(NDArray::close);
        }
    }

    @Test
    void differentShapesFailOnAllRanksAndLeaveTheGroupUsable() {
        LocalRanks.run(
                3,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        int rows = group.rank() == 1 ? 4 : 2;
                        NDArray a = manager.ones(new Shape(rows, 3));
                        NDArray b = manager.ones(new Shape(3, 3));
                        String message =
                                assertThrows(
                                                CollectiveMismatchException.class,
                                                () ->
                                                        FusedOps.allGatherMatmul(
                                                                a, List.of(b), 0, group))
                                        .getMessage();
                        assertTrue(message.contains("allGatherMatmul(float32, (2, 3)"), message);
                        assertTrue(message.contains("allGatherMatmul(float32, (4, 3)"), message);
                        NDArray c = manager.ones(new Shape(3 * rows, 3));
                        message =
                                assertThrows(
                                                CollectiveMismatchException.class,
                                                () ->
                                                        FusedOps.matmulReduceScatter(
                                                                c, b, ReduceOp.SUM, 0, group))
                                        .getMessage();
                        assertTrue(message.contains("(6, 3), SUM"), message);
                        assertTrue(message.contains("(12, 3), SUM"), message);
                        // One rank sends its large shard in rounds; the others do not.
                        NDArray d = manager.ones(new Shape(group.rank() == 2 ? 60_000 : 2, 3));
                        assertThrows(
                                CollectiveMismatchException.class,
                                () -> FusedOps.allGatherMatmul(d, List.of(b), 0, group));
                    }
                    new FusedCase(ScalarType.FLOAT32, new Shape(5, 7), List.of(3), 0, false, 1)
                            .checkAllGatherMatmul(group, 3);
                });
    }

    /** With whole shards, and with shards that are sent in rounds. */
    @ParameterizedTest
    @ValueSource(ints = {2, 100_000})
    void missingRankIsNamed(int rows) {
        LocalRanks.run(
                3,
                1 << 20,
                Duration.ofMillis(500),
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        if (group.rank() == 1) {
                            return;
                        }
                        NDArray a = manager.ones(new Shape(2, 2));
                        NDArray shard = manager.ones(new Shape(rows, 2));
                        CollectiveTimeoutException e =
                                assertThrows(
                                        CollectiveTimeoutException.class,
                                        () ->
                                                FusedOps.allGatherMatmul(
                                                        shard, List.of(a), 0, group));
                        assertEquals(List.of(1), e.missingRanks());
                        String message = e.getMessage();
                        assertTrue(message.contains("allGatherMatmul"), message);
                        assertTrue(message.contains("#1"), message);
                        assertTrue(message.contains(group.name()), message);
                        assertTrue(message.contains("rank 1 did not arrive"), message);
                        // Later calls say why the group is broken.
                        message =
                                assertThrows(
                                                CollectiveException.class,
                                                () ->
                                                        FusedOps.matmulReduceScatter(
                                                                manager.ones(new Shape(3, 2)),
                                                                a,
                                                                ReduceOp.SUM,
                                                                0,
                                                                group))
                                        .getMessage();
                        assertTrue(message.contains("broken"), message);
                        assertTrue(message.contains("rank 1 did not arrive"), message);
                    }
                });
    }

    @Test
    void operatorsTakeTheirTurnAmongCollectives() {
        LocalRanks.run(
                4,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        FusedCase c =
                                new FusedCase(
                                        ScalarType.BFLOAT16,
                                        new Shape(16, 8),
                                        List.of(8),
                                        0,
                                        false,
                                        3);
                        List<NDArray> sums = new ArrayList<>();
                        for (int i = 0; i < 20; i++) {
                            NDArray sum = manager.full(new Shape(300), i);
                            sums.add(sum);
                            group.allReduce(sum, ReduceOp.SUM);
                            c.checkAllGatherMatmul(group, 1);
                            c.checkMatmulReduceScatter(group, ReduceOp.SUM, 1);
                        }
                        for (int i = 0; i < 20; i++) {
                            assertEquals(4.0 * i, TestArrays.values(sums.get(i))[299]);
                        }
                        String record = group.flightRecorder().dump().toJson();
                        assertTrue(record.contains("\"algorithm\": \"pipelined\""), record);
                    }
                });
    }

    /**
     * An operator outside of a scope would cut the autograd graph, so it refuses inputs with
     * gradients.
     */
    @Test
    void anInputThatRequiresAGradientIsRefused() {
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray a = manager.ones(new Shape(2, 2));
                        NDArray b = manager.ones(new Shape(2, 2));
                        b.setRequiresGradient(true);
                        assertRejected(
                                () -> FusedOps.allGatherMatmul(a, List.of(b), 0, group),
                                "allGatherMatmul: B requires a gradient");
                        assertRejected(
                                () -> FusedOps.matmulReduceScatter(b, a, ReduceOp.SUM, 0, group),
                                "matmulReduceScatter: A requires a gradient");
                        // Also an array computed from one that requires a gradient.
                        assertRejected(
                                () ->
                                        FusedOps.matmulReduceScatter(
                                                b.mul(2), a, ReduceOp.SUM, 0, group),
                                "matmulReduceScatter: A requires a gradient, which would be lost"
                                        + " outside of a GradientScope");
                        NDArray fixed = b.stopGradient();
                        NDArray out =
                                FusedOps.allGatherMatmul(a, List.of(fixed), 0, group)
                                        .outputs()
                                        .get(0);
                        assertFalse(out.hasGradient());
                        NoGradient.run(
                                () -> {
                                    NDArray sum =
                                            FusedOps.matmulReduceScatter(
                                                    a, b, ReduceOp.SUM, 0, group);
                                    assertArrayEquals(new double[] {4, 4}, TestArrays.values(sum));
                                });
                    }
                });
    }

    @Test
    void temporariesAreClosed() {
        LocalRanks.run(
                2,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray a = manager.ones(new Shape(4, 2));
                        NDArray b = manager.ones(new Shape(2, 4));
                        int before = manager.getManagedArrays().size();
                        for (int i = 0; i < 3; i++) {
                            GatheredMatmul result =
                                    FusedOps.allGatherMatmul(a, List.of(b), 0, group);
                            FusedOps.matmulReduceScatter(a, b, ReduceOp.SUM, 0, group).close();
                            result.outputs().forEach(NDArray::close);
                            result.gathered().ifPresent(NDArray::close);
                        }
                        assertEquals(before, manager.getManagedArrays().size());
                    }
                });
    }
}
