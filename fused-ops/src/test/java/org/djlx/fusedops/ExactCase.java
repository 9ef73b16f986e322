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

    /** The operations. */
    enum Kind {
        ALL_GATHER_MATMUL,
        ALL_GATHER_GATED,
        MATMUL_REDUCE_SCATTER,
        ALL_REDUCE,
        ALL_REDUCE_RMS_NORM;

        /** Whether it multiplies matrices. */
        boolean isMatmul() {
            return this != ALL_REDUCE && this != ALL_REDUCE_RMS_NORM;
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
        ScalarType type = types.get(random.nextInt(types.size() - (kind.isMatmul() ? 0 : 1)));
        int unit = random.nextInt(5) == 0 ? 1 : 8;
        int rows = 1 + random.nextInt(random.nextBoolean() ? MOST_ROWS : 40);
        List<Integer> columns = new ArrayList<>();
        int count = kind == Kind.ALL_GATHER_MATMUL ? 1 + random.nextInt(3) : 1;
        for (int i = 0; i < count; i++) {
            int width = 1 + random.nextInt(MOST_COLUMNS / unit);
            columns.add(kind == Kind.ALL_GATHER_GATED ? 16 * (1 + width / 2) : unit * width);
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
        if (kind == Kind.ALL_REDUCE_RMS_NORM) {
            inputs.add(array(pool, type, aShape(group), RESIDUAL));
            inputs.add(array(pool, type, new Shape(hidden()), WEIGHT));
        }
        for (int i = 0; kind.isMatmul() && i < columns.size(); i++) {
            NDArray b = array(pool, type, bShape(i), bSalt(group.rank(), i));
            // The fused kernel gates Bs that are given by columns alone.
            inputs.add(kind == Kind.ALL_GATHER_GATED ? byColumns(b) : b);
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

    /** The Bs of a reduce-scatter are each rank's own. */
    private int bSalt(int rank, int i) {
        return kind == Kind.MATMUL_REDUCE_SCATTER ? 100 + rank : 200 + i;
    }

    private Shape aShape(ProcessGroup group) {
        return switch (kind) {
            case ALL_REDUCE -> new Shape(rows, columns.get(0));
            case ALL_REDUCE_RMS_NORM -> new Shape(rows, hidden());
            case MATMUL_REDUCE_SCATTER -> new Shape((long) rows * group.worldSize(), inner);
            default -> new Shape(rows, inner);
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
        NDArray a = inputs.get(0);
        switch (kind) {
            case ALL_REDUCE:
                NDArray sum = Torch.cast(a, type); // the input stays as it is
                group.allReduce(sum, ReduceOp.SUM).await();
                return new NDList(sum);
            case ALL_REDUCE_RMS_NORM:
                NormedResidual normed =
                        FusedOps.allReduceRmsNorm(a, inputs.get(1), inputs.get(2), EPSILON, group);
                return new NDList(normed.residual(), normed.norm());
            case MATMUL_REDUCE_SCATTER:
                return new NDList(
                        FusedOps.matmulReduceScatter(a, inputs.get(1), ReduceOp.SUM, 0, group));
            case ALL_GATHER_GATED:
                Optional<NDArray> gated = FusedOps.allGatherGated(a, inputs.get(1), group);
                if (gated.isPresent()) {
                    return new NDList(gated.get());
                }
                break;
            default:
        }
        GatheredMatmul result =
                FusedOps.allGatherMatmul(
                        a, new ArrayList<>(inputs.subList(1, inputs.size())), 0, group);
        NDList all = new NDList(result.gathered().orElseThrow());
        all.addAll(result.outputs());
        return all;
    }

    /**
     * Compares what came out with the same in float64.
     *
     * @param pool the {@link #pool}, to whose manager all arrays belong
     * @return a boolean on the GPU for each array that came out
     */
    NDList compare(ProcessGroup group, NDArray pool, NDList results) {
        int ranks = group.worldSize();
        NDList as = new NDList();
        for (int rank = 0; rank < ranks; rank++) {
            as.add(array(pool, ScalarType.FLOAT64, aShape(group), rank));
        }
        if (!kind.isMatmul()) {
            NDArray sum = as.get(0);
            for (int rank = 1; rank < ranks; rank++) {
                sum = sum.add(as.get(rank));
            }
            return kind == Kind.ALL_REDUCE
                    ? new NDList(same(sum, results.get(0)))
                    : compareNorm(pool, sum, results);
        }
        if (kind == Kind.MATMUL_REDUCE_SCATTER) {
            NDArray sum = null;
            for (int rank = 0; rank < ranks; rank++) {
                NDArray a = Torch.narrow(as.get(rank), 0, (long) rows * group.rank(), rows);
                NDArray b = array(pool, ScalarType.FLOAT64, bShape(0), bSalt(rank, 0));
                NDArray product = a.matMul(b);
                sum = sum == null ? product : sum.add(product);
            }
            return new NDList(same(sum, results.get(0)));
        }
        NDArray gathered = NDArrays.concat(as, 0);
        NDList right = new NDList();
        if (results.size() == 1) {
            NDArray both = gathered.matMul(b(pool, 0));
            int half = columns.get(0) / 2;
            NDArray gates = Torch.narrow(both, 1, 0, half);
            NDArray values = Torch.narrow(both, 1, half, half);
            NDArray expected = gates.mul(Activation.sigmoid(gates)).mul(values);
            right.add(close(expected, results.get(0)));
            return right;
        }
        right.add(same(gathered, results.get(0)));
        for (int i = 0; i < columns.size(); i++) {
            right.add(same(gathered.matMul(b(pool, i)), results.get(1 + i)));
        }
        return right;
    }

    private NDList compareNorm(NDArray pool, NDArray sum, NDList results) {
        Shape shape = results.get(0).getShape();
        NDArray residual = sum.add(array(pool, ScalarType.FLOAT64, shape, RESIDUAL));
        NDArray weight = array(pool, ScalarType.FLOAT64, new Shape(hidden()), WEIGHT);
        NDArray squares = residual.mul(residual).mean(new int[] {1}, true);
        NDArray norm = residual.div(squares.add(EPSILON).sqrt()).mul(weight);
        return new NDList(same(residual, results.get(0)), close(norm, results.get(1)));
    }

    private NDArray b(NDArray pool, int i) {
        return array(pool, ScalarType.FLOAT64, bShape(i), bSalt(0, i));
    }

    private NDArray same(NDArray expected, NDArray actual) {
        assertEquals(expected.getShape(), actual.getShape(), toString());
        try (NDArray wide = Torch.cast(actual, ScalarType.FLOAT64)) {
            return expected.eq(wide).all();
        }
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
