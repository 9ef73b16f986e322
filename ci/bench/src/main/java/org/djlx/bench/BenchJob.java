// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.Locale;
import java.util.Map;
import java.util.function.LongToIntFunction;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** One rank of an all-reduce benchmark on the CPU. The result is the slowest rank's median. */
final class BenchJob implements AutoCloseable {

    // Elements per slice: values are generated on the Java heap, which cannot hold a large tensor.
    private static final long SLICE = 4 << 20;

    private final ProcessGroup group;
    private final ScalarType type;
    private final NDManager manager;

    BenchJob(ProcessGroup group, ScalarType type) {
        this.group = group;
        this.type = type;
        this.manager = NDManager.newBaseManager(group.device(), "PyTorch");
    }

    BenchRow measure(BenchCase wanted) {
        int worldSize = group.worldSize();
        long count = wanted.size() / type.itemSize();
        try (NDArray tensor = tensor(count)) {
            Contender contender =
                    new Contender.IntoArrays(
                            turn -> group.allReduce(tensor, ReduceOp.SUM).await(),
                            tensor,
                            () -> fill(tensor, i -> input(group.rank(), i)),
                            () -> {});
            LongToIntFunction expected =
                    i -> IntStream.range(0, worldSize).map(rank -> input(rank, i)).sum();
            BenchRank rank =
                    new BenchRank(group, null, manager, new Meeting(group), new HostLane());
            SideBySide.Calls calls =
                    new SideBySide.Calls(wanted.warmUp(), wanted.iterations(), 1, false);
            double[] wrong = {0};
            SideBySide.Result result =
                    new SideBySide(rank, 1, wanted.size(), calls)
                            .measure(
                                    Map.of(GpuBenchRow.OURS, contender),
                                    (name, array) -> wrong[0] = wrong(array, expected));
            double[] slowest = {
                result.columns().get(GpuBenchRow.OURS).hostMicros(),
                result.heap().get(GpuBenchRow.OURS)
            };
            reduce(slowest, ReduceOp.MAX);
            long size = count * type.itemSize();
            double algbw = size / slowest[0] / 1e3;
            return new BenchRow(
                    size,
                    count,
                    type.name().toLowerCase(Locale.ROOT),
                    "sum",
                    -1,
                    slowest[0],
                    algbw,
                    algbw * 2 * (worldSize - 1) / worldSize,
                    (long) reduce(wrong, ReduceOp.SUM)[0],
                    (long) slowest[1]);
        }
    }

    /** Returns a rank's input at an index. Values are small, so sums are exact in every type. */
    private static int input(int rank, long index) {
        return (int) ((index + rank) % 5);
    }

    private long wrong(NDArray output, LongToIntFunction expected) {
        long wrong = 0;
        for (long from = 0; from < output.size(); from += SLICE) {
            try (NDArray slice = slice(output, from);
                    NDArray wanted = tensor(slice.size());
                    NDArray values = values(from, slice.size(), expected)) {
                Torch.copy(wanted, values);
                try (NDArray differ = slice.neq(wanted);
                        NDArray count = differ.countNonzero()) {
                    wrong += count.getLong();
                }
            }
        }
        return wrong;
    }

    private NDArray tensor(long count) {
        NDArray tensor = Torch.empty(manager, new Shape(count), type);
        fill(tensor, i -> 0);
        return tensor;
    }

    private void fill(NDArray tensor, LongToIntFunction value) {
        for (long from = 0; from < tensor.size(); from += SLICE) {
            try (NDArray slice = slice(tensor, from);
                    NDArray values = values(from, slice.size(), value)) {
                Torch.copy(slice, values);
            }
        }
    }

    private static NDArray slice(NDArray tensor, long from) {
        return tensor.get(from + ":" + Math.min(from + SLICE, tensor.size()));
    }

    /** Returns integers: their conversion wraps around as sums in a smaller type do. */
    private NDArray values(long from, long count, LongToIntFunction value) {
        int[] values = new int[(int) count];
        Arrays.setAll(values, i -> value.applyAsInt(from + i));
        return manager.create(values);
    }

    /** All-reduces values in place; returns them. */
    private double[] reduce(double[] values, ReduceOp how) {
        try (NDArray tensor = manager.create(values)) {
            group.allReduce(tensor, how).await();
            System.arraycopy(tensor.toDoubleArray(), 0, values, 0, values.length);
            return values;
        }
    }

    @Override
    public void close() {
        manager.close();
    }
}
