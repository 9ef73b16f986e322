// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.Work;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Ways to one result that have the same bits, also where the order of two operands shows. */
@Timeout(60)
class ReduceBitsTest {

    /**
     * Zeros of both signs, and NaNs that tell whose they are; not in sums, which Java adds: which
     * of two NaNs remains depends on whether the JVM has compiled the addition.
     */
    private static float[] values(int count, int rank, ReduceOp op) {
        int whose = op.kind() == ReduceOp.Kind.SUM ? 0 : rank;
        Random random = new Random(31 * count + rank);
        float[] values = new float[count];
        for (int i = 0; i < count; i++) {
            values[i] =
                    switch (random.nextInt(4)) {
                        case 0 -> 0f;
                        case 1 -> -0f;
                        case 2 -> Float.intBitsToFloat(0x7fc00000 + 16 * whose + 1);
                        default -> random.nextFloat() - 0.5f;
                    };
        }
        return values;
    }

    private static byte[] bits(NDArray array) {
        return array.toByteArray();
    }

    /** One step with all of the tensor; parts that Java adds; parts that libtorch reduces. */
    @ParameterizedTest
    @ValueSource(ints = {1, 50, 5_000, 100_000})
    void reduceHasTheBitsOfAllReduce(int count) {
        List<ProcessGroup> groups = ProcessGroups.local(3);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        for (ReduceOp op :
                                List.of(
                                        ReduceOp.MIN,
                                        ReduceOp.MAX,
                                        ReduceOp.SUM,
                                        ReduceOp.PRODUCT)) {
                            compare(group, count, op);
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void compare(ProcessGroup group, int count, ReduceOp op) {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            float[] values = values(count, group.rank(), op);
            NDArray all = manager.create(values);
            byte[] before = bits(all);
            group.allReduce(all, op).await();
            for (int root = 0; root < group.worldSize(); root++) {
                NDArray one = manager.create(values);
                group.reduce(one, root, op).await();
                assertArrayEquals(
                        group.rank() == root ? bits(all) : before,
                        bits(one),
                        op + " of " + count + " on rank " + group.rank() + ", root " + root);
            }
        }
    }

    /** Tensors that share a step or have their own, reduced as a whole or in parts. */
    @ParameterizedTest
    @ValueSource(longs = {64 << 10, 1 << 20})
    void coalescedOperationsHaveTheBitsOfSeparateOnes(long chunkSize) {
        ShmOptions options = ShmOptions.builder().optChunkSize(chunkSize).build();
        List<ProcessGroup> groups = ProcessGroups.local("shm", 3, options);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        compareCoalesced(group, List.of(5, 0, 1, 900));
                        compareCoalesced(group, List.of(1_000, 1_025, 3, 20_000, 20, 0, 9_000));
                        compareCoalesced(group, List.of(70_000, 7, 8, 30_000, 30_000, 30_000));
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static void compareCoalesced(ProcessGroup group, List<Integer> counts) {
        int n = group.worldSize();
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            for (ReduceOp op : List.of(ReduceOp.MAX, ReduceOp.SUM, ReduceOp.AVG)) {
                List<NDArray> together = new ArrayList<>();
                List<NDArray> inputs = new ArrayList<>();
                List<NDArray> gathered = new ArrayList<>();
                List<NDArray> scattered = new ArrayList<>();
                for (int count : counts) {
                    together.add(manager.create(values(count, group.rank(), op)));
                    inputs.add(manager.create(values(n * count, group.rank(), op)));
                    gathered.add(manager.zeros(new Shape(n * count)));
                    scattered.add(manager.zeros(new Shape(count)));
                }
                group.allReduceCoalesced(together, op).await();
                group.reduceScatterCoalesced(scattered, inputs, op).await();
                group.allGatherCoalesced(gathered, scattered).await();
                for (int i = 0; i < counts.size(); i++) {
                    String tensor = op + ", " + counts + ", tensor " + i;
                    NDArray alone = manager.create(values(counts.get(i), group.rank(), op));
                    group.allReduce(alone, op).await();
                    assertArrayEquals(bits(alone), bits(together.get(i)), tensor);
                    NDArray part = manager.zeros(new Shape(counts.get(i)));
                    group.reduceScatterTensor(part, inputs.get(i), op).await();
                    assertArrayEquals(bits(part), bits(scattered.get(i)), tensor);
                    NDArray whole = manager.zeros(new Shape(n * counts.get(i)));
                    group.allGatherIntoTensor(whole, part).await();
                    assertArrayEquals(bits(whole), bits(gathered.get(i)), tensor);
                }
            }
        }
    }

    /** Lists with other types are other numbers of operations; the ranks stay in step. */
    @Test
    void listsOfOtherTypesLeaveTheGroupUsable() {
        List<ProcessGroup> groups = ProcessGroups.local(3);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                            List<NDArray> list = new ArrayList<>();
                            list.add(manager.ones(new Shape(5)));
                            if (group.rank() == 1) {
                                list.add(manager.ones(new Shape(4), DataType.FLOAT64));
                                list.add(manager.ones(new Shape(3), DataType.INT32));
                            }
                            Work work = group.allReduceCoalesced(list, ReduceOp.SUM);
                            assertThrows(CollectiveMismatchException.class, work::await);
                            for (int call = 1; call < 5; call++) {
                                NDArray tensor = manager.full(new Shape(3), (float) call);
                                group.allReduce(tensor, ReduceOp.SUM).await();
                                assertArrayEquals(
                                        new float[] {3 * call, 3 * call, 3 * call},
                                        tensor.toFloatArray());
                            }
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    @Test
    void tensorsThatOverlapAreRefused() {
        ProcessGroup group = ProcessGroups.local(1).get(0);
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray whole = manager.ones(new Shape(10));
            NDArray end = whole.get("4:");
            NDArray other = manager.ones(new Shape(12));
            for (List<NDArray> list :
                    List.of(List.of(whole, other, whole), List.of(end, other, whole))) {
                assertThrows(
                        IllegalArgumentException.class,
                        () -> group.allReduceCoalesced(list, ReduceOp.SUM));
                assertThrows(
                        IllegalArgumentException.class,
                        () ->
                                group.reduceScatterCoalesced(
                                        list,
                                        list.stream().map(NDArray::duplicate).toList(),
                                        ReduceOp.SUM));
            }
            group.allReduceCoalesced(List.of(end, other, whole.get(":4")), ReduceOp.SUM).await();
        } finally {
            group.destroy();
        }
    }
}
