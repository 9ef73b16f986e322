// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One operation on arrays of -1, 0 and 1, whose sums every element type holds exactly, compared
 * with libtorch's float64. Inputs, the operation and the comparison are separate steps, so that
 * ranks that share a GPU make no first call of libtorch while kernels of other ranks wait for them.
 * Inputs are copied from a pool on the GPU, and comparisons stay there: in the steps, no rank
 * copies from or to the host.
 */
final class ExactCase {

    /** What ranks have, and so the shapes of their arrays. */
    private enum Operands {
        /** A (rows, inner), and Bs (inner, columns) that are the same on all ranks. */
        SHARDS,
        /** As SHARDS, with one B of 16-column units. */
        GATED_SHARDS,
        /** A (ranks × rows, inner), and each rank's own B (inner, columns). */
        PRODUCTS,
        /** A (rows, columns). */
        TENSOR,
        /** A (ranks × rows, columns). */
        TENSORS,
        /** A (rows, hidden), a residual, and a weight (hidden). */
        NORMED;

        boolean hasBs() {
            return ordinal() <= PRODUCTS.ordinal();
        }
    }

    /** Runs an operation on this rank. */
    private interface Run {
        NDList run(ExactCase one, ProcessGroup group, NDList inputs);
    }

    /** Compares results in float64: a boolean on the GPU for each of them. */
    private interface Compare {
        NDList compare(ExactCase one, ProcessGroup group, NDArray pool, NDList results);
    }

    /** The table of operations: operands, call, expected results. */
    enum Kind {
        ALL_GATHER_MATMUL(
                Operands.SHARDS, ExactCase::allGatherMatmul, ExactCase::compareGatheredProducts),
        ALL_GATHER_GATED(Operands.GATED_SHARDS, ExactCase::allGatherGated, ExactCase::compareGated),
        MATMUL_REDUCE_SCATTER(
                Operands.PRODUCTS,
                (one, group, in) ->
                        new NDList(
                                FusedOps.matmulReduceScatter(
                                        in.get(0), in.get(1), ReduceOp.SUM, 0, group)),
                ExactCase::comparePartOfProducts),
        ALL_REDUCE(
                Operands.TENSOR,
                (one, group, in) -> one.allReduce(group, in),
                (one, group, pool, out) -> one.same(out, one.sum(group, pool))),
        ALL_REDUCE_RMS_NORM(Operands.NORMED, ExactCase::allReduceRmsNorm, ExactCase::compareNorm),
        LOW_CONTENTION_ALL_GATHER(
                Operands.TENSOR,
                (one, group, in) -> one.lowContention(group, in, group.worldSize()),
                (one, group, pool, out) -> one.same(out, NDArrays.concat(one.as(group, pool), 0))),
        LOW_CONTENTION_REDUCE_SCATTER(
                Operands.TENSORS,
                (one, group, in) -> one.lowContention(group, in, 1),
                (one, group, pool, out) -> one.same(out, one.part(group, one.sum(group, pool))));

        private final Operands operands;
        private final Run run;
        private final Compare compare;

        Kind(Operands operands, Run run, Compare compare) {
            this.operands = operands;
            this.run = run;
            this.compare = compare;
        }
    }

    private static final int MOST_ROWS = 700;
    private static final int MOST_INNER = 384;
    private static final int MOST_COLUMNS = 512;
    private static final int MOST_RANKS = 8;
    private static final int MOST_ELEMENTS = MOST_RANKS * MOST_ROWS * MOST_INNER;
    private static final int RESIDUAL = 300; // salts, behind those of As and Bs
    private static final int WEIGHT = 301;
    private static final float EPSILON = 0x1p-20f;
    private static final int POOL = MOST_ELEMENTS + (1 << 20);

    private final Kind kind;
    private final ScalarType type;
    private final int rows; // of a shard or a part
    private final int inner;
    private final List<Integer> columns; // of each B
    private final long seed;

    ExactCase(Kind kind, ScalarType type, int rows, int inner, List<Integer> columns, long seed) {
        this.kind = kind;
        this.type = type;
        this.rows = rows;
        this.inner = inner;
        this.columns = columns;
        this.seed = seed;
    }

    /**
     * A random operation: 1 to 700 rows a rank, any element type, mostly whole units of 8 elements.
     */
    static ExactCase random(Random random) {
        List<ScalarType> types =
                List.of(
                        ScalarType.BFLOAT16,
                        ScalarType.FLOAT16,
                        ScalarType.BFLOAT16,
                        ScalarType.FLOAT32,
                        ScalarType.FLOAT64);
        Kind kind = Kind.values()[random.nextInt(Kind.values().length)];
        ScalarType type = types.get(random.nextInt(types.size() - (kind.operands.hasBs() ? 0 : 1)));
        int unit = random.nextInt(5) == 0 ? 1 : 8;
        int rows = 1 + random.nextInt(random.nextBoolean() ? MOST_ROWS : 40);
        List<Integer> columns = new ArrayList<>();
        int count = kind.operands == Operands.SHARDS ? 1 + random.nextInt(3) : 1;
        for (int i = 0; i < count; i++) {
            int width = 1 + random.nextInt(MOST_COLUMNS / unit);
            columns.add(
                    kind.operands == Operands.GATED_SHARDS ? 16 * (1 + width / 2) : unit * width);
        }
        int inner = unit * (1 + random.nextInt(MOST_INNER / unit));
        return new ExactCase(kind, type, rows, inner, columns, random.nextLong());
    }

