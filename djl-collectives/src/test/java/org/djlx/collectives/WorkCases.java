// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import static org.djlx.collectives.CaseInputs.assertReduced;
import static org.djlx.collectives.CaseInputs.concatenated;
import static org.djlx.collectives.CaseInputs.inputs;
import static org.djlx.collectives.CaseInputs.seed;
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
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.djlx.collectives.ContractCases.Case;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** How operations run and end. */
final class WorkCases {

    private WorkCases() {}

    static Map<String, Case> all() {
        Map<String, Case> cases = new LinkedHashMap<>();
        cases.put("barrier", WorkCases::barrier);
        cases.put("severalUnderWay", WorkCases::severalUnderWay);
        cases.put("oneAfterTheOther", WorkCases::oneAfterTheOther);
        cases.put("inOrder", WorkCases::inOrder);
        cases.put("work", WorkCases::work);
        cases.put("closedWhileUnderWay", WorkCases::closedWhileUnderWay);
        cases.put("gradients", WorkCases::gradients);
        cases.put("waitsWithoutEnd", WorkCases::waitsWithoutEnd);
        return cases;
    }

    /** A wait without limit: a duration beyond the range of nanoseconds in a long. */
    private static void waitsWithoutEnd(ProcessGroup group, NDManager manager) {
        Duration forever = ChronoUnit.FOREVER.getDuration();
        ProcessGroup patient = group.withTimeout(forever);
        NDArray tensor = manager.ones(new Shape(3));
        group.barrier().await(forever);
        if (group.rank() == 0) {
            sleep(50); // The others are to go to sleep.
        }
        patient.allReduce(tensor, ReduceOp.SUM).await();
        patient.allReduceCoalesced(List.of(tensor), ReduceOp.MAX).await(forever);
        patient.monitoredBarrier(forever, true);
        if (group.rank() == 0 && group.worldSize() > 1) {
            sleep(50);
            patient.send(tensor, 1, 0).await(forever);
        } else if (group.rank() == 1) {
            patient.recv(tensor, 0, 0).await();
        }
        assertEquals(group.worldSize(), tensor.getFloat(0));
    }

    private static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void barrier(ProcessGroup group, NDManager manager) {
        // No rank leaves a barrier before the last one has reached it. So the round of every rank,
        // read by a reduction after the barrier, is the same.
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
        works.get(19).await(group.timeout()); // On GPUs only this waits on the host.
        for (int i = 0; i < 20; i++) {
            assertTrue(works.get(i).isSuccess());
            double[][] inputs = inputs(group, manager, ScalarType.FLOAT32, new Shape(997), i);
            assertReduced(inputs, 0, tensors.get(i), ReduceOp.SUM, ScalarType.FLOAT32);
        }
    }

    /**
     * Asynchronous all-reduces keep their order relative to the caller's computations and to
     * synchronous ones; ranks may mix the two forms differently. A lost operation would show in the
     * result.
     */
    private static void inOrder(ProcessGroup group, NDManager manager) {
        int rounds = 30;
        for (long count : new long[] {1000, 300_000}) {
            NDArray tensor = manager.full(new Shape(count), 3f);
            for (int i = 0; i < rounds; i++) {
                tensor.addi(group.rank());
                if ((i + group.rank()) % 3 > 0) {
                    group.allReduce(tensor, ReduceOp.AVG, false);
                } else if (group.device().isGpu()) {
                    group.allReduce(tensor, ReduceOp.AVG, true).blockCurrentStream();
                } else {
                    group.allReduce(tensor, ReduceOp.AVG, true).await();
                }
            }
            double expected = 3 + rounds * (group.worldSize() - 1) / 2.0;
            for (double value : TestArrays.values(tensor)) {
                assertEquals(expected, value, 1e-3);
            }
        }
        NDArray sums = manager.ones(new Shape(2, 2));
        NDArray columns = sums.transpose();
        Work work = group.allReduce(columns, ReduceOp.SUM, false);
        assertArrayEquals(
                new double[] {
                    group.worldSize(), group.worldSize(), group.worldSize(), group.worldSize()
                },
                TestArrays.values(columns));
        work.await(group.timeout());
        assertSame(columns, work.result().get(0));
    }

    /** An operation on the output of the previous one, without a wait in between. */
    private static void oneAfterTheOther(ProcessGroup group, NDManager manager) {
        int n = group.worldSize();
        for (boolean strided : new boolean[] {false, true}) {
            for (int round = 0; round < 20; round++) {
                NDArray whole = manager.ones(new Shape(40 * n, 30));
                NDArray tensor = strided ? whole.transpose() : whole;
                NDArray part = manager.zeros(new Shape(40 * 30));
                NDArray gathered = manager.zeros(new Shape(40L * n, 30));
                NDArray pieces = manager.zeros(new Shape(40 * 30));
                group.allReduce(tensor, ReduceOp.SUM);
                group.allReduce(tensor, ReduceOp.SUM);
                group.allReduceCoalesced(List.of(tensor, part), ReduceOp.SUM);
                group.reduceScatterTensor(part, tensor, ReduceOp.SUM);
                group.reduceScatterCoalesced(List.of(pieces), List.of(tensor), ReduceOp.SUM);
                group.allGatherIntoTensor(gathered, part);
                group.broadcast(tensor, 0);
                Work last = group.allGatherCoalesced(List.of(tensor), List.of(pieces));
                last.await(group.timeout());
                double expected = Math.pow(n, 4);
                assertAll(expected, part);
                assertAll(expected, pieces);
                assertAll(expected, gathered);
                assertAll(expected, tensor);
                for (NDArray array : List.of(tensor, whole, part, gathered, pieces)) {
                    array.close();
                }
            }
        }
    }

    private static void assertAll(double expected, NDArray tensor) {
        for (double value : TestArrays.values(tensor)) {
            assertEquals(expected, value);
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
        work.blockCurrentStream();
        assertThrows(IllegalStateException.class, work::sourceRank);
        // Completes without a waiting thread.
        Work background = group.allReduce(tensor, ReduceOp.MAX);
        while (!background.isCompleted()) {
            Thread.onSpinWait();
        }
        assertTrue(background.isSuccess());
        assertEquals(work.sequence() + 1, background.sequence());
        assertFalse(work.duration().orElseThrow().isNegative());
        Work coalesced = group.allReduceCoalesced(List.of(tensor, tensor.add(1)), ReduceOp.SUM);
        assertEquals(background.sequence() + 1, coalesced.sequence());
        coalesced.await(Duration.ofMinutes(1));
        assertFalse(coalesced.duration().orElseThrow().isNegative());
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
}
