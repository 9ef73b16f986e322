/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Tells attention where tokens are, by turning pairs of a head's values by an angle that grows with
 * the position (Su et al., 2021, <a href="https://arxiv.org/abs/2104.09864">arXiv:2104.09864</a>).
 * A value of a head's first half and the one at the same place of its second half are a pair, as in
 * checkpoints of Llama for Hugging Face's transformers. It has no parameters and is thread-safe.
 */
public final class RotaryEmbedding {

    private final double[] frequencies;

    private RotaryEmbedding(Builder builder) {
        int pairs = builder.headSize / 2;
        frequencies = new double[pairs];
        for (int i = 0; i < pairs; i++) {
            double frequency = Math.pow(builder.base, -2.0 * i / builder.headSize);
            frequencies[i] = builder.scaling == null ? frequency : builder.scaling.of(frequency);
        }
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /**
     * Returns by how much each pair is turned from a position to the next.
     *
     * @return the angles in radians, half as many as a head has values
     */
    public double[] frequencies() {
        return frequencies.clone();
    }

    /**
     * Returns the size of the heads.
     *
     * @return the number of a head's values
     */
    public int headSize() {
        return 2 * frequencies.length;
    }

    /**
     * The cosines and sines of angles.
     *
     * @param cosines of shape (positions, 1, half of a head's size)
     * @param sines of the same shape
     */
    public record Table(NDArray cosines, NDArray sines) implements AutoCloseable {

        /** Closes both arrays. */
        @Override
        public void close() {
            cosines.close();
            sines.close();
        }
    }

    /**
     * Computes a table, in float64, rounded once.
     *
     * @param manager the manager to which its arrays belong and on whose device they are
     * @param first the first position
     * @param count the number of positions
     * @param type the type of its elements
     * @return the table, the caller's to close
     */
    public Table table(NDManager manager, long first, int count, ScalarType type) {
        double[] cosines = new double[count * frequencies.length];
        double[] sines = new double[cosines.length];
        for (int position = 0; position < count; position++) {
            for (int i = 0; i < frequencies.length; i++) {
                double angle = (first + position) * frequencies[i];
                cosines[position * frequencies.length + i] = Math.cos(angle);
                sines[position * frequencies.length + i] = Math.sin(angle);
            }
        }
        return new Table(array(manager, cosines, type), array(manager, sines, type));
    }

    /** Makes an array in libtorch's memory: autograd keeps it without the Java buffer. */
    private NDArray array(NDManager manager, double[] values, ScalarType type) {
        Shape shape = new Shape(values.length / frequencies.length, 1, frequencies.length);
        return NoGradient.get(
                () -> {
                    try (NDArray wide = manager.create(values, shape)) {
                        return Torch.cast(wide, type);
                    }
                });
    }

    /**
     * Turns heads. Recorded by autograd.
     *
     * @param x of shape (…, positions, heads, head size), of the table's type
     * @param table of as many positions
     * @return the turned heads, of the same shape and type
     * @throws IllegalArgumentException if the shapes do not fit
     */
    public NDArray rotate(NDArray x, Table table) {
        Shape shape = x.getShape();
        int dimensions = shape.dimension();
        if (dimensions < 3
                || shape.get(dimensions - 1) != headSize()
                || shape.get(dimensions - 3) != table.cosines().getShape().get(0)) {
            throw new IllegalArgumentException(
                    String.format(
                            "rotate: x must be (…, positions, heads, head size) with %d positions"
                                    + " and head size %d, not %s",
                            table.cosines().getShape().get(0), headSize(), shape));
        }
        NDList halves = x.split(2, dimensions - 1);
        NDArray first = halves.get(0);
        NDArray second = halves.get(1);
        NDArray turnedFirst = first.mul(table.cosines()).sub(second.mul(table.sines()));
        NDArray turnedSecond = second.mul(table.cosines()).add(first.mul(table.sines()));
        return NDArrays.concat(new NDList(turnedFirst, turnedSecond), dimensions - 1);
    }

    /** How Llama 3.1 turns more slowly to reach further than it was first trained for. */
    private record Scaling(double factor, double low, double high, long length) {

        double of(double frequency) {
            double turns = length * frequency / (2 * Math.PI); // within the first length
            if (turns > high) {
                return frequency;
            }
            if (turns < low) {
                return frequency / factor;
            }
            double share = (turns - low) / (high - low);
            return (1 - share) * frequency / factor + share * frequency;
        }
    }

    /** Builds a {@link RotaryEmbedding}. */
    public static final class Builder {

        private int headSize;
        private double base = 10_000;
        private Scaling scaling; // null for none

        private Builder() {}

        /**
         * Sets the size of heads.
         *
         * @param headSize the number of a head's values, even
         * @return this builder
         */
        public Builder setHeadSize(int headSize) {
            this.headSize = headSize;
            return this;
        }

        /**
         * Sets the base of the frequencies, {@code rope_theta} in configurations of Llama.
         *
         * @param base the base, 10,000 unless set
         * @return this builder
         */
        public Builder optBase(double base) {
            this.base = base;
            return this;
        }

        /**
         * Sets the scaling of Llama 3.1, {@code rope_scaling} of type {@code llama3} in its
         * configurations: pairs that turn often within the original length stay, those that hardly
         * turn are slowed down, and those in between are in between.
         *
         * @param factor by how much to slow down, such as 8
         * @param lowFrequencyFactor the number of turns below which a pair is slowed down in full,
         *     such as 1
         * @param highFrequencyFactor the number of turns above which it stays, such as 4
         * @param originalLength the length for which the model was first trained, such as 8192
         * @return this builder
         */
        public Builder optLlama3Scaling(
                double factor,
                double lowFrequencyFactor,
                double highFrequencyFactor,
                long originalLength) {
            boolean fits =
                    factor > 0 && highFrequencyFactor > lowFrequencyFactor && originalLength > 0;
            if (!fits) {
                throw new IllegalArgumentException(
                        String.format(
                                "RotaryEmbedding: the factor and the length must be greater than 0"
                                        + " and the high factor than the low one, not %s, %d, %s"
                                        + " and %s",
                                factor, originalLength, highFrequencyFactor, lowFrequencyFactor));
            }
            scaling = new Scaling(factor, lowFrequencyFactor, highFrequencyFactor, originalLength);
            return this;
        }

        /**
         * Builds the embedding.
         *
         * @return the embedding
         * @throws IllegalArgumentException if the head size or the base are missing or wrong
         */
        public RotaryEmbedding build() {
            if (headSize < 2 || headSize % 2 != 0 || !(base > 1)) {
                throw new IllegalArgumentException(
                        String.format(
                                "RotaryEmbedding: the head size must be even and the base greater"
                                        + " than 1, not %d and %s",
                                headSize, base));
            }
            return new RotaryEmbedding(this);
        }
    }
}
