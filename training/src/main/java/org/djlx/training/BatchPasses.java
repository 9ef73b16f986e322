// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import java.util.HashMap;
import java.util.Map;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.training.SplitCheck.Layout;
import org.djlx.training.SplitForward.Meeting;
import org.djlx.training.internal.Ranks;
import org.djlx.training.internal.SyncBatchNorm;
import org.djlx.training.precision.ActivationCheckpoint;
import org.djlx.training.precision.MixedPrecisionPolicy;
import org.djlx.training.strategy.ParameterStrategy;

/**
 * Forward passes of a trainer's batches. Several ranks compute a part each, divided as the first
 * batch of the kind, with which a {@link SplitCheck} has found out that it can be divided.
 */
final class BatchPasses {

    /** Passes whose batches have one layout: of a mode, with these numbers of arrays. */
    private record Kind(boolean training, int data, int labels) {}

    private final Ranks ranks;
    private final BackwardPasses backward;
    private final UnevenBatches uneven;
    private final DataParallelConfig settings;
    private final Map<Kind, Layout> layouts = new HashMap<>(); // of the first batch of each

    BatchPasses(
            Ranks ranks,
            BackwardPasses backward,
            UnevenBatches uneven,
            DataParallelConfig settings) {
        this.ranks = ranks;
        this.backward = backward;
        this.uneven = uneven;
        this.settings = settings;
    }

    /** Returns whether ranks run collectives in a block's forward pass in training mode. */
    static boolean runsCollectives(ParameterStrategy strategy, Block block) {
        return strategy.runsCollectives() || runsCollectives(block);
    }

    private static boolean runsCollectives(Block block) {
        return block instanceof SyncBatchNorm
                || block instanceof ActivationCheckpoint // in its first pass
                || block.getChildren().values().stream().anyMatch(BatchPasses::runsCollectives);
    }

    /** Computes a batch in training mode; {@code scope} is null if gradients are not recorded. */
    NDList train(
            ParameterStrategy strategy,
            Block block,
            NDList data,
            NDList labels,
            GradientScope scope) {
        if (ranks.others().isEmpty()) {
            NDList predictions = strategy.forward(ranks.first(), data, labels);
            sendBuffers();
            return predictions;
        }
        Meeting meeting =
                runsCollectives(strategy, block) ? Meeting.COLLECTIVES : Meeting.ALL_RANKS;
        Kind kind = new Kind(true, data.size(), labels == null ? 0 : labels.size());
        return divided(strategy, block, kind, data, labels, scope, meeting);
    }

    NDList evaluate(ParameterStrategy strategy, Block block, NDList data) {
        if (ranks.others().isEmpty()) {
            return strategy.evaluate(ranks.first(), data);
        }
        Meeting meeting = strategy.runsCollectives() ? Meeting.COLLECTIVES : Meeting.NONE;
        Kind kind = new Kind(false, data.size(), 0);
        return divided(strategy, block, kind, data, null, null, meeting);
    }

    private NDList divided(
            ParameterStrategy strategy,
            Block block,
            Kind kind,
            NDList data,
            NDList labels,
            GradientScope scope,
            Meeting meeting) {
        Layout known = layouts.get(kind);
        boolean first = known == null || !hasRows(data);
        Layout layout = first ? newLayout(kind, data, labels) : known;
        SplitCheck check = first ? check(strategy, block, kind, data, labels) : null;
        long batch = data.head().getShape().get(0);
        boolean computed = false;
        boolean done = false;
        try {
            SplitForward pass = new SplitForward(ranks, backward, layout, batch);
            Shape[] expected = check == null ? null : check.shapes();
            SplitForward.Body body =
                    kind.training
                            ? strategy::forward
                            : (replica, part, none) -> strategy.evaluate(replica, part);
            NDList predictions = pass.run(data, labels, expected, scope, meeting, body);
            computed = true;
            if (kind.training) {
                sendBuffers();
            }
            if (check != null) {
                int count = ranks.replicas().size();
                check.compare(predictions, count, () -> evaluate(strategy, block, data).close());
            }
            if (first && batch > 1) { // With one row, the batch dimension cannot be detected.
                layouts.put(kind, pass.layout());
            }
            done = true;
            return predictions;
        } catch (RuntimeException e) {
            if (check != null && !computed) {
                e.addSuppressed(
                        new IllegalArgumentException(
                                String.format(
                                        "forward: the block computes the whole batch, but fails on"
                                                + " a rank's part of it; the first dimension of the"
                                                + " data, of shape %s, must be the batch",
                                        data.head().getShape())));
            }
            throw e;
        } finally {
            if (!done && scope != null) {
                backward.reduceAfterPass(); // Some ranks have begun the pass, others not.
            }
        }
    }

    private static boolean hasRows(NDList data) {
        Shape first = data.head().getShape();
        return first.dimension() > 0 && first.get(0) > 0;
    }

    private Layout newLayout(Kind kind, NDList data, NDList labels) {
        return layouts.entrySet().stream()
                .filter(other -> other.getKey().data == kind.data && hasRows(data))
                .findFirst()
                .map(other -> Layout.of(data, labels, other.getValue()))
                .orElseGet(() -> Layout.of(data, labels, null));
    }

    /** Returns a check of the first batch of its kind; null for none. */
    private SplitCheck check(
            ParameterStrategy strategy, Block block, Kind kind, NDList data, NDList labels) {
        // One rank computes an evaluation of one row.
        if (!settings.checkForward() || !kind.training && data.head().getShape().get(0) == 1) {
            return null;
        }
        NDManager manager = data.head().getManager();
        boolean half = settings.mixedPrecision() != MixedPrecisionPolicy.NONE;
        return kind.training
                ? SplitCheck.ofTraining(
                        block,
                        manager,
                        half,
                        ranks.first().hasBuffers(),
                        () -> strategy.computeWhole(data, labels, true))
                : SplitCheck.ofEvaluation(half, () -> strategy.computeWhole(data, null, false));
    }

    /**
     * Makes buffers, such as the statistics of batch normalisation that is not synchronised, those
     * of the first rank that has rows. DDP does so before a pass; after it, they are equal in
     * evaluation and in checkpoints, too.
     */
    private void sendBuffers() {
        if (ranks.first().hasBuffers()) {
            int source = uneven.firstBusy();
            ranks.each(replica -> replica.receiveBuffers(source));
        }
    }
}
