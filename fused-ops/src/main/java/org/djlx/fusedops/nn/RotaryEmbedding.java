// SPDX-License-Identifier: Apache-2.0
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
 * Rotary position embedding: rotates pairs of a head's values by an angle that grows with the
 * position (Su et al., 2021, <a href="https://arxiv.org/abs/2104.09864">arXiv:2104.09864</a>).
 *
 * <p>Value i of a head's first half and value i of its second half are a pair, as in Llama
 * checkpoints for Hugging Face's transformers. There are no parameters. Thread-safe.
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

    /** {@return a new builder} */
    public static Builder builder() {
        return new Builder();
    }

    /** {@return the angle in radians between neighbouring positions, for each pair} */
    public double[] frequencies() {
        return frequencies.clone();
    }

    /** {@return the number of a head's values} */
    public int headSize() {
        return 2 * frequencies.length;
    }

    /**
     * The cosines and sines of angles.
     *
     * @param cosines the cosines, of shape (positions, 1, half of a head's size)
     * @param sines the sines, of the same shape
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
     * Computes cosines and sines, in float64 with one rounding.
     *
     * @param manager the manager of the arrays; its device is the arrays' device
     * @param first the first position
     * @param count the number of positions
     * @param type the element type
     * @return the table; the caller closes it
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

    /** Creates an array in libtorch's memory. Otherwise autograd would keep a Java buffer alive. */
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
     * Rotates heads. Autograd records it.
     *
     * @param x the heads, of shape (…, positions, heads, head size), of the table's type
     * @param table the table, with the same number of positions
     * @return the rotated heads, of the same shape and type
     * @throws IllegalArgumentException if the shapes do not match
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

    /**
     * The scaling of Llama 3.1: rotates some pairs more slowly, for contexts longer than in the
     * original training.
     */
    private record Scaling(double factor, double low, double high, long length) {

        double of(double frequency) {
            double turns = length * frequency / (2 * Math.PI); // within the original length
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
         * @param headSize the number of values of a head, even
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
         * Sets the scaling of Llama 3.1, {@code rope_scaling} of type {@code llama3} in
         * configurations. Pairs with many turns within the original length keep their speed. Pairs
         * with few turns are slowed down by the factor. For pairs in between, the speed is
         * interpolated.
         *
         * @param factor the factor to slow down by, such as 8
         * @param lowFrequencyFactor the number of turns below which a pair is slowed down by the
         *     factor, such as 1
         * @param highFrequencyFactor the number of turns above which a pair keeps its speed, such
         *     as 4
         * @param originalLength the context length of the original training, such as 8192
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
         * {@return the embedding}
         *
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
