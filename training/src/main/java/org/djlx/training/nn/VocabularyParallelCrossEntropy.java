// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.loss.Loss;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Softmax cross entropy over a vocabulary that is divided among the W ranks, as Megatron-LM's
 * {@code vocab_parallel_cross_entropy}. For each token the ranks exchange the largest logit, the
 * sum of the exponentials and the logit of the label, instead of all logits.
 *
 * <ul>
 *   <li>Prediction: one array of logits, (tokens, …, V / W), for all tokens and this rank's part of
 *       the vocabulary of V, as {@link ColumnParallelLinear} returns it. If W does not divide V, V
 *       / W is rounded up, and logits after the vocabulary are ignored.
 *   <li>Label: one array with a token id for each token, of any type, the same on all ranks. An id
 *       outside of the vocabulary is refused on the CPU. On a GPU the loss is then NaN, because a
 *       check would make the host wait.
 *   <li>Loss: the mean over all tokens with a label that is not ignored; 0 if all are ignored.
 *       float64 if the logits are, otherwise float32. All ranks compute the same loss; it counts
 *       once, not once per rank.
 *   <li>Gradient: the softmax, minus 1 at the label.
 * </ul>
 */
public final class VocabularyParallelCrossEntropy extends Loss {

    private static final String OPERATOR = "VocabularyParallelCrossEntropy";

    private final ProcessGroup group;
    private final VocabularyPart part;
    private final Long ignored; // null for none

    private VocabularyParallelCrossEntropy(Builder builder) {
        super(OPERATOR);
        group = builder.group;
        part = new VocabularyPart(builder.vocabulary, group);
        ignored = builder.ignored;
    }

    public static Builder builder() {
        return new Builder();
    }

    /**
     * Values of each token that follow from its label: its index in this rank's part, of shape
     * (tokens, 1), arbitrary if it belongs to another rank; 1 if it belongs to this rank, otherwise
     * 0; its weight in the mean, NaN if the label is out of range.
     */
    private record Tokens(NDArray index, NDArray isOwn, NDArray weights) {}

    /**
     * Values of each token that the ranks compute together: the cross entropy, and the logarithm of
     * the sum of the exponentials.
     */
    private record Entropies(NDArray losses, NDArray logSums) {}

    @Override
    public NDArray evaluate(NDList labels, NDList predictions) {
        NDArray prediction = predictions.singletonOrThrow();
        NDArray label = labels.singletonOrThrow();
        Optional<GradientScope> scope =
                GradientScope.recording(OPERATOR, "the prediction", prediction);
        check(prediction, label);
        NDManager owner = prediction.getManager();
        try (NDManager manager = owner.newSubManager(prediction.getDevice())) {
            NDArray own = Torch.alias(manager, prediction);
            NDArray ownLabel = Torch.alias(manager, label);
            return NoGradient.get(
                    () -> {
                        NDArray logits = logits(own);
                        Tokens tokens = tokens(ownLabel, Torch.scalarType(logits));
                        Entropies entropies = entropies(logits, tokens);
                        NDArray loss = entropies.losses().mul(tokens.weights()).sum();
                        loss.attach(owner);
                        scope.ifPresent(
                                recording ->
                                        record(recording, prediction, tokens, entropies, loss));
                        return loss;
                    });
        }
    }

    /**
     * Adds to a metric, without gradients, because it is usually called after the backward pass.
     */
    @Override
    public void updateAccumulators(String[] keys, NDList labels, NDList predictions) {
        NoGradient.run(() -> super.updateAccumulators(keys, labels, predictions));
    }

