// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.GradientCollector;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.gradient.GradientScope;

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
    private final List<SplitForward> open = new ArrayList<>(); // backward pass not finished
    private GradientScope recording; // scope of this trainer's newest collector; null before it
    private GradientScope followed; // scope of a collector that is not this trainer's, or null
    private int followedPasses; // forward passes in it whose backward pass has not ended
    private Gradients gradients = Gradients.OF_EACH_RANK; // until reduced
    private ReductionTime time = ReductionTime.WITHIN_PASS; // while synchronizes is true
    private boolean synchronizes = true; // false while noSync is open

    BackwardPasses(DataParallelTrainer trainer, Ranks ranks) {
        this.trainer = trainer;
        this.ranks = ranks;
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
        followed = null;
        time = ReductionTime.WITHIN_PASS;
        trainer.ifLoaded(ParameterStrategy::forgetPasses);
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
            trainer.beginBackward();
            run(() -> scope.backward(target, trainer.lossScale()));
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
            trainer.dropGradients();
        }

        @Override
        public void close() {
            scope.close();
        }
    }

    private void begin() {
        trainer.ifLoaded(
                strategy -> {
                    strategy.sendChangedGradients();
                    strategy.beginBackward();
                });
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
                        strategy.noteGradients();
                        gradients = Gradients.REDUCED;
                    });
        }
    }

    /**
     * Reduces a rank's gradients at the end of its backward pass. If another pass is open, which
     * adds to them, the collector reduces them later, on all ranks at once. The caller's graph may
     * add to the first rank's gradients after this, for example by a penalty on parameters; {@link
     * ParameterStrategy#sendChangedGradients} copies these sums to the other ranks.
     */
    void end(Replica replica) {
        ParameterStrategy strategy = trainer.strategy();
        if (open.size() == 1
                && time() == ReductionTime.WITHIN_PASS
                && strategy.endBackward(replica)
                && replica.index() == 0) {
            strategy.noteGradients();
            gradients = Gradients.REDUCED;
        }
    }

    /**
     * Registers the coming forward pass with the current collector, if another trainer or the
     * caller has opened that. Gradients of this trainer are reduced when all its passes in the
     * collector have run backward.
     */
    void follow(GradientScope scope, NDManager manager) {
        if (scope == null || scope == recording) {
            return;
        }
        trainer.requireFollowing();
        if (ranks.group() == null) {
            return;
        }
        if (scope != followed) {
            followed = scope;
            followedPasses = 0;
        }
        if (followedPasses++ == 0) {
            begin();
            reduceAfterPass();
        }
        scope.record( // Recorded before the forward pass, so called after the backward pass.
                "the end of a trainer's pass",
                List.of(),
                List.of(),
                List.of(manager.zeros(new Shape())),
                (inputs, kept, ofOutputs) -> {
                    if (scope != followed) {
                        throw new IllegalStateException(
                                "backward: between forward and backward pass, the trainer's step,"
                                        + " newGradientCollector, zeroGradients or a clipping has"
                                        + " discarded this pass; call backward before");
                    }
                    if (--followedPasses == 0) {
                        trainer.tell(UnevenBatches.Call.BACKWARD);
                        end();
                    }
                    return List.of();
                });
    }
}
