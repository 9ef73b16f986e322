// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.djlx.fusedops.FusedOpsErrorsTest.assertRejected;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Pipelines with a computation of the caller. */
@Timeout(120)
class CallerPipelineTest {

    /** Whole parts in slots, parts in rounds, and the group's own collective. */
    @ParameterizedTest
    @CsvSource({"1,1048576", "2,1048576", "3,1048576", "4,4096", "2,1024", "1,1024", "3,0", "2,0"})
    void everyShardAndChunkArrives(int worldSize, long bufferSize) {
        try (UsageCounter usage = FusedOps.countUsage()) {
            LocalRanks.run(
                    worldSize,
                    bufferSize,
                    group -> {
                        check(group, new Shape(13, 7), DataType.FLOAT32);
                        check(group, new Shape(40, 9), DataType.INT32);
                        check(group, new Shape(0, 3), DataType.FLOAT32);
                    });
            Path path = bufferSize == 0 ? Path.NCCL : Path.PIPELINED;
            assertEquals(3L * worldSize, usage.calls("pipelinedAllGather", path));
            assertEquals(3L * worldSize, usage.calls("pipelinedProduceAndAllToAll", path));
        }
    }

    /** Checks both pipelines with the numbers that each rank counts from its own base. */
    static void check(ProcessGroup group, Shape shape, DataType type) {
        int ranks = group.worldSize();
        int own = group.rank();
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            List<Integer> order = new ArrayList<>();
            NDArray[] doubled = new NDArray[ranks];
            NDArray shard = numbers(manager, shape, 1000 * own).toType(type, false);
            FusedOps.pipelinedAllGather(
                    shard.transpose().flip(0).flip(0).transpose(), // strided
                    (part, rank) -> {
                        order.add(rank);
                        doubled[rank] = part.mul(2);
                        doubled[rank].attach(manager);
                    },
                    group);
            assertEquals(
                    IntStream.range(0, ranks).map(i -> (own + i) % ranks).boxed().toList(), order);
            for (int rank = 0; rank < ranks; rank++) {
                assertEquals(
                        numbers(manager, shape, 1000 * rank).mul(2).toType(type, false),
                        doubled[rank]);
            }
            order.clear();
            NDArray output = manager.zeros(new Shape(ranks * shape.get(0), shape.get(1)), type);
            FusedOps.pipelinedProduceAndAllToAll(
                    (chunk, rank) -> {
                        order.add(rank);
                        try (NDManager inner = manager.newSubManager()) {
                            NDArray computed = numbers(inner, shape, 1000 * own + 100_000 * rank);
                            Torch.copy(chunk, computed.toType(type, false));
                        }
                    },
                    output,
                    group);
            assertEquals(
                    IntStream.rangeClosed(1, ranks).map(i -> (own + i) % ranks).boxed().toList(),
                    order);
            for (int rank = 0; rank < ranks; rank++) {
                NDArray chunk =
                        output.get(rank * shape.get(0) + ":" + (rank + 1) * shape.get(0) + ", :");
                NDArray expected = numbers(manager, shape, 1000 * rank + 100_000 * own);
                if (shape.size() > 0) {
                    assertEquals(expected.toType(type, false), chunk);
                }
            }
        }
    }

    private static NDArray numbers(NDManager manager, Shape shape, int from) {
        float[] numbers = new float[(int) shape.size()];
        for (int i = 0; i < numbers.length; i++) {
            numbers[i] = from + i;
        }
        return manager.create(numbers, shape);
    }

    /** The exchange goes on: the other rank gets all shards, and the group stays usable. */
    @ParameterizedTest
    @CsvSource({"1048576", "1024", "0"})
    void aConsumersExceptionIsItsRanksAlone(long bufferSize) {
        LocalRanks.run(
                3,
                bufferSize,
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray shard = manager.full(new Shape(3000), group.rank() + 1f);
                        List<Integer> consumed = new ArrayList<>();
                        IllegalStateException thrown = new IllegalStateException("consumer");
                        Runnable call =
                                () ->
                                        FusedOps.pipelinedAllGather(
                                                shard,
                                                (part, rank) -> {
                                                    consumed.add(rank);
                                                    if (group.rank() == 1 && consumed.size() == 2) {
                                                        throw thrown;
                                                    }
                                                },
                                                group);
                        if (group.rank() == 1) {
                            assertSame(
                                    thrown, assertThrows(IllegalStateException.class, call::run));
                        } else {
                            call.run();
                        }
                        assertEquals(group.rank() == 1 ? 2 : 3, consumed.size());
                        group.allReduce(shard, ReduceOp.SUM).await();
                        assertArrayEquals(new float[] {6}, shard.get("0:1").toFloatArray());
                    }
                });
    }

    /**
     * Every rank fails in this call or in the next one, before the timeout. Only rank 2 may return
     * from this call, with all its elements: rank 1 pushes its chunk before it fails. In rounds,
     * and without P2P buffers, no rank gets all chunks.
     */
    @ParameterizedTest
    @CsvSource({"1048576", "1024", "0"})
    void aProducersExceptionFailsOnAllRanks(long bufferSize) {
        LocalRanks.run(
                3,
                bufferSize,
                Duration.ofSeconds(100),
                group -> {
                    try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                        NDArray output = manager.zeros(new Shape(3, 3000));
                        NDArray own = manager.full(new Shape(1, 3000), group.rank() + 1f);
                        Runnable call =
                                () ->
                                        FusedOps.pipelinedProduceAndAllToAll(
                                                (chunk, rank) -> {
                                                    if (group.rank() == 1 && rank == 0) {
                                                        throw new IllegalStateException("producer");
                                                    }
                                                    Torch.copy(chunk, own);
                                                },
                                                output,
                                                group);
                        if (group.rank() == 2 && bufferSize == 1048576) {
                            try {
                                call.run();
                                NDArray ranks = manager.create(new float[] {1, 2, 3});
                                assertEquals(ranks.reshape(3, 1).broadcast(3, 3000), output);
                            } catch (CollectiveException e) {
                                assertNoTimeout(e);
                            }
                        } else {
                            CollectiveException e =
                                    assertThrows(CollectiveException.class, call::run);
                            assertNoTimeout(e);
                            assertEquals(
                                    group.rank() == 1,
                                    e.getCause() instanceof IllegalStateException,
                                    "" + e);
                        }
                        assertNoTimeout(
                                assertThrows(
                                        CollectiveException.class, () -> group.barrier().await()));
                    }
                });
    }

    private static void assertNoTimeout(CollectiveException e) {
        assertFalse(e instanceof CollectiveTimeoutException, "" + e);
    }

    @Test
    void wrongArgumentsAreRefused() {
        ChunkProducer producer = (chunk, rank) -> {};
        FusedOpsErrorsTest.assertNothingSent(
                (group, manager) -> {
                    NDArray odd = manager.zeros(new Shape(3, 2));
                    assertRejected(
                            () -> FusedOps.pipelinedProduceAndAllToAll(producer, odd, group),
                            "multiple of the world size, 2");
                    NDArray strided = manager.zeros(new Shape(4, 2)).transpose();
                    assertRejected(
                            () -> FusedOps.pipelinedProduceAndAllToAll(producer, strided, group),
                            "not contiguous");
                    odd.setRequiresGradient(true);
                    assertRejected(
                            () -> FusedOps.pipelinedAllGather(odd, (shard, rank) -> {}, group),
                            "gradient");
                });
    }
}