    Kind kind() {
        return kind;
    }

    /**
     * Random elements from which all cases take theirs, the same on all ranks: -1, 0 and 1.
     *
     * @return an array of int8, in the manager
     */
    static NDArray pool(NDManager manager) {
        byte[] bytes = new byte[POOL];
        new Random(1).nextBytes(bytes);
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) ((bytes[i] & 3) == 0 ? -1 : (bytes[i] & 3) == 1 ? 1 : 0);
        }
        return manager.create(ByteBuffer.wrap(bytes), new Shape(POOL), DataType.INT8);
    }

    /**
     * What a rank has: A and the Bs; of an all-reduce, the tensor; of a norm, the residual and the
     * weight behind it.
     *
     * @param pool the {@link #pool}, to whose manager the inputs belong
     */
    NDList inputs(ProcessGroup group, NDArray pool) {
        NDList inputs = new NDList(array(pool, type, aShape(group), group.rank()));
        if (kind.operands == Operands.NORMED) {
            inputs.add(array(pool, type, aShape(group), RESIDUAL));
            inputs.add(array(pool, type, new Shape(hidden()), WEIGHT));
        }
        for (int i = 0; kind.operands.hasBs() && i < columns.size(); i++) {
            NDArray b = array(pool, type, bShape(i), bSalt(group.rank(), i));
            // The fused kernel gates Bs that are given by columns alone.
            inputs.add(kind.operands == Operands.GATED_SHARDS ? byColumns(b) : b);
        }
        return inputs;
    }

    private static NDArray byColumns(NDArray b) {
        try (NDArray turned = b.transpose()) {
            NDArray copy = Torch.empty(b.getManager(), turned.getShape(), Torch.scalarType(b));
            Torch.copy(copy, turned);
            b.close();
            return copy.transpose();
        }
    }

    private int bSalt(int rank, int i) {
        return kind.operands == Operands.PRODUCTS ? 100 + rank : 200 + i;
    }

    private Shape aShape(ProcessGroup group) {
        long all = (long) rows * group.worldSize();
        return switch (kind.operands) {
            case TENSOR -> new Shape(rows, columns.get(0));
            case TENSORS -> new Shape(all, columns.get(0));
            case NORMED -> new Shape(rows, hidden());
            case PRODUCTS -> new Shape(all, inner);
            case SHARDS, GATED_SHARDS -> new Shape(rows, inner);
        };
    }

    /** The elements of a row that is normalised: up to 4096. */
    private int hidden() {
        return 8 * columns.get(0);
    }

    private Shape bShape(int i) {
        return new Shape(inner, columns.get(i));
    }

    /** The elements of the pool from a place that the seed and the salt tell. */
    private NDArray array(NDArray pool, ScalarType as, Shape shape, int salt) {
        int size = (int) shape.size();
        int begin = new Random(seed * 1_000_003 + salt).nextInt(POOL - size + 1);
        try (NDArray flat = Torch.narrow(pool, 0, begin, size);
                NDArray shaped = flat.reshape(shape)) {
            return Torch.cast(shaped, as);
        }
    }

    /** Runs the operation on this rank; a GPU may not have ended it when this returns. */
    NDList run(ProcessGroup group, NDList inputs) {
        return kind.run.run(this, group, inputs);
    }

    private NDList allReduce(ProcessGroup group, NDList inputs) {
        NDArray sum = Torch.cast(inputs.get(0), type); // the input stays as it is
        group.allReduce(sum, ReduceOp.SUM).await();
        return new NDList(sum);
    }

    private NDList allReduceRmsNorm(ProcessGroup group, NDList inputs) {
        NormedResidual normed =
                FusedOps.allReduceRmsNorm(
                        inputs.get(0), inputs.get(1), inputs.get(2), EPSILON, group);
        return new NDList(normed.residual(), normed.norm());
    }

    /** An all-gather if the output has the rows of all ranks; otherwise a reduce-scatter. */
    private NDList lowContention(ProcessGroup group, NDList inputs, int parts) {
        NDArray input = inputs.get(0);
        Shape shape = new Shape((long) parts * rows, columns.get(0));
        NDArray output = Torch.empty(input.getManager(), shape, type);
        Work work =
                parts > 1
                        ? LowContention.allGather(group, output, input)
                        : LowContention.reduceScatter(group, output, input, ReduceOp.SUM);
        work.await();
        return new NDList(output);
    }

    private NDList allGatherMatmul(ProcessGroup group, NDList inputs) {
        GatheredMatmul result =
                FusedOps.allGatherMatmul(
                        inputs.get(0), new ArrayList<>(inputs.subList(1, inputs.size())), 0, group);
        NDList all = new NDList(result.gathered().orElseThrow());
        all.addAll(result.outputs());
        return all;
    }

    /** The gated product; gathered rows and product where the operator is not possible. */
    private NDList allGatherGated(ProcessGroup group, NDList inputs) {
        Optional<NDArray> gated = FusedOps.allGatherGated(inputs.get(0), inputs.get(1), group);
        return gated.isPresent() ? new NDList(gated.get()) : allGatherMatmul(group, inputs);
    }

    /**
     * Compares what came out with the same in float64.
     *
     * @param pool the {@link #pool}, to whose manager all arrays belong
     * @return a boolean on the GPU for each array that came out
     */
    NDList compare(ProcessGroup group, NDArray pool, NDList results) {
        return kind.compare.compare(this, group, pool, results);
    }

    /** The As of all ranks. */
    private NDList as(ProcessGroup group, NDArray pool) {
        NDList as = new NDList();
        for (int rank = 0; rank < group.worldSize(); rank++) {
            as.add(array(pool, ScalarType.FLOAT64, aShape(group), rank));
        }
        return as;
    }

    private NDArray sum(ProcessGroup group, NDArray pool) {
        return as(group, pool).stream().reduce(NDArray::add).orElseThrow();
    }

    /** This rank's rows of an array with the rows of all. */
    private NDArray part(ProcessGroup group, NDArray all) {
        return Torch.narrow(all, 0, (long) rows * group.rank(), rows);
    }

    private NDList comparePartOfProducts(ProcessGroup group, NDArray pool, NDList results) {
        NDList as = as(group, pool);
        NDArray sum = null;
        for (int rank = 0; rank < group.worldSize(); rank++) {
            NDArray b = array(pool, ScalarType.FLOAT64, bShape(0), bSalt(rank, 0));
            NDArray product = part(group, as.get(rank)).matMul(b);
            sum = sum == null ? product : sum.add(product);
        }
        return same(results, sum);
    }

    private NDList compareGatheredProducts(ProcessGroup group, NDArray pool, NDList results) {
        NDArray gathered = NDArrays.concat(as(group, pool), 0);
        NDList expected = new NDList(gathered);
        for (int i = 0; i < columns.size(); i++) {
            expected.add(gathered.matMul(b(pool, i)));
        }
        return same(results, expected.toArray(new NDArray[0]));
    }

    private NDList compareGated(ProcessGroup group, NDArray pool, NDList results) {
        if (results.size() > 1) {
            return compareGatheredProducts(group, pool, results);
        }
        NDArray both = NDArrays.concat(as(group, pool), 0).matMul(b(pool, 0));
        int half = columns.get(0) / 2;
        NDArray gates = Torch.narrow(both, 1, 0, half);
        NDArray values = Torch.narrow(both, 1, half, half);
        NDArray expected = gates.mul(Activation.sigmoid(gates)).mul(values);
        return new NDList(close(expected, results.get(0)));
    }

    private NDList compareNorm(ProcessGroup group, NDArray pool, NDList results) {
        Shape shape = results.get(0).getShape();
        NDArray residual = sum(group, pool).add(array(pool, ScalarType.FLOAT64, shape, RESIDUAL));
        NDArray weight = array(pool, ScalarType.FLOAT64, new Shape(hidden()), WEIGHT);
        NDArray squares = residual.mul(residual).mean(new int[] {1}, true);
        NDArray norm = residual.div(squares.add(EPSILON).sqrt()).mul(weight);
        NDList right = same(new NDList(results.get(0)), residual);
        right.add(close(norm, results.get(1)));
        return right;
    }

    private NDArray b(NDArray pool, int i) {
        return array(pool, ScalarType.FLOAT64, bShape(i), bSalt(0, i));
    }

    private NDList same(NDList actual, NDArray... expected) {
        assertEquals(expected.length, actual.size(), toString());
        NDList right = new NDList();
        for (int i = 0; i < expected.length; i++) {
            assertEquals(expected[i].getShape(), actual.get(i).getShape(), toString());
            try (NDArray wide = Torch.cast(actual.get(i), ScalarType.FLOAT64)) {
                right.add(expected[i].eq(wide).all());
            }
        }
        return right;
    }

    /** What is no sum of products is computed in float32, and rounded once. */
    private NDArray close(NDArray expected, NDArray actual) {
        assertEquals(expected.getShape(), actual.getShape(), toString());
        float epsilon = type == ScalarType.BFLOAT16 ? 0x1p-8f : 0x1p-11f;
        NDArray bound = expected.abs().mul(epsilon + 0x1p-14f).add(0x1p-24f);
        try (NDArray wide = Torch.cast(actual, ScalarType.FLOAT64)) {
            return expected.sub(wide).abs().lte(bound).all();
        }
    }

    @Override
    public String toString() {
        return String.format(
                "%s of %s, %d rows a rank, inner %d, columns %s, seed %d",
                kind, type, rows, inner, columns, seed);
    }
}
