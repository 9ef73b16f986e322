// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.ndarray.NDArray;
import ai.djl.training.optimizer.Optimizer;
import java.util.concurrent.CountDownLatch;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.djlx.training.internal.Replica;
import org.djlx.training.precision.GradScaler;
import org.djlx.training.strategy.ParameterStrategy;

/**
 * The step of a trainer: reduces gradients, divides them by the scale of the loss, clips them, and
 * updates the parameters.
 */
final class OptimizerStep {

    /** Whether gradients with the scale of the loss have overflowed, on any rank. */
    private enum Overflow {
        /** Not known: the gradients still have the scale. */
        UNCHECKED,
        /** All gradients are divided by the scale, and finite if there is a GradScaler. */
        NONE,
        /** A gradient is infinite or NaN, so the step is skipped. */
        FOUND
    }

    private static final double NORM_EPSILON = 1e-6; // as PyTorch's clip_grad_norm_

    private final DataParallelTrainer trainer;
    private final Optimizer optimizer;
    private final GradScaler scaler; // null for none
    private final ItemCount items;
    private Overflow overflow = Overflow.UNCHECKED;
    private boolean stepped;

    OptimizerStep(
            DataParallelTrainer trainer, Optimizer optimizer, GradScaler scaler, ItemCount items) {
        this.trainer = trainer;
        this.optimizer = optimizer;
        this.scaler = scaler;
        this.items = items;
    }

    Optimizer optimizer() {
        return optimizer;
    }

    GradScaler scaler() {
        return scaler;
    }

    /** Returns whether a step has updated parameters. */
    boolean hasUpdated() {
        return stepped;
    }

    /** Returns whether only backward passes of this trainer's collector scale the loss. */
    boolean scalesLoss() {
        return scaler != null || items.areCounted();
    }

    /** Begins anew, because the gradients have been dropped. */
    void reset() {
        overflow = Overflow.UNCHECKED;
        items.reset();
    }

    /**
     * Returns the factor of the loss in a backward pass: the scale of the GradScaler times the
     * weight of the batch. Throws if the gradients, to which the pass adds, are no longer scaled.
     */
    double lossScale() {
        if (overflow != Overflow.UNCHECKED) {
            throw new IllegalStateException(
                    "backward: clipGradNorm or clipGradValue has divided the gradients by the scale"
                        + " of the GradScaler or the weight of all losses, so no more can be added;"
                        + " call step or zeroGradients first");
        }
        return (scaler == null ? 1 : scaler.scale()) * items.count();
    }

    double clipNorm(double maxNorm) {
        ParameterStrategy strategy = unscaled();
        return strategy.onReduced(
                replica -> {
                    double own = strategy.norm(replica);
                    if (!(own <= maxNorm)) {
                        scale(strategy, replica, maxNorm / (own + NORM_EPSILON));
                    }
                    return own;
                });
    }

    void clipValue(double clipValue) {
        ParameterStrategy strategy = unscaled();
        strategy.onReduced(
                replica -> {
                    NoGradient.run(
                            () ->
                                    strategy.gradients(replica)
                                            .forEach(each -> clip(each, clipValue)));
                    return 0;
                });
    }

    private static void clip(NDArray gradient, double limit) {
        try (NDArray clipped = gradient.clip(-limit, limit)) {
            Torch.copy(gradient, clipped);
        }
    }

    static void requirePositive(String name, double value) {
        if (!(value > 0)) {
            throw new IllegalArgumentException(name + " must be positive, not " + value);
        }
    }

    private static void scale(ParameterStrategy strategy, Replica replica, double factor) {
        NoGradient.run(
                () ->
                        strategy.gradients(replica)
                                .forEach(gradient -> TorchInPlace.mul(gradient, factor)));
    }

    /** Reduces the gradients, and divides them by the scale, once before a step. */
    private ParameterStrategy unscaled() {
        ParameterStrategy strategy = trainer.reduceGradients();
        if (scalesLoss() && overflow == Overflow.UNCHECKED) {
            double scale = (scaler == null ? 1 : scaler.scale()) * items.total();
            double norm =
                    strategy.onReduced(
                            replica -> {
                                scale(strategy, replica, 1 / scale);
                                return scaler == null ? 0 : strategy.norm(replica);
                            });
            overflow = Double.isFinite(norm) ? Overflow.NONE : Overflow.FOUND;
        }
        return strategy;
    }

    /** Updates the parameters, unless a gradient has overflowed. */
    void run() {
        ParameterStrategy strategy = unscaled();
        boolean skipped = overflow == Overflow.FOUND;
        if (scaler != null) {
            scaler.update(skipped);
        }
        reset();
        if (skipped) {
            strategy.zeroGradients();
            return;
        }
        if (!stepped && strategy.onReduced(replica -> isZero(strategy, replica) ? 1 : 0) > 0) {
            throw new IllegalStateException(
                    "step: all gradients are zero; call collector.backward() on the loss, within"
                            + " trainer.newGradientCollector(), before trainer.step()");
        }
        CountDownLatch first = new CountDownLatch(1);
        strategy.step(replica -> update(strategy, replica, first));
        stepped = true;
    }

    private static boolean isZero(ParameterStrategy strategy, Replica replica) {
        return NoGradient.get(() -> strategy.isZero(replica));
    }

    /**
     * Updates a rank's parameters. The ranks share learning-rate trackers, and the first update of
     * a step may change a tracker, such as DJL's {@code MultiFactorTracker}. So the other ranks
     * wait for {@code first}, which the first rank of this JVM counts down after its first update.
     */
    private void update(ParameterStrategy strategy, Replica replica, CountDownLatch first) {
        ParameterStrategy.Update update =
                (id, array, gradient) -> {
                    if (replica.index() > 0) {
                        await(first);
                    }
                    replica.update(optimizer, id, array, gradient);
                    first.countDown();
                };
        try {
            NoGradient.run(() -> strategy.update(replica, update));
        } finally {
            first.countDown(); // Also after a failure.
        }
    }

    private static void await(CountDownLatch latch) {
        try {
            latch.await();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("step: interrupted between gradients and update", e);
        }
    }
}
