// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.DoubleStream;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.RankShared;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.TestArrays;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.path.Axes;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One call of a fused operator on random arrays, compared element by element with DJL's operators
 * in float64.
 *
 * @param type the element type
 * @param shape the shape of a rank's A
 * @param columns the columns of each B
 * @param dim the gather or scatter dimension
 * @param strided whether A and the Bs are not contiguous
 * @param seed of the random elements
 */
record FusedCase(
        ScalarType type, Shape shape, List<Integer> columns, int dim, boolean strided, long seed) {

    private NDArray array(NDManager manager, Shape of, long salt) {
        long mixed = seed * 1_000_003 + salt;
        return strided
                ? TestArrays.randomStrided(manager, type, of, mixed)
                : TestArrays.random(manager, type, of, mixed);
    }

    private static NDArray doubles(NDArray array) {
        return Torch.cast(array, ScalarType.FLOAT64);
    }

    private int axis() {
        return dim < 0 ? dim + shape.dimension() : dim;
    }

    /** Expected values in float64, and sums of magnitudes, to which the tolerance is relative. */
    private record Reference(Shape shape, double[] values, double[] magnitudes) {

        static Reference of(NDArray values, NDArray magnitudes) {
            return new Reference(
                    values.getShape(), values.toDoubleArray(), magnitudes.toDoubleArray());
        }
    }

    /** The gathered A, and its product with each B. */
    private record Gathered(Shape shape, double[] values, List<Reference> products) {}

    private Gathered gathered(ProcessGroup group) {
        return RankShared.get(
                List.of(this, "gathered", group.worldSize(), group.device().getDeviceType()),
                () -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
                        NDList shards = new NDList();
                        for (int rank = 0; rank < group.worldSize(); rank++) {
                            shards.add(doubles(array(manager, shape, rank)));
                        }
                        NDArray whole = NDArrays.concat(shards, axis());
                        List<Reference> products = new ArrayList<>();
                        for (NDArray b : rights(manager, whole.getShape())) {
                            NDArray wide = doubles(b);
                            NDArray bound = matMul(whole.abs(), wide.abs());
                            products.add(Reference.of(matMul(whole, wide), bound));
                        }
                        return new Gathered(whole.getShape(), whole.toDoubleArray(), products);
                    }
                });
    }

    /** Returns the Bs, which are the same on all ranks. */
    private List<NDArray> rights(NDManager manager, Shape whole) {
        List<NDArray> bs = new ArrayList<>();
        for (int i = 0; i < columns.size(); i++) {
            bs.add(array(manager, new Shape(whole.getLastDimension(), columns.get(i)), 100 + i));
        }
        return bs;
    }

    /** Runs {@code allGatherMatmul} on this rank a number of times, and checks each result. */
    void checkAllGatherMatmul(ProcessGroup group, int times) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            Gathered expected = gathered(group);
            NDArray aShard = array(manager, shape, group.rank());
            List<NDArray> bs = rights(manager, expected.shape());
            long inner = expected.shape().getLastDimension();
            double[][] first = new double[columns.size()][];
            for (int time = 0; time < times; time++) {
                boolean returnGathered = time % 2 == 0;
                GatheredMatmul result;
                int roundedParts;
                try (UsageCounter usage = FusedOps.countUsage()) {
                    result = FusedOps.allGatherMatmul(aShard, bs, dim, group, returnGathered);
                    roundedParts = roundedProducts(group, usage);
                }
                assertEquals(returnGathered, result.gathered().isPresent());
                if (returnGathered) {
                    NDArray gathered = result.gathered().get();
                    assertEquals(expected.shape(), gathered.getShape());
                    assertEquals(type, Torch.scalarType(gathered));
                    assertArrayEquals(expected.values(), TestArrays.values(gathered));
                    gathered.close();
                }
                for (int i = 0; i < bs.size(); i++) {
                    NDArray output = result.outputs().get(i);
                    Reference product = expected.products().get(i);
                    double[] values = assertClose(product, output, inner, roundedParts);
                    first[i] = first[i] == null ? values : first[i];
                    assertArrayEquals(first[i], values, "from run to run");
                    assertSameOnAllRanks(group, manager, output);
                    output.close();
                }
            }
        }
    }

    /**
     * Returns how often parts of a gathered product are rounded before they are added: along the
     * last dimension, once on the path PIPELINED.
     */
    private int roundedProducts(ProcessGroup group, UsageCounter usage) {
        boolean last = axis() == shape.dimension() - 1 && group.worldSize() > 1;
        return (last && usage.calls(Path.PIPELINED) > 0 ? 1 : 0) + roundedParts(group, usage);
    }

    /**
     * Returns how often a 16-bit sum is rounded more on the path NCCL of GPUs: there libtorch
     * multiplies, which by default adds partial sums in 16 bits.
     */
    private int roundedParts(ProcessGroup group, UsageCounter usage) {
        return isNccl(group, usage) && type.itemSize() == Short.BYTES ? 1 : 0;
    }

    /** Returns how often NCCL rounds a sum more: at each rank of a ring. */
    private static int roundedHops(ProcessGroup group, UsageCounter usage) {
        return isNccl(group, usage) ? group.worldSize() - 2 : 0;
    }

    /** Calls of other ranks' threads count, too: one of them may be in another operator. */
    private static boolean isNccl(ProcessGroup group, UsageCounter usage) {
        return group.device().isGpu() && usage.calls(Path.NCCL) > 0;
    }

    /** All ranks multiply the same A with the same Bs. */
    private void assertSameOnAllRanks(ProcessGroup group, NDManager manager, NDArray output) {
        if (group.device().isGpu()) {
            return; // There the rounding of a matmul is the GPU library's affair.
        }
        List<NDArray> all =
                Stream.generate(() -> Torch.empty(manager, output.getShape(), type))
                        .limit(group.worldSize())
                        .toList();
        group.allGather(all, output).await();
        double[] own = TestArrays.values(output);
        for (NDArray other : all) {
            assertArrayEquals(own, TestArrays.values(other), "from rank to rank");
        }
    }

    /** Returns the part of each rank of the sum of all products. */
    private List<Reference> scattered(ProcessGroup group, ReduceOp op) {
        int ranks = group.worldSize();
        return RankShared.get(
                List.of(this, op, ranks, group.device().getDeviceType()),
                () -> {
                    try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
                        NDArray sum = null;
                        NDArray magnitude = null;
                        for (int rank = 0; rank < ranks; rank++) {
                            NDArray a = doubles(array(manager, shape, rank));
                            NDArray b = doubles(right(manager, rank));
                            NDArray product = matMul(a, b);
                            NDArray bound = matMul(a.abs(), b.abs());
                            sum = sum == null ? product : sum.add(product);
                            magnitude = magnitude == null ? bound : magnitude.add(bound);
                        }
                        if (op == ReduceOp.AVG) {
                            sum = sum.div(ranks);
                            magnitude = magnitude.div(ranks);
                        }
                        long part = sum.getShape().get(axis()) / ranks;
                        List<Reference> parts = new ArrayList<>();
                        for (int rank = 0; rank < ranks; rank++) {
                            String index =
                                    ":, ".repeat(axis()) + part * rank + ":" + part * (rank + 1);
                            parts.add(
                                    part == 0
                                            ? Reference.of(sum, magnitude)
                                            : Reference.of(sum.get(index), magnitude.get(index)));
                        }
                        return parts;
                    }
                });
    }

    /** Returns the B of a rank. */
    private NDArray right(NDManager manager, int rank) {
        return array(manager, new Shape(shape.getLastDimension(), columns.get(0)), 100 + rank);
    }

    /** Runs {@code matmulReduceScatter} on this rank a number of times, and checks each result. */
    void checkMatmulReduceScatter(ProcessGroup group, ReduceOp op, int times) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            Reference expected = scattered(group, op).get(group.rank());
            long inner = shape.getLastDimension() * group.worldSize();
            NDArray a = array(manager, shape, group.rank());
            NDArray b = right(manager, group.rank());
            double[] first = null;
            for (int time = 0; time < times; time++) {
                NDArray result;
                int roundedParts;
                try (UsageCounter usage = FusedOps.countUsage()) {
                    result = FusedOps.matmulReduceScatter(a, b, op, dim, group);
                    roundedParts = 1 + roundedParts(group, usage) + roundedHops(group, usage);
                }
                double[] values = assertClose(expected, result, inner, roundedParts);
                first = first == null ? values : first;
                assertArrayEquals(first, values, "from run to run");
                result.close();
            }
        }
    }

    /** Runs {@code matmulAllReduce} on this rank twice, and checks the results. */
    void checkMatmulAllReduce(ProcessGroup group) {
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            List<Reference> parts = scattered(group, ReduceOp.SUM);
            Reference expected =
                    new Reference(
                            Axes.with(shape, shape.dimension() - 1, columns.get(0)),
                            concatenated(parts.stream().map(Reference::values)),
                            concatenated(parts.stream().map(Reference::magnitudes)));
            NDArray a = array(manager, shape, group.rank());
            NDArray b = right(manager, group.rank());
            long inner = shape.getLastDimension() * group.worldSize();
            double[] first = null;
            for (int time = 0; time < 2; time++) {
                try (NDArray result = FusedOps.matmulAllReduce(a, b, group)) {
                    double[] values = assertClose(expected, result, inner, 1 + group.worldSize());
                    first = first == null ? values : first;
                    assertArrayEquals(first, values, "from run to run");
                    assertSameOnAllRanks(group, manager, result);
                }
            }
        }
    }

    private static double[] concatenated(Stream<double[]> parts) {
        return parts.flatMapToDouble(DoubleStream::of).toArray();
    }

    /** Multiplies by DJL as matrices, because some batched matmuls do not take empty batches. */
    private static NDArray matMul(NDArray a, NDArray b) {
        Shape shape = a.getShape();
        int last = shape.dimension() - 1;
        long rows = shape.slice(0, last).size();
        NDArray product = a.reshape(rows, shape.get(last)).matMul(b);
        return product.reshape(shape.slice(0, last).addAll(new Shape(b.getShape().get(1))));
    }

    /**
     * Checks a result. The tolerance is one rounding of the result, the accumulation error of a
     * matmul over {@code inner} elements, and the rounding of each rank's part, all relative to the
     * sum of magnitudes.
     *
     * @return the elements
     */
    private double[] assertClose(Reference expected, NDArray actual, long inner, int roundedParts) {
        assertEquals(expected.shape(), actual.getShape());
        assertEquals(type, Torch.scalarType(actual));
        double[] want = expected.values();
        double[] bound = expected.magnitudes();
        double[] got = TestArrays.values(actual);
        double accumulation = type == ScalarType.FLOAT64 ? 0x1p-53 : 0x1p-24;
        for (int i = 0; i < want.length; i++) {
            double tolerance =
                    epsilon() * Math.abs(want[i])
                            + (roundedParts * epsilon() + (inner + 2) * accumulation) * bound[i]
                            + 0x1p-25;
            if (!(Math.abs(want[i] - got[i]) <= tolerance)) { // Also if it is not a number.
                assertEquals(want[i], got[i], tolerance, this + " [" + i + "]");
            }
        }
        return got;
    }

    private double epsilon() {
        return switch (type) {
            case FLOAT64 -> 0x1p-53;
            case FLOAT32 -> 0x1p-24;
            case FLOAT16 -> 0x1p-11;
            case BFLOAT16 -> 0x1p-8;
            default -> throw new IllegalArgumentException(type.toString());
        };
    }
}
