// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.ndarray.types.SparseFormat;
import ai.djl.nn.Parameter;
import ai.djl.training.ParameterStore;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * An embedding whose vocabulary is divided among the ranks. Each rank looks up the tokens of its
 * part and takes zeros for other tokens. The results are summed over the ranks.
 *
 * <ul>
 *   <li>Input: (tokens, …), token ids of any type, the same on all ranks.
 *   <li>Output: (tokens, …, size). With sequence parallelism, only this rank's tokens.
 *   <li>Full parameter: {@code weight} of shape (vocabulary, size). If the world size does not
 *       divide the vocabulary, the last ranks have additional rows of zeros. Checkpoints do not
 *       contain them.
 *   <li>A token id outside of the vocabulary is refused on the CPU. On a GPU it yields NaN, because
 *       a check would make the host wait.
 * </ul>
 */
public final class ParallelEmbedding extends ShardedBlock {

    private final long vocabulary;
    private final long size;
    private final ScalarType computeType; // null for the type of the weight
    private final Parameter weight;

    private ParallelEmbedding(Builder builder) {
        super(builder);
        vocabulary = builder.vocabulary;
        size = builder.size;
        computeType = builder.computeType;
        weight = add("weight", Parameter.Type.WEIGHT, Division.ROWS.withPadding(true));
    }

    public static Builder builder() {
        return new Builder();
    }

    long vocabulary() {
        return vocabulary;
    }

    /** Returns the weight, for a layer that shares it. */
    NDArray weight(ParameterStore store, NDArray x, boolean training) {
        return value(store, weight, x, training);
    }

    @Override
    protected void prepare(Shape[] inputShapes) {
        setFullShape(weight, vocabulary, size);
    }

    @Override
    NDArray forward(ParameterStore store, NDArray x, boolean training) {
        Shape shape = x.getShape();
        if (shape.dimension() < 1 || isSequenceParallel() && !isDivisible(shape)) {
            throw new IllegalArgumentException(
                    String.format(
                            "ParallelEmbedding: the tokens must be (tokens, …)%s, not %s; reshape"
                                    + " them",
                            isSequenceParallel()
                                    ? " that the " + group().worldSize() + " ranks can divide"
                                    : "",
                            shape));
        }
        NDArray ids = NoGradient.get(() -> Torch.cast(x, ScalarType.INT64));
        VocabularyPart part = new VocabularyPart(vocabulary, group());
        if (!x.getDevice().isGpu()) {
            part.check("ParallelEmbedding", "token", ids, null);
        }
        NDArray value = store.getValue(weight, x.getDevice(), training);
        if (value.getShape().get(0) != part.room()) {
            throw new IllegalStateException(
                    String.format(
                            "ParallelEmbedding: the weight has %d rows on rank %d of %s, and a"
                                    + " vocabulary of %d takes %d; it was loaded for another",
                            value.getShape().get(0),
                            group().rank(),
                            group().name(),
                            vocabulary,
                            part.room()));
        }
        NDArray rows =
                ids.getNDArrayInternal()
                        .embedding(part.index(ids), value, SparseFormat.DENSE)
                        .singletonOrThrow();
        NDArray own = rows.mul(mask(part, ids, Torch.scalarType(value)));
        if (computeType != null && computeType != Torch.scalarType(own)) {
            own = Torch.cast(own, computeType);
        }
        return isSequenceParallel()
                ? DifferentiableCollectives.reduceScatter(own, 0, group())
                : DifferentiableCollectives.leaveParallel(own, group());
    }

    private boolean isDivisible(Shape shape) {
        return shape.get(0) % group().worldSize() == 0;
    }

    /**
     * Returns 1 for tokens of this rank, 0 for tokens of other ranks, NaN for ids outside of the
     * vocabulary.
     */
    private static NDArray mask(VocabularyPart part, NDArray ids, ScalarType type) {
        return NoGradient.get(
                () -> {
                    NDArray own = part.isOwn(ids).toType(DataType.FLOAT32, false);
                    NDArray nan = own.zerosLike().add(Float.NaN);
                    NDArray mask = NDArrays.where(part.isAny(ids), own, nan);
                    return Torch.cast(mask.expandDims(mask.getShape().dimension()), type);
                });
    }

    @Override
    public Shape[] getOutputShapes(Shape[] inputShapes) {
        Shape vectors = inputShapes[0].add(size);
        return new Shape[] {outputShape(vectors, size, false, true)};
    }

    public static final class Builder extends ShardedBlock.Builder<Builder> {

        private long vocabulary;
        private long size;
        private ScalarType computeType;

        private Builder() {}

        /** Sets the number of token ids. */
        public Builder setVocabulary(long vocabulary) {
            this.vocabulary = vocabulary;
            return this;
        }

        /** Sets the number of values for a token. */
        public Builder setSize(long size) {
            this.size = size;
            return this;
        }

        /**
         * Sets the floating-point type of the activations, in which all later blocks compute;
         * default that of the weight.
         */
        public Builder optComputeType(ScalarType computeType) {
            if (computeType != null
                    && (!computeType.isFloatingPoint() || computeType.itemSize() < 2)) {
                throw new IllegalArgumentException(
                        "ParallelEmbedding: the compute type must be a floating-point type of 16"
                                + " bits or more, not "
                                + computeType);
            }
            this.computeType = computeType;
            return this;
        }

        public ParallelEmbedding build() {
            if (vocabulary < 1 || size < 1) {
                throw new IllegalArgumentException(
                        String.format(
                                "ParallelEmbedding: the vocabulary and the size must be 1 or more,"
                                        + " not %d and %d",
                                vocabulary, size));
            }
            return new ParallelEmbedding(this);
        }
    }
}
