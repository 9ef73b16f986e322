// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
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
    private final double magnitude;

    private RotaryEmbedding(double[] frequencies, double magnitude) {
        this.frequencies = frequencies;
        this.magnitude = magnitude;
    }

    public static Builder builder() {
        return new Builder();
    }

    /** {@return the angle in radians between neighbouring positions, for each pair} */
    public double[] frequencies() {
        return frequencies.clone();
    }

    public int headSize() {
        return 2 * frequencies.length;
    }

    /**
     * The cosines and sines of angles, times the embedding's magnitude, of shape (positions, 1,
     * half of a head's size).
     */
    public record Table(NDArray cosines, NDArray sines) implements AutoCloseable {

        @Override
        public void close() {
            cosines.close();
            sines.close();
        }
    }

    /**
     * Computes cosines and sines, in float64 with one rounding, on the manager's device; the caller
     * closes the table.
     */
    public Table table(NDManager manager, long first, int count, ScalarType type) {
        double[] cosines = new double[count * frequencies.length];
        double[] sines = new double[cosines.length];
        for (int position = 0; position < count; position++) {
            for (int i = 0; i < frequencies.length; i++) {
                double angle = (first + position) * frequencies[i];
                cosines[position * frequencies.length + i] = magnitude * Math.cos(angle);
                sines[position * frequencies.length + i] = magnitude * Math.sin(angle);
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
     * Rotates heads of shape (…, positions, heads, head size) and of the table's type and
     * positions. Autograd records it.
     *
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

    public static final class Builder {

        private int headSize;
        private double base = 10_000;
        private double[] frequencies; // null for those of the base
        private double magnitude = 1;

        private Builder() {}

        /** Sets the number of values of a head, even. Required. */
        public Builder setHeadSize(int headSize) {
            this.headSize = headSize;
            return this;
        }

        /**
         * Sets the base of the frequencies, {@code rope_theta} in configurations of Llama; default
         * 10,000.
         */
        public Builder optBase(double base) {
            this.base = base;
            return this;
        }

        /**
         * Sets frequencies of a scaled embedding instead of a base: the angle in radians between
         * neighbouring positions, for each pair, or null for those of the base; and a factor of the
         * rotated values, 1 for none.
         */
        public Builder optFrequencies(double[] frequencies, double magnitude) {
            this.frequencies = frequencies == null ? null : frequencies.clone();
            this.magnitude = magnitude;
            return this;
        }

        public RotaryEmbedding build() {
            if (headSize < 2 || headSize % 2 != 0 || !(base > 1)) {
                throw new IllegalArgumentException(
                        String.format(
                                "RotaryEmbedding: the head size must be even and the base greater"
                                        + " than 1, not %d and %s",
                                headSize, base));
            }
            double[] all = frequencies;
            if (all == null) {
                all = new double[headSize / 2];
                Arrays.setAll(all, i -> Math.pow(base, -2.0 * i / headSize));
            }
            if (all.length != headSize / 2) {
                throw new IllegalArgumentException(
                        String.format(
                                "RotaryEmbedding: heads of size %d have %d frequencies, not %d",
                                headSize, headSize / 2, all.length));
            }
            return new RotaryEmbedding(all, magnitude);
        }
    }
}
