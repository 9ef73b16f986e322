// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.GradientCollector;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.Replica;
import org.djlx.training.strategy.ParameterStrategy;
import org.djlx.training.strategy.ReductionTime;

/**
 * The backward passes of a trainer: which forward passes are still without one, and when the ranks
 * reduce gradients. Backward passes run one after the other.
 */
final class BackwardPasses {

    private enum Gradients {
        OF_EACH_RANK,
        REDUCED
    }

    private final DataParallelTrainer trainer;
    private final Ranks ranks;
    private final UnevenBatches uneven;
    private final OptimizerStep step;
    private final List<SplitForward> open = new ArrayList<>(); // backward pass not finished
    private GradientScope recording; // scope of this trainer's newest collector; null before it
    private GradientScope foreign; // scope of a collector that is not this trainer's, or null
    private int foreignPasses; // forward passes in it whose backward pass has not ended
    private Gradients gradients = Gradients.OF_EACH_RANK; // until reduced
    private ReductionTime time = ReductionTime.WITHIN_PASS; // while synchronizes is true
    private boolean synchronizes = true; // false while noSync is open

    BackwardPasses(
            DataParallelTrainer trainer, Ranks ranks, UnevenBatches uneven, OptimizerStep step) {
        this.trainer = trainer;
        this.ranks = ranks;
        this.uneven = uneven;
        this.step = step;
    }

    ReductionTime time() {
        return synchronizes ? time : ReductionTime.LATER;
    }

    /** Sets whether passes reduce gradients; returns the previous value. */
    boolean setSynchronizes(boolean reduce) {
        boolean before = synchronizes;
        synchronizes = reduce;
        return before;
    }

    /**
     * Postpones reductions to the end of the backward pass, until {@link #discard}. Needed if only
     * some ranks have begun a forward pass: ranks would issue different reductions within the
     * backward pass.
     */
    void reduceAfterPass() {
        time = ReductionTime.AFTER_PASS;
    }

    void add(SplitForward pass) {
        open.add(pass);
    }

    void discard() {
        closeAll();
        foreign = null;
        time = ReductionTime.WITHIN_PASS;
        trainer.ifLoaded(ParameterStrategy::discardPasses);
    }

    void closeAll() {
        open.forEach(SplitForward::close);
        open.clear();
    }

    Collector newCollector() {
        discard();
        recording = GradientScope.open();
        return new Collector(recording);
    }

    /** The trainer's collector: runs a backward pass, then reduces unless noSync is open. */
    final class Collector implements GradientCollector {

        private final GradientScope scope;

        private Collector(GradientScope scope) {
            this.scope = scope;
        }

        @Override
        public void backward(NDArray target) {
            double scale = step.lossScale();
            announce();
            run(() -> scope.backward(target, scale));
        }

        /** Runs a backward pass from given gradients of targets. Ranks in join call this. */
        void backward(List<NDArray> targets, List<NDArray> seeds) {
            run(() -> scope.backward(targets, seeds));
        }

        private void run(Runnable pass) {
            begin();
            pass.run();
            end();
        }

        @Override
        public void zeroGradients() {
            uneven.announce(UnevenBatches.Call.ZERO_GRADIENTS);
            trainer.dropGradients();
        }

        @Override
        public void close() {
            scope.close();
        }
    }

    private void announce() {
        uneven.announce(
                time() == ReductionTime.LATER
                        ? UnevenBatches.Call.ACCUMULATE
                        : UnevenBatches.Call.BACKWARD);
    }

    private void begin() {
        trainer.ifLoaded(ParameterStrategy::beginBackward);
        gradients = Gradients.OF_EACH_RANK;
    }

    private void end() {
        if (time() != ReductionTime.LATER) {
            reduce();
        }
    }

    /** Reduces the gradients of all backward passes that have not been reduced yet. */
    void reduce() {
        if (gradients == Gradients.OF_EACH_RANK) {
            trainer.ifLoaded(
                    strategy -> {
                        strategy.reduce();
                        gradients = Gradients.REDUCED;
                    });
        }
    }

