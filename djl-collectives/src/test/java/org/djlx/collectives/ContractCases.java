/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;
import org.junit.jupiter.api.function.Executable;

/**
 * What every backend must do: each case is the code of one rank, run on all ranks of a group at the
 * same time, as threads or as processes. Inputs have fixed seeds, so each rank knows those of all.
 */
public final class ContractCases {

    private static final List<ScalarType> REDUCED =
            List.of(
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT64,
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16,
                    ScalarType.INT8,
                    ScalarType.UINT8,
                    ScalarType.INT32,
                    ScalarType.INT64,
                    ScalarType.BOOL);
    private static final List<ScalarType> MOVED =
            List.of(
                    ScalarType.FLOAT32,
                    ScalarType.BFLOAT16,
                    ScalarType.FLOAT8_E4M3FN,
                    ScalarType.INT64,
                    ScalarType.BOOL);
    // None, one, odd, and more than fits into a staging half of the test's groups.
    private static final int[] COUNTS = {0, 1, 7, 1000, 100_003};

    private ContractCases() {}

    /** The code of one rank. */
    @FunctionalInterface
    public interface Case {

        /**
         * Runs on one rank.
         *
         * @param group the rank's handle
         * @param manager closed after the case
         */
        void run(ProcessGroup group, NDManager manager);
    }

    /** All cases by name. */
    public static Map<String, Case> all() {
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("allReduce", ContractCases::allReduce);
        cases.put("allReduceStrided", ContractCases::allReduceStrided);
        cases.put("allReduceSameBits", ContractCases::allReduceSameBits);
        cases.put("broadcast", ContractCases::broadcast);
        cases.put("allGather", ContractCases::allGather);
        cases.put("allGatherIntoTensor", ContractCases::allGatherIntoTensor);
        cases.put("allGatherInPlace", ContractCases::allGatherInPlace);
        cases.put("reduceScatter", ContractCases::reduceScatter);
        cases.put("reduceScatterTensor", ContractCases::reduceScatterTensor);
        cases.put("reduceScatterInPlace", ContractCases::reduceScatterInPlace);
        cases.put("barrier", ContractCases::barrier);
        cases.put("severalUnderWay", ContractCases::severalUnderWay);
        cases.put("work", ContractCases::work);
        cases.put("closedWhileUnderWay", ContractCases::closedWhileUnderWay);
        cases.put("gradients", ContractCases::gradients);
        cases.put("mismatches", ContractCases::mismatches);
        cases.put("wrongArguments", ContractCases::wrongArguments);
        return cases;
    }