    private void check(NDArray prediction, NDArray label) {
        Shape shape = prediction.getShape();
        ScalarType type = Torch.scalarType(prediction);
        boolean fits =
                shape.dimension() > 1
                        && shape.getLastDimension() == part.room()
                        && label.size() == shape.size() / part.room()
                        && label.getDevice().equals(prediction.getDevice());
        if (!fits || !type.isFloatingPoint() || type.itemSize() < 2) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: on rank %d of %s the prediction must be (tokens, …, %d) of a"
                                    + " floating-point type, and the label a number for each token"
                                    + " on the same device, not %s of %s on %s and %s on %s",
                            OPERATOR,
                            group.rank(),
                            group.name(),
                            part.room(),
                            shape,
                            type,
                            prediction.getDevice(),
                            label.getShape(),
                            label.getDevice()));
        }
    }

    /** Returns the logits as a matrix, in float32 or float64. */
    private NDArray logits(NDArray prediction) {
        NDArray matrix = prediction.reshape(-1, part.room());
        return Torch.scalarType(matrix).itemSize() < Float.BYTES
                ? Torch.cast(matrix, ScalarType.FLOAT32)
                : matrix;
    }

    private Tokens tokens(NDArray label, ScalarType type) {
        NDArray ids = Torch.cast(label.reshape(-1), ScalarType.INT64);
        NDArray isIgnored = ignored == null ? ids.neq(ids) : ids.eq(ignored);
        if (!label.getDevice().isGpu()) {
            part.check(OPERATOR, "label", ids, isIgnored);
        }
        NDArray isAny = part.isAny(ids);
        NDArray counts = number(isAny.logicalAnd(isIgnored.logicalNot()), type);
        NDArray total = counts.sum().maximum(1);
        NDArray nan = counts.zerosLike().add(Float.NaN);
        NDArray weights = NDArrays.where(isAny.logicalOr(isIgnored), counts, nan).div(total);
        return new Tokens(part.index(ids).expandDims(1), number(part.isOwn(ids), type), weights);
    }

    private static NDArray number(NDArray truth, ScalarType type) {
        return Torch.cast(truth, type);
    }

    private Entropies entropies(NDArray logits, Tokens tokens) {
        // Logits of padding are ignored.
        NDArray valid = logits.get(":, :" + part.count());
        NDArray largest =
                part.count() == 0
                        ? tokens.isOwn().zerosLike().add(Float.NEGATIVE_INFINITY)
                        : valid.max(new int[] {1});
        group.allReduce(largest, ReduceOp.MAX, false);
        NDArray sum = valid.sub(largest.expandDims(1)).exp().sum(new int[] {1});
        NDArray atLabel = logits.gather(tokens.index(), 1).squeeze(1).sub(largest);
        NDArray own = NDArrays.where(tokens.isOwn().gt(0), atLabel, tokens.isOwn().zerosLike());
        NDArray sums =
                DifferentiableCollectives.allReduce(NDArrays.stack(new NDList(sum, own)), group);
        NDArray logSums = sums.get(0).log();
        return new Entropies(logSums.sub(sums.get(1)), logSums.add(largest));
    }

    private void record(
            GradientScope scope,
            NDArray prediction,
            Tokens tokens,
            Entropies entropies,
            NDArray loss) {
        scope.record(
                OPERATOR,
                List.of(prediction),
                List.of(tokens.index(), tokens.isOwn(), tokens.weights(), entropies.logSums()),
                List.of(loss),
                (inputs, kept, gradients) ->
                        List.of(
                                gradient(
                                        inputs.get(0),
                                        new Tokens(kept.get(0), kept.get(1), kept.get(2)),
                                        kept.get(3),
                                        gradients.get(0))));
    }

    private NDArray gradient(NDArray prediction, Tokens tokens, NDArray logSums, NDArray ofLoss) {
        NDArray softmax = logits(prediction).sub(logSums.expandDims(1)).exp();
        NDArray atLabel = softmax.gather(tokens.index(), 1).sub(tokens.isOwn().expandDims(1));
        NDArray gradient = softmax.scatter(tokens.index(), atLabel, 1);
        gradient.muli(tokens.weights().mul(ofLoss).expandDims(1));
        if (part.count() < part.room()) {
            gradient.set(new NDIndex(":, " + part.count() + ":"), 0);
        }
        return Torch.cast(gradient.reshape(prediction.getShape()), Torch.scalarType(prediction));
    }

    public static final class Builder {

        private ProcessGroup group;
        private long vocabulary;
        private Long ignored;

        private Builder() {}

        /**
         * Sets this rank's handle, which the caller closes, on the group whose ranks share the
         * vocabulary. Required.
         */
        public Builder setGroup(ProcessGroup group) {
            this.group = group;
            return this;
        }

        /** Sets the number of token ids, without padding. */
        public Builder setVocabulary(long vocabulary) {
            this.vocabulary = vocabulary;
            return this;
        }

        /**
         * Sets the label of tokens that are ignored, in the vocabulary or not, such as -100;
         * default none.
         */
        public Builder optIgnoredLabel(long label) {
            ignored = label;
            return this;
        }

        public VocabularyParallelCrossEntropy build() {
            if (group == null || vocabulary < 1) {
                throw new IllegalArgumentException(
                        String.format(
                                "%s: the group must be set, and the vocabulary must be 1 or more,"
                                        + " not %s and %d",
                                OPERATOR, group == null ? null : group.name(), vocabulary));
            }
            return new VocabularyParallelCrossEntropy(this);
        }
    }
}
