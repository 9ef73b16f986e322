// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.training.internal.Ranks;

/**
 * The items that the losses of a step count: backward passes multiply each loss by its items, and
 * the step divides gradients by those of all passes and processes. The class itself counts nothing,
 * for trainers without {@code optLossWeight}.
 */
class ItemCount {

    static ItemCount of(Ranks ranks, DataParallelConfig settings) {
        return settings.lossWeight()
                .<ItemCount>map(weight -> new Weighted(ranks, weight, settings.reduction()))
                .orElseGet(ItemCount::new);
    }

    boolean areCounted() {
        return false;
    }

    /** Begins a forward pass. */
    void add(NDList data, NDList labels) {}

    /** Begins a backward pass; returns the factor of its loss. */
    double count() {
        return 1;
    }

    /** Returns the divisor of the gradients of all backward passes since the last reset. */
    double total() {
        return 1;
    }

    /** Forgets a forward pass that has no backward pass. */
    void discard() {}

    void reset() {}

    private static final class Weighted extends ItemCount {

        private enum Pass {
            NONE,
            FORWARD,
            BACKWARD
        }

        private final Ranks ranks;
        private final LossWeight weight;
        private final GradientReduction reduction;
        private Pass pass = Pass.NONE;
        private double last; // of the last forward pass
        private double sum; // of all backward passes of this process

        Weighted(Ranks ranks, LossWeight weight, GradientReduction reduction) {
            this.ranks = ranks;
            this.weight = weight;
            this.reduction = reduction;
        }

        @Override
        boolean areCounted() {
            return true;
        }

        @Override
        void add(NDList data, NDList labels) {
            if (pass == Pass.FORWARD) {
                throw new IllegalStateException(
                        "forward: the last forward pass in this collector has had no backward pass,"
                            + " so with optLossWeight it is not known which weight its loss has;"
                            + " call backward after each forward, or open a collector for each"
                            + " batch");
            }
            last = weight.of(data, labels);
            if (!(last >= 0 && Double.isFinite(last))) {
                throw new IllegalArgumentException(
                        "forward: the LossWeight of a batch must be 0 or more, not " + last);
            }
            pass = Pass.FORWARD;
        }

        @Override
        double count() {
            if (pass == Pass.NONE) {
                throw new IllegalStateException(
                        "backward: with optLossWeight, a forward pass of this trainer comes first"
                                + " in each collector, whose batch tells the weight of the loss");
            }
            if (pass == Pass.FORWARD) {
                sum += last;
                pass = Pass.BACKWARD;
            }
            return reduction == GradientReduction.MEAN ? last : 1;
        }

        @Override
        double total() {
            double total = sum;
            if (ranks.processes() != null) {
                try (NDArray all = ranks.first().manager().create(new double[] {sum})) {
                    ranks.processes().allReduce(all, ReduceOp.SUM).await();
                    CurrentStreams.await(all.getDevice());
                    total = all.toDoubleArray()[0];
                }
            }
            return total == 0 ? 1 : total;
        }

        @Override
        void discard() {
            pass = Pass.NONE;
        }

        @Override
        void reset() {
            sum = 0;
        }
    }
}