    /** Runs one case on one rank. */
    public static void run(Case body, ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            body.run(group, manager);
        }
    }

    private static long seed(int rank, int salt) {
        return 1000L * salt + rank;
    }

    /** The elements of all ranks' inputs, as {@code [rank][element]}. */
    private static double[][] inputs(
            ProcessGroup group, NDManager manager, ScalarType type, Shape shape, int salt) {
        return IntStream.range(0, group.worldSize())
                .mapToObj(
                        rank -> {
                            try (NDArray array =
                                    TestArrays.random(manager, type, shape, seed(rank, salt))) {
                                return TestArrays.values(array);
                            }
                        })
                .toArray(double[][]::new);
    }

    private static boolean defined(ReduceOp op, ScalarType type) {
        return op != ReduceOp.AVG || type.isFloatingPoint();
    }

    /** Compares a result with double precision, and to the bit with what the contract defines. */
    private static void assertReduced(
            double[][] inputs, int from, NDArray result, ReduceOp op, ScalarType type) {
        double[] actual = TestArrays.values(result);
        for (int i = 0; i < actual.length; i++) {
            int element = from + i;
            double[] parts =
                    IntStream.range(0, inputs.length)
                            .mapToDouble(rank -> inputs[rank][element])
                            .toArray();
            String place = op + " " + type + " [" + element + "]";
            assertEquals(RankOrder.rounded(parts, op, type), actual[i], place);
            if (type.isFloatingPoint()) {
                double exact = RankOrder.exact(parts, op);
                double magnitude = 0;
                for (double part : parts) {
                    magnitude += Math.abs(part);
                }
                double tolerance =
                        epsilon(type) * Math.abs(exact)
                                + parts.length
                                        * epsilon(
                                                type == ScalarType.FLOAT64
                                                        ? type
                                                        : ScalarType.FLOAT32)
                                        * Math.max(magnitude, Math.abs(exact));
                assertEquals(exact, actual[i], tolerance + smallest(type), place);
            }
        }
    }

    /** Half a unit of the subnormal numbers: what rounding costs near zero. */
    private static double smallest(ScalarType type) {
        return switch (type) {
            case FLOAT64 -> Double.MIN_VALUE;
            case FLOAT16 -> 0x1p-25;
            default -> Float.MIN_VALUE;
        };
    }

    private static double epsilon(ScalarType type) {
        return switch (type) {
            case FLOAT64 -> 0x1p-53;
            case FLOAT32 -> 0x1p-24;
            case FLOAT16 -> 0x1p-11;
            case BFLOAT16 -> 0x1p-8;
            default -> 0;
        };
    }

    private static void allReduce(ProcessGroup group, NDManager manager) {
        int salt = 0;
        for (ScalarType type : REDUCED) {
            for (ReduceOp op : ReduceOp.values()) {
                for (int count : COUNTS) {
                    if (!defined(op, type) || count > 1000 && op != ReduceOp.SUM) {
                        continue;
                    }
                    Shape shape = new Shape(count);
                    double[][] inputs = inputs(group, manager, type, shape, ++salt);
                    try (NDArray tensor =
                            TestArrays.random(manager, type, shape, seed(group.rank(), salt))) {
                        group.allReduce(tensor, op).await();
                        assertReduced(inputs, 0, tensor, op, type);
                    }
                }
            }
        }
    }

    private static void allReduceStrided(ProcessGroup group, NDManager manager) {
        for (Shape shape : List.of(new Shape(5), new Shape(7, 3), new Shape(3, 4, 5))) {
            for (ScalarType type : List.of(ScalarType.FLOAT32, ScalarType.BFLOAT16)) {
                double[][] inputs = inputs(group, manager, type, shape, 1);
                NDArray tensor =
                        TestArrays.randomStrided(manager, type, shape, seed(group.rank(), 1));
                assertFalse(Torch.isContiguous(tensor));
                group.allReduce(tensor, ReduceOp.SUM).await();
                assertReduced(inputs, 0, tensor, ReduceOp.SUM, type);
            }
        }
        // A scalar has no dimensions at all.
        NDArray scalar = TestArrays.of(manager, ScalarType.FLOAT32, new Shape(), group.rank());
        group.allReduce(scalar, ReduceOp.MAX).await();
        assertEquals(group.worldSize() - 1, TestArrays.values(scalar)[0]);
    }

    private static void allReduceSameBits(ProcessGroup group, NDManager manager) {
        for (ScalarType type : List.of(ScalarType.FLOAT32, ScalarType.BFLOAT16)) {
            Shape shape = new Shape(50_001);
            double[] first = null;
            for (int run = 0; run < 3; run++) {
                NDArray tensor = TestArrays.random(manager, type, shape, seed(group.rank(), 77));
                group.allReduce(tensor, ReduceOp.SUM).await();
                List<NDArray> all = empty(manager, type, shape, group.worldSize());
                group.allGather(all, tensor).await();
                for (NDArray other : all) {
                    double[] values = TestArrays.values(other);
                    first = first == null ? values : first;
                    assertArrayEquals(first, values);
                }
            }
        }
    }

    private static List<NDArray> empty(NDManager manager, ScalarType type, Shape shape, int n) {
        return IntStream.range(0, n).mapToObj(i -> Torch.empty(manager, shape, type)).toList();
    }

    private static void broadcast(ProcessGroup group, NDManager manager) {
        for (ScalarType type : MOVED) {
            for (int count : COUNTS) {
                for (int root = 0; root < group.worldSize(); root++) {
                    Shape shape = new Shape(count);
                    NDArray tensor =
                            TestArrays.random(manager, type, shape, seed(group.rank(), root));
                    NDArray sent = TestArrays.random(manager, type, shape, seed(root, root));
                    group.broadcast(tensor, root).await();
                    assertArrayEquals(TestArrays.values(sent), TestArrays.values(tensor));
                    tensor.close();
                    sent.close();
                }
            }
        }
        NDArray strided =
                TestArrays.randomStrided(
                        manager, ScalarType.FLOAT32, new Shape(6, 5), seed(group.rank(), 3));
        int root = group.worldSize() - 1;
        double[] sent = inputs(group, manager, ScalarType.FLOAT32, new Shape(6, 5), 3)[root];
        group.broadcast(strided, root).await();
        assertArrayEquals(sent, TestArrays.values(strided));
    }

    private static void allGather(ProcessGroup group, NDManager manager) {
        for (ScalarType type : MOVED) {
            for (int count : COUNTS) {
                Shape shape = new Shape(count, 1);
                double[][] inputs = inputs(group, manager, type, shape, 5);
                NDArray input = TestArrays.random(manager, type, shape, seed(group.rank(), 5));
                List<NDArray> outputs = empty(manager, type, shape, group.worldSize());
                group.allGather(outputs, input).await();
                for (int rank = 0; rank < group.worldSize(); rank++) {
                    assertArrayEquals(inputs[rank], TestArrays.values(outputs.get(rank)));
                }
                outputs.forEach(NDArray::close);
                input.close();
            }
        }
        // Neither the input nor the outputs contiguous.
        Shape shape = new Shape(4, 6);
        NDArray input =
                TestArrays.randomStrided(manager, ScalarType.INT32, shape, seed(group.rank(), 6));
        List<NDArray> outputs =
                IntStream.range(0, group.worldSize())
                        .mapToObj(i -> manager.zeros(new Shape(6, 4), input.getDataType()))
                        .map(NDArray::transpose)
                        .toList();
        group.allGather(outputs, input).await();
        double[][] inputs = inputs(group, manager, ScalarType.INT32, shape, 6);
        for (int rank = 0; rank < group.worldSize(); rank++) {
            assertArrayEquals(inputs[rank], TestArrays.values(outputs.get(rank)));
        }
    }

    private static void allGatherIntoTensor(ProcessGroup group, NDManager manager) {
        int worldSize = group.worldSize();
        for (ScalarType type : MOVED) {
            for (int count : COUNTS) {
                Shape shape = new Shape(count, 2);
                double[][] inputs = inputs(group, manager, type, shape, 8);
                NDArray input = TestArrays.random(manager, type, shape, seed(group.rank(), 8));
                // Concatenated, then stacked.
                for (Shape whole :
                        List.of(new Shape(worldSize * count, 2), new Shape(worldSize, count, 2))) {
                    NDArray output = Torch.empty(manager, whole, type);
                    group.allGatherIntoTensor(output, input).await();
                    assertArrayEquals(concatenated(inputs), TestArrays.values(output));
                    output.close();
                }
                input.close();
            }
        }
    }

    private static double[] concatenated(double[][] parts) {
        return Arrays.stream(parts).flatMapToDouble(Arrays::stream).toArray();
    }

    private static void allGatherInPlace(ProcessGroup group, NDManager manager) {
        int rows = 30_000;
        Shape shape = new Shape(rows);
        double[][] inputs = inputs(group, manager, ScalarType.FLOAT32, shape, 9);
        NDArray output =
                Torch.empty(
                        manager, new Shape((long) group.worldSize() * rows), ScalarType.FLOAT32);
        NDArray slice = output.get(rows * group.rank() + ":" + rows * (group.rank() + 1));
        Torch.copy(
                slice,
                TestArrays.random(manager, ScalarType.FLOAT32, shape, seed(group.rank(), 9)));
        group.allGatherIntoTensor(output, slice).await();
        assertArrayEquals(concatenated(inputs), TestArrays.values(output));
    }

    private static void reduceScatter(ProcessGroup group, NDManager manager) {
        int salt = 20;
        for (ScalarType type : REDUCED) {
            for (int count : COUNTS) {
                ReduceOp op = ReduceOp.values()[salt % 5];
                op = defined(op, type) ? op : ReduceOp.SUM;
                salt++;
                Shape whole = new Shape(group.worldSize(), count);
                double[][] all = inputs(group, manager, type, whole, salt);
                NDArray input = TestArrays.random(manager, type, whole, seed(group.rank(), salt));
                List<NDArray> inputs = new ArrayList<>();
                for (int rank = 0; rank < group.worldSize(); rank++) {
                    inputs.add(input.get(rank));
                }
                NDArray output = Torch.empty(manager, new Shape(count), type);
                group.reduceScatter(output, inputs, op).await();
                assertReduced(all, group.rank() * count, output, op, type);
                output.close();
                input.close();
            }
        }
    }

    private static void reduceScatterTensor(ProcessGroup group, NDManager manager) {
        int salt = 40;
        for (ScalarType type : REDUCED) {
            for (int count : COUNTS) {
                ReduceOp op = ReduceOp.values()[salt % 5];
                op = defined(op, type) ? op : ReduceOp.MAX;
                salt++;
                Shape whole = new Shape((long) group.worldSize() * count);
                double[][] all = inputs(group, manager, type, whole, salt);
                NDArray input = TestArrays.random(manager, type, whole, seed(group.rank(), salt));
                NDArray output = Torch.empty(manager, new Shape(count), type);
                group.reduceScatterTensor(output, input, op).await();
                assertReduced(all, group.rank() * count, output, op, type);
                output.close();
                input.close();
            }
        }
    }

    private static void reduceScatterInPlace(ProcessGroup group, NDManager manager) {
        int rows = 30_000;
        Shape whole = new Shape((long) group.worldSize() * rows);
        for (ScalarType type : List.of(ScalarType.FLOAT32, ScalarType.FLOAT16)) {
            double[][] all = inputs(group, manager, type, whole, 60);
            NDArray input = TestArrays.random(manager, type, whole, seed(group.rank(), 60));
            NDArray slice = input.get(rows * group.rank() + ":" + rows * (group.rank() + 1));
            group.reduceScatterTensor(slice, input, ReduceOp.AVG).await();
            assertReduced(all, group.rank() * rows, slice, ReduceOp.AVG, type);
        }
    }

    private static void barrier(ProcessGroup group, NDManager manager) {
        // No rank leaves a barrier before the last has reached it: each finds the rounds of all
        // others, told by a side channel of the test, at most one apart. Here the side channel is
        // the order of operations itself: a barrier between two reductions must not mix them.
        for (int round = 0; round < 50; round++) {
            group.barrier().await();
            NDArray tensor = TestArrays.of(manager, ScalarType.INT32, new Shape(1), round);
            group.allReduce(tensor, ReduceOp.MAX).await();
            assertEquals(round, TestArrays.values(tensor)[0]);
            tensor.close();
        }
    }

    private static void severalUnderWay(ProcessGroup group, NDManager manager) {
        List<NDArray> tensors = new ArrayList<>();
        List<Work> works = new ArrayList<>();
        for (int i = 0; i < 20; i++) {
            NDArray tensor =
                    TestArrays.random(
                            manager, ScalarType.FLOAT32, new Shape(997), seed(group.rank(), i));
            tensors.add(tensor);
            works.add(group.allReduce(tensor, ReduceOp.SUM));
        }
        // Waiting for the last is enough: operations end in the order of the calls.
        works.get(19).await();
        for (int i = 0; i < 20; i++) {
            assertTrue(works.get(i).isSuccess());
            double[][] inputs = inputs(group, manager, ScalarType.FLOAT32, new Shape(997), i);
            assertReduced(inputs, 0, tensors.get(i), ReduceOp.SUM, ScalarType.FLOAT32);
        }
    }

    private static void work(ProcessGroup group, NDManager manager) {
        NDArray tensor = TestArrays.of(manager, ScalarType.FLOAT64, new Shape(2), 1, 2);
        Work work = group.allReduce(tensor, ReduceOp.SUM);
        CompletableFuture<NDArray> future =
                work.getFuture().thenApply(result -> result.get(0)).toCompletableFuture();
        work.await(Duration.ofMinutes(1));
        assertTrue(work.isCompleted());
        assertTrue(work.isSuccess());
        assertTrue(work.exception().isEmpty());
        assertSame(tensor, future.join());
        assertSame(tensor, work.result().get(0));
        int n = group.worldSize();
        assertArrayEquals(new double[] {n, 2 * n}, TestArrays.values(tensor));
        // Nobody waits: it is done all the same.
        Work background = group.allReduce(tensor, ReduceOp.MAX);
        while (!background.isCompleted()) {
            Thread.onSpinWait();
        }
        assertTrue(background.isSuccess());
    }

    private static void closedWhileUnderWay(ProcessGroup group, NDManager manager) {
        for (int i = 0; i < 20; i++) {
            NDArray input =
                    TestArrays.random(
                            manager, ScalarType.FLOAT32, new Shape(50_000), seed(group.rank(), i));
            NDArray output =
                    Torch.empty(
                            manager, new Shape(50_000L * group.worldSize()), ScalarType.FLOAT32);
            Work work = group.allGatherIntoTensor(output, input);
            input.close();
            work.await();
            double[][] inputs = inputs(group, manager, ScalarType.FLOAT32, new Shape(50_000), i);
            assertArrayEquals(concatenated(inputs), TestArrays.values(output));
            output.close();
        }
    }

    private static void gradients(ProcessGroup group, NDManager manager) {
        NDArray tensor = TestArrays.of(manager, ScalarType.FLOAT32, new Shape(2, 1), 1, 2);
        tensor.setRequiresGradient(true);
        group.allReduce(tensor, ReduceOp.SUM).await();
        assertArrayEquals(
                new double[] {group.worldSize(), 2 * group.worldSize()},
                tensor.stopGradient().toType(DataType.FLOAT64, true).toDoubleArray());
    }

    private static void mismatches(ProcessGroup group, NDManager manager) {
        if (group.worldSize() == 1) {
            return;
        }
        boolean odd = group.rank() == group.worldSize() - 1;
        NDArray floats = manager.ones(new Shape(2, 3));
        NDArray other = manager.ones(new Shape(4));
        NDArray ints = TestArrays.random(manager, ScalarType.INT32, new Shape(2, 3), 1);
        assertMismatch(
                () -> group.allReduce(odd ? other : floats, ReduceOp.SUM).await(),
                "(float32, (2, 3), SUM)",
                "(float32, (4), SUM)");
        assertMismatch(
                () -> group.allReduce(odd ? ints : floats, ReduceOp.SUM).await(),
                "float32",
                "int32");
        assertMismatch(
                () -> group.allReduce(floats, odd ? ReduceOp.MAX : ReduceOp.SUM).await(),
                "SUM",
                "MAX");
        assertMismatch(
                () -> (odd ? group.barrier() : group.allReduce(floats, ReduceOp.SUM)).await(),
                "barrier",
                "allReduce");
        assertMismatch(
                () -> group.broadcast(floats, odd ? 1 : 0).await(),
                "broadcast(float32, (2, 3))",
                "broadcast(float32, (2, 3), 1)");
        // Nothing was changed, and the group still works.
        assertArrayEquals(new double[] {1, 1, 1, 1, 1, 1}, TestArrays.values(floats));
        group.allReduce(floats, ReduceOp.SUM).await();
        assertEquals(group.worldSize(), TestArrays.values(floats)[0]);
    }

    private static void assertMismatch(Executable call, String one, String another) {
        String message = assertThrows(CollectiveMismatchException.class, call).getMessage();
        assertTrue(message.contains(one), message);
        assertTrue(message.contains(another), message);
        assertTrue(message.contains("rank"), message);
    }

    private static void wrongArguments(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        NDArray tensor = manager.ones(new Shape(2, 3));
        NDArray closed = manager.ones(new Shape(1));
        closed.close();
        assertRejected(() -> group.allReduce(null, ReduceOp.SUM), "tensor is null");
        assertRejected(() -> group.allReduce(closed, ReduceOp.SUM), "closed");
        assertRejected(() -> group.broadcast(tensor, n), "root " + n);
        assertRejected(() -> group.broadcast(tensor, -1), "root -1");
        assertRejected(() -> group.allGather(List.of(), tensor), "one tensor for each");
        assertRejected(
                () -> group.allGatherIntoTensor(manager.ones(new Shape(n + 1, 2, 3)), tensor),
                "times as many elements");
        NDArray ints = TestArrays.random(manager, ScalarType.INT32, new Shape(n, 2, 3), 1);
        assertRejected(() -> group.allGatherIntoTensor(ints, tensor), "INT32");
        assertRejected(() -> group.allReduce(ints, ReduceOp.AVG), "AVG");
        assertRejected(
                () ->
                        group.reduceScatterTensor(
                                manager.ones(new Shape(2)),
                                manager.ones(new Shape(2 * n + 1)),
                                ReduceOp.SUM),
                "times as many elements");
        NDArray eight = Torch.empty(manager, new Shape(3), ScalarType.FLOAT8_E5M2);
        assertRejected(() -> group.allReduce(eight, ReduceOp.SUM), "FLOAT8_E5M2");
        // Nothing was sent: all ranks are still together.
        group.barrier().await();
    }

    private static void assertRejected(Executable call, String text) {
        String message = assertThrows(IllegalArgumentException.class, call).getMessage();
        assertTrue(message.contains(text), message);
    }
}