    /**
     * Reduces a rank's gradients at the end of its backward pass. If another pass is open, which
     * adds to them, the collector reduces them later, on all ranks at once. The caller's graph may
     * add to the first rank's gradients after this, for example by a penalty on parameters; the
     * strategy copies these sums to the other ranks.
     */
    void end(Replica replica) {
        ParameterStrategy strategy = trainer.strategy();
        if (open.size() == 1
                && time() == ReductionTime.WITHIN_PASS
                && strategy.endBackward(replica)
                && replica.index() == 0) {
            gradients = Gradients.REDUCED;
        }
    }

    /**
     * Returns the scope that records the coming forward pass of a block; null for none. Refuses a
     * pass whose backward pass would miss what this trainer's collector does.
     */
    GradientScope scopeOfPass(Block block, NDManager manager) {
        GradientScope scope = GradientScope.current().orElse(null);
        if (scope == null) {
            requireNoGradients();
        } else if (scope != recording) {
            requireOwnCollector(block);
            register(scope, manager);
        }
        return scope;
    }

    private void requireNoGradients() {
        boolean scaled = step.scalesLoss();
        int count = ranks.replicas().size();
        boolean needed = count > 1 || trainer.strategy().runsCollectives() || scaled;
        if (needed && JniUtils.isGradMode()) {
            throw new IllegalStateException(
                    "forward: gradients are on, but no collector of this trainer is open on this"
                            + " thread, so "
                            + (scaled
                                    ? "the loss would not be multiplied by the scale of the"
                                            + " GradScaler or the weight of optLossWeight"
                                    : "gradients of " + count + " ranks would be lost")
                            + "; open trainer.newGradientCollector(), not"
                            + " manager.getEngine().newGradientCollector(), or call"
                            + " trainer.evaluate for predictions without gradients");
        }
    }

    /**
     * Refuses a pass within a collector that is not this trainer's, if that collector would not
     * scale the loss, or not announce a backward pass with collectives to ranks in join.
     */
    private void requireOwnCollector(Block block) {
        if (step.scalesLoss()) {
            throw new IllegalStateException(
                    "forward: the open collector is not this trainer's, so it does not multiply the"
                            + " loss by the scale of this trainer's GradScaler or the weight of"
                            + " optLossWeight; open trainer.newGradientCollector()");
        }
        if (uneven.areAllowed() && BatchPasses.runsCollectives(trainer.strategy(), block)) {
            throw new IllegalStateException(
                    "forward: the open collector is not this trainer's, so ranks in join would not"
                            + " be told of its backward pass, in which this model's ranks meet"
                            + " (FULL_SHARD, synchronised batch normalisation); open"
                            + " trainer.newGradientCollector()");
        }
    }

    /**
     * Registers a forward pass with a collector that another trainer or the caller has opened. The
     * gradients are reduced when all passes of this trainer in the collector have run backward.
     */
    private void register(GradientScope scope, NDManager manager) {
        if (ranks.group() == null) {
            return;
        }
        if (scope != foreign) {
            foreign = scope;
            foreignPasses = 0;
        }
        if (foreignPasses++ == 0) {
            begin();
            reduceAfterPass();
        }
        scope.record( // Recorded before the forward pass, so called after the backward pass.
                "the end of a trainer's pass",
                List.of(),
                List.of(),
                List.of(manager.zeros(new Shape())),
                (inputs, kept, ofOutputs) -> {
                    if (scope != foreign) {
                        throw new IllegalStateException(
                                "backward: between forward and backward pass, the trainer's step,"
                                        + " newGradientCollector, zeroGradients or a clipping has"
                                        + " discarded this pass; call backward before");
                    }
                    if (--foreignPasses == 0) {
                        announce();
                        end();
                    }
                    return List.of();
                });
    }
}
