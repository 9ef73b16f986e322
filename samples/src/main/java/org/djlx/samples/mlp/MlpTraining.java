// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.mlp;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Activation;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import java.util.ArrayList;
import java.util.List;
import java.util.function.UnaryOperator;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.fusedops.FusedOps;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Trains the MLP by gradient descent to predict the embedding of the next token. All ranks train
 * with the fused operators. As the reference, rank 0 also trains in plain DJL, unsharded and in
 * float64. The loss is the squared distance, averaged over tokens.
 */
record MlpTraining(ProcessGroup group, NDManager manager) {

    private static final float RATE = 0.01f;

    /**
     * The result of a training.
     *
     * @param losses the loss of each step over all ranks
     * @param expected the losses of plain DJL; empty on all ranks but 0
     * @param error the largest difference between the final weights and those of plain DJL,
     *     relative to the largest weight
     */
    record Result(List<Double> losses, List<Double> expected, double error) {}

    /** Weights, and the optimizer that updates them. */
    private static final class Weights {

        private final List<NDArray> arrays;
        private final Optimizer optimizer =
                Optimizer.sgd().setLearningRateTracker(Tracker.fixed(RATE)).build();

        Weights(NDArray... arrays) {
            this.arrays = List.of(arrays);
            this.arrays.forEach(array -> array.setRequiresGradient(true));
        }

        /** Updates the weights once; returns the loss. */
        double step(UnaryOperator<NDArray> mlp, NDArray x, NDArray next, long tokens) {
            double value;
            try (NDManager temporary = x.getManager().newSubManager();
                    GradientScope scope = GradientScope.open()) {
                NDArray input = Torch.alias(temporary, x);
                NDArray loss = loss(temporary, mlp.apply(input), next, tokens);
                scope.backward(loss);
                value = Torch.cast(loss.stopGradient(), ScalarType.FLOAT64).getDouble();
            }
            for (int i = 0; i < arrays.size(); i++) {
                NDArray array = arrays.get(i);
                String id = "w" + i;
                try (NDArray gradient = array.getGradient()) {
                    NoGradient.run(() -> optimizer.update(id, array, gradient));
                }
            }
            return value;
        }
    }

    /**
     * Returns the loss of some rows: their share of the mean over all tokens.
     *
     * @param temporary the owner of the factor, open until the backward pass: with {@code
     *     div(tokens)}, autograd would keep an address of JVM memory (see {@link GradientScope})
     */
    static NDArray loss(NDManager temporary, NDArray y, NDArray next, long tokens) {
        NDArray share = Torch.cast(temporary.create(1d / tokens), Torch.scalarType(y));
        return y.sub(next).square().sum().mul(share);
    }

    /**
     * Trains.
     *
     * @param x all tokens
     * @param rows the index of this rank's tokens
     * @param columns the index of this rank's columns of W1 and rows of W2
     */
    Result run(NDArray x, NDArray w1, NDArray w2, String rows, String columns, int steps) {
        long tokens = x.getShape().get(0);
        NDArray next = x.get("1:").concat(x.get(":1"), 0);
        NDArray ownX = x.get(rows);
        NDArray ownNext = next.get(rows);
        NDArray ownW1 = w1.get(":, " + columns).duplicate();
        NDArray ownW2 = w2.get(columns).duplicate();
        Weights own = new Weights(ownW1, ownW2);
        List<Double> losses = new ArrayList<>();
        for (int step = 0; step < steps; step++) {
            double part = own.step(input -> fused(input, ownW1, ownW2), ownX, ownNext, tokens);
            try (NDArray sum = manager.create(new double[] {part})) {
                group.allReduce(sum, ReduceOp.SUM).await();
                losses.add(sum.getDouble(0));
            }
        }
        NDArray wideW1 = wide(w1);
        NDArray wideW2 = wide(w2);
        List<Double> expected = new ArrayList<>();
        if (group.rank() == 0) {
            Weights plain = new Weights(wideW1, wideW2);
            NDArray wideNext = wide(next);
            NDArray wideX = wide(x);
            for (int step = 0; step < steps; step++) {
                expected.add(
                        plain.step(
                                input -> Activation.gelu(input.matMul(wideW1)).matMul(wideW2),
                                wideX,
                                wideNext,
                                tokens));
            }
        }
        return NoGradient.get(
                () -> {
                    group.broadcast(wideW1, 0).await();
                    group.broadcast(wideW2, 0).await();
                    double error =
                            Math.max(
                                    error(ownW1, wideW1, wideW1.get(":, " + columns)),
                                    error(ownW2, wideW2, wideW2.get(columns)));
                    try (NDArray worst = manager.create(new double[] {error})) {
                        group.allReduce(worst, ReduceOp.MAX).await();
                        return new Result(losses, expected, worst.getDouble(0));
                    }
                });
    }

    private NDArray fused(NDArray x, NDArray w1, NDArray w2) {
        NDArray product =
                FusedOps.allGatherMatmul(x, List.of(w1), 0, group, false).outputs().get(0);
        return FusedOps.matmulReduceScatter(Activation.gelu(product), w2, ReduceOp.SUM, 0, group);
    }

    private static double error(NDArray actual, NDArray scale, NDArray expected) {
        return wide(actual).sub(expected).abs().max().getDouble() / scale.abs().max().getDouble();
    }

    private static NDArray wide(NDArray array) {
        return NoGradient.get(() -> Torch.cast(array, ScalarType.FLOAT64));
    }
}
