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
 * The backward passes of a trainer: which forward passes still need one, and when the ranks reduce
 * their gradients. One pass ends at a time; its gradients are {@link Gradients#OF_EACH_RANK} until
 * they are reduced.
 */
final class BackwardPasses {

    private enum Gradients {
        OF_EACH_RANK,
        REDUCED
    }

    private final DataParallelTrainer trainer;
    private final Ranks ranks;
    private final List<SplitForward> open = new ArrayList<>(); // backward not finished
    private GradientScope recording; // of the last collector; null before
    private GradientScope followed; // a collector that is not this trainer's; null if none
    private int followedPasses; // within it, whose backward pass has not ended
    private Gradients gradients = Gradients.OF_EACH_RANK;
    private ReductionTime time = ReductionTime.WITHIN_PASS; // unless noSync is open
    private boolean synchronizes = true;

    BackwardPasses(DataParallelTrainer trainer, Ranks ranks) {
        this.trainer = trainer;
        this.ranks = ranks;
    }

    /** Returns when ranks reduce the gradients of the pass that runs. */
    ReductionTime time() {
        return synchronizes ? time : ReductionTime.LATER;
    }

    /** Sets whether passes reduce gradients; returns whether they did before. */
    boolean setSynchronizes(boolean reduce) {
        boolean before = synchronizes;
        synchronizes = reduce;
        return before;
    }

    /**
     * Postpones reductions to the end of the backward pass, until {@link #discard}: ranks that have
     * begun a pass would not issue the same reductions within it as the others.
     */
    void reduceAfterPass() {
        time = ReductionTime.AFTER_PASS;
    }

    /** Adds a forward pass that has been recorded. */
    void add(SplitForward pass) {
        open.add(pass);
    }

    /** Discards passes whose backward pass has not ended. */
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

    /** Runs backward passes, and reduces gradients unless noSync is open. */
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

        /** Runs a backward pass with other targets, without announcing it to ranks in join. */
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

    /** Reduces the gradients that passes have left on each rank. */
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
     * Reduces a rank's gradients at the end of its backward pass, if no other pass adds to them.
     * Otherwise the collector reduces them later, which takes another rendezvous of the ranks. If
     * the caller's graph then adds to the first rank's gradients, as a penalty does, {@link
     * ParameterStrategy#sendChangedGradients} copies the sums to the other ranks.
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
     * Joins the current collector, if another trainer or the caller has opened it. The backward
     * pass reduces this trainer's gradients once all its passes within the collector have run
     * backward.
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
        scope.record( // before the pass, so it goes back after it
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
