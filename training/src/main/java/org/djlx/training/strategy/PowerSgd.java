// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.djlx.training.internal.Replica;

/**
 * Sends low-rank factors of gradients, as PyTorch's {@code powerSGD_hook}: algorithms 1 and 2 of
 * Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
 * Optimization", NeurIPS 2019, arXiv:1905.13727.
 *
 * <p>A gradient of shape (n, …) is a matrix M of n rows and m columns. Ranks all-reduce P = M·Q,
 * orthogonalise it, all-reduce Q = Mᵀ·P, and use P·Qᵀ as gradient: (n + m) · rank elements are sent
 * instead of n · m.
 *
 * <ul>
 *   <li>A rank adds what P·Qᵀ lost of its gradient to its next gradient (error feedback), and
 *       starts each step with Q of the last one (warm start). This takes a copy of each gradient.
 *   <li>Not compressed: gradients with fewer than two dimensions, gradients whose factors are not
 *       smaller, and types other than float32 and float64.
 *   <li>Checkpoints do not save this state. It starts from zero when a trainer is initialised.
 *   <li>{@code newTrainer} refuses a {@link org.djlx.training.precision.GradScaler}: its overflows
 *       and changes of scale would stay in the error feedback.
 * </ul>
 */
public final class PowerSgd implements GradientHook {

    // What a column keeps of its length if it depends on earlier columns: rounding errors.
    private static final double ROUNDING = 1e-5;

    /** The state of one gradient's matrix on this rank. */
    private static final class Factors {

        private final NDArray error; // the part not sent yet, in the gradient's shape
        private final NDArray matrix; // a view of error
        private final NDArray q;
        private final NDArray directions; // that replace columns of P

        Factors(NDManager manager, NDArray gradient, int rank, Random random) {
            DataType type = gradient.getDataType();
            error = manager.zeros(gradient.getShape(), type);
            long rows = gradient.getShape().get(0);
            matrix = attached(manager, error.reshape(rows, -1));
            q = normal(manager, matrix.getShape().get(1), rank, random).toType(type, false);
            directions = normal(manager, rows, rank, random).toType(type, false);
        }

        private static NDArray normal(NDManager manager, long rows, int columns, Random random) {
            double[] values = new double[Math.toIntExact(rows * columns)];
            for (int i = 0; i < values.length; i++) {
                values[i] = random.nextGaussian();
            }
            return manager.create(values, new Shape(rows, columns));
        }
    }

    private final int rank;
    private final long firstStep;
    private final Map<NDArray, Factors> factors = new IdentityHashMap<>(); // by parameter
    private long step; // of the running reduction; the first is 1

    /**
     * Creates the hook for all ranks.
     *
     * @param rank the number of columns of P and Q, 1 or more; the paper uses 1 to 4
     * @param firstStep the number of steps before the first compressed one, 0 or more, because
     *     early gradients are far from low rank; 1000 is PyTorch's default
     */
    public PowerSgd(int rank, long firstStep) {
        if (rank < 1 || firstStep < 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "PowerSgd: the rank must be 1 or more and the first step 0 or more, not"
                                    + " %d and %d",
                            rank, firstStep));
        }
        this.rank = rank;
        this.firstStep = firstStep;
    }

    @Override
    public GradientHook ofRank() {
        return new PowerSgd(rank, firstStep);
    }

    @Override
    public String name() {
        return String.format("PowerSgd of rank %d from step %d", rank, firstStep);
    }

    @Override
    public Work reduce(GradientBucket bucket) {
        if (bucket.index() == 0) {
            step++;
        }
        List<NDArray> sent = new ArrayList<>();
        for (int i = 0; i < bucket.gradients().size(); i++) {
            NDArray gradient = bucket.gradients().get(i);
            if (step > firstStep && isCompressed(gradient)) {
                Factors own =
                        factors.computeIfAbsent(
                                bucket.parameters().get(i),
                                // The same numbers on all ranks.
                                parameter ->
                                        new Factors(
                                                bucket.manager(),
                                                gradient,
                                                rank,
                                                new Random(factors.size())));
                TorchInPlace.add(own.error, gradient);
                sent.add(own.matrix.matMul(own.q));
            } else {
                sent.add(gradient);
            }
        }
        return bucket.group().allReduceCoalesced(sent, bucket.op());
    }

    private boolean isCompressed(NDArray gradient) {
        Shape shape = gradient.getShape();
        DataType type = gradient.getDataType();
        if (shape.dimension() < 2 || type != DataType.FLOAT32 && type != DataType.FLOAT64) {
            return false;
        }
        long rows = shape.get(0);
        return rows > 0 && (rows + shape.size() / rows) * rank < shape.size();
    }

    @Override
    public void finish(GradientBucket bucket, Work sent) {
        List<NDArray> gradients = bucket.gradients();
        List<NDArray> ps = sent.result();
        int[] matrices =
                IntStream.range(0, ps.size()).filter(i -> ps.get(i) != gradients.get(i)).toArray();
        if (matrices.length == 0) {
            return;
        }
        List<NDArray> qs = new ArrayList<>();
        try (NDManager temporary = bucket.manager().newSubManager()) {
            for (int i : matrices) {
                Factors own = factors.get(bucket.parameters().get(i));
                ps.get(i).attach(temporary);
                orthogonalize(ps.get(i), own.directions);
                NDArray q =
                        attached(
                                temporary,
                                attached(temporary, own.matrix.transpose()).matMul(ps.get(i)));
                Torch.copy(own.q, q);
                qs.add(own.q);
            }
            Work work = bucket.group().allReduceCoalesced(qs, bucket.op());
            Replica.complete(temporary.getDevice(), work);
            double parts = bucket.op() == ReduceOp.SUM ? bucket.group().worldSize() : 1;
            for (int i : matrices) {
                Factors own = factors.get(bucket.parameters().get(i));
                NDArray product = ps.get(i).matMul(attached(temporary, own.q.transpose()));
                Torch.copy(gradients.get(i), product.reshape(gradients.get(i).getShape()));
                TorchInPlace.div(product, parts);
                own.matrix.subi(product);
            }
        }
    }

    /**
     * Makes columns orthonormal by the Gram-Schmidt process, with a second pass for each column. A
     * column that depends on earlier ones is only rounding errors after the first pass, which may
     * depend on them, too: a column of {@code directions} replaces it.
     */
    private static void orthogonalize(NDArray columns, NDArray directions) {
        try (NDManager temporary = columns.getManager().newSubManager()) {
            for (int k = 0; k < columns.getShape().get(1); k++) {
                NDArray column = attached(temporary, Torch.narrow(columns, 1, k, 1));
                NDArray before = attached(temporary, Torch.narrow(columns, 1, 0, k));
                NDArray length = column.norm();
                project(column, before);
                NDArray isDependent =
                        column.norm().lte(length.mul(ROUNDING)).toType(column.getDataType(), false);
                NDArray direction = attached(temporary, Torch.narrow(directions, 1, k, 1));
                column.muli(isDependent.mul(-1).add(1)).addi(direction.mul(isDependent));
                column.divi(column.norm());
                project(column, before);
                column.divi(column.norm());
            }
        }
    }

    /** Subtracts what a column has of earlier, orthonormal columns. */
    private static void project(NDArray column, NDArray before) {
        if (before.getShape().get(1) > 0) {
            column.subi(before.matMul(before.transpose().matMul(column)));
        }
    }

    private static NDArray attached(NDManager manager, NDArray array) {
        array.attach(manager);
        return array;
    }
}
