// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.RankShared;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.collectives.spi.Reductions;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;

/** All-reduces between GPUs, and their results to the bit. */
final class AllReduceCases {

    static final List<ScalarType> TYPES =
            List.of(ScalarType.FLOAT32, ScalarType.FLOAT16, ScalarType.BFLOAT16);

    private AllReduceCases() {}

    /** Returns the input of rank r, created on this rank's GPU. */
    static NDArray input(NDManager manager, ScalarType type, long count, int rank, long salt) {
        return TestArrays.random(manager, type, new Shape(count), 7919 * salt + rank);
    }

    /** The result to the bit: rank order, float32, one rounding; computed by libtorch. */
    private static double[] expected(
            NDManager manager,
            ScalarType type,
            long count,
            long salt,
            ReduceOp op,
            int begin,
            int ranks) {
        return RankShared.get(
                List.of(type, count, salt, op, begin, ranks),
                () -> {
                    List<NDArray> parts = new ArrayList<>();
                    for (int rank = 0; rank < ranks; rank++) {
                        parts.add(input(manager, type, count + begin, rank, salt).get(begin + ":"));
                    }
                    NDArray result = Torch.empty(manager, new Shape(count), type);
                    Reductions.reduce(result, parts, op);
                    return TestArrays.values(result);
                });
    }

    private static void check(
            ProcessGroup group,
            NDManager manager,
            ScalarType type,
            long count,
            long salt,
            ReduceOp op,
            int begin) {
        try (NDManager scope = manager.newSubManager()) {
            NDArray whole = input(scope, type, count + begin, group.rank(), salt);
            NDArray tensor = begin == 0 ? whole : whole.get(begin + ":");
            group.allReduce(tensor, op).await();
            assertArrayEquals(
                    expected(scope, type, count, salt, op, begin, group.worldSize()),
                    TestArrays.values(tensor),
                    () -> type + " " + count + " " + op + " from " + begin);
        }
    }

    /**
     * Eight ranks that are linked as in a hybrid cube mesh: each quad is summed, then the two sums.
     * Ranks may share a GPU: all kernels are loaded before the ranks wait for each other, and the
     * GPU can run the kernels of all ranks at once.
     *
     * @param group the group
     * @param manager makes arrays on its GPU
     * @param one the ranks of a four
     * @param other those of the other
     * @param ready waits until all ranks that share a process have come so far
     */
    static void checkMesh(
            ProcessGroup group,
            NDManager manager,
            List<Integer> one,
            List<Integer> other,
            Runnable ready) {
        assertFalse(group.isP2pAvailable()); // A rank cannot write to the buffers of all others.
        List<Runnable> checks = new ArrayList<>();
        long salt = 0;
        long meshBytes = CudaP2pOptions.builder().build().meshBytes();
        for (ScalarType type : TYPES) {
            for (long count : new long[] {1, 1003, 32_000, meshBytes / type.itemSize()}) {
                ReduceOp op = ++salt % 2 == 0 ? ReduceOp.SUM : ReduceOp.AVG;
                NDArray sums = sumOf(manager, type, count, one, salt);
                TorchInPlace.add(sums, sumOf(manager, type, count, other, salt));
                if (op == ReduceOp.AVG) {
                    TorchInPlace.div(sums, group.worldSize());
                }
                double[] expected = TestArrays.values(Torch.cast(sums, type));
                NDArray tensor = input(manager, type, count, group.rank(), salt);
                TestArrays.values(tensor);
                checks.add(
                        () -> {
                            group.allReduce(tensor, op).await(group.timeout());
                            assertArrayEquals(
                                    expected,
                                    TestArrays.values(tensor),
                                    () -> type + " " + count + " " + op);
                        });
            }
        }
        ready.run();
        checks.forEach(Runnable::run);
        String dump = group.flightRecorder().dump().toJson();
        assertTrue(dump.contains("\"mesh\""), dump);
        assertFalse(dump.contains("one_shot"), dump);
    }

    private static NDArray sumOf(
            NDManager manager, ScalarType type, long count, List<Integer> ranks, long salt) {
        NDArray sum = Torch.empty(manager, new Shape(count), ScalarType.FLOAT32);
        List<NDArray> parts =
                ranks.stream()
                        .map(rank -> input(manager, type, count, rank, salt))
                        .map(part -> Torch.cast(part, ScalarType.FLOAT32))
                        .toList();
        Reductions.reduce(sum, parts, ReduceOp.SUM);
        return sum;
    }

    /**
     * One-shot up to its largest size, two-shot, ends of packs, and every alignment.
     *
     * @param group with one-shot up to {@link P2pRanks#ONE_SHOT_BYTES}
     * @param manager makes arrays on its GPU
     */
    static void check(ProcessGroup group, NDManager manager) {
        checkSizes(group, manager);
        String dump = group.flightRecorder().dump().toJson();
        assertTrue(dump.contains("one_shot"), dump);
        assertTrue(dump.contains("two_shot"), dump);
    }

    /** The same sizes and alignments with direct all-reduces. */
    static void checkDirect(ProcessGroup group, NDManager manager) {
        checkSizes(group, manager);
        String dump = group.flightRecorder().dump().toJson();
        assertTrue(dump.contains("\"direct\""), dump);
        assertFalse(dump.contains("_shot"), dump);
    }

    private static void checkSizes(ProcessGroup group, NDManager manager) {
        long salt = 0;
        for (ScalarType type : TYPES) {
            long largest = P2pRanks.ONE_SHOT_BYTES / type.itemSize();
            for (long count : new long[] {1, 7, 8, 9, 1000, 65_537, largest, 600_001}) {
                for (int begin : new int[] {0, 1, 3}) {
                    ReduceOp op = ++salt % 2 == 0 ? ReduceOp.SUM : ReduceOp.AVG;
                    check(group, manager, type, count, salt, op, begin);
                }
            }
        }
    }
}
