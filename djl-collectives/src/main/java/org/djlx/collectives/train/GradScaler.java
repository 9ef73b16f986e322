// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.train;

/**
 * Scales gradients, so that small ones do not become 0 in float16, as PyTorch's {@code GradScaler}.
 * A trainer multiplies each loss's gradient by the scale and divides the reduced gradients by it
 * before it clips them or updates parameters. If a gradient of any rank is infinite or NaN, all
 * ranks skip the update and reduce the scale; after enough good steps in a row they increase it.
 *
 * <p>Until they are clipped or the step, gradients that the program reads are scaled. Each trainer
 * needs its own object, with the same options on all ranks. Not thread-safe.
 */
public final class GradScaler {

    private final double growthFactor;
    private final double backoffFactor;
    private final int growthInterval;
    private double scale;
    private int goodSteps; // in a row since the scale has changed

    private GradScaler(Builder builder) {
        scale = builder.scale;
        growthFactor = builder.growthFactor;
        backoffFactor = builder.backoffFactor;
        growthInterval = builder.growthInterval;
    }

    /** {@return a new builder} */
    public static Builder builder() {
        return new Builder();
    }

    /** {@return the factor of the next backward pass} */
    public double scale() {
        return scale;
    }

    /** {@return the number of steps since the scale has changed, none of them skipped} */
    public int goodSteps() {
        return goodSteps;
    }

    /**
     * Sets the state, for example that of a checkpoint.
     *
     * @param scale the scale, positive and finite
     * @param goodSteps the number of steps since the scale has changed, 0 or more
     * @throws IllegalArgumentException if a value is out of range
     */
    public void restore(double scale, int goodSteps) {
        requirePositive("scale", scale);
        if (goodSteps < 0) {
            throw new IllegalArgumentException(
                    "GradScaler: goodSteps must be 0 or more, not " + goodSteps);
        }
        this.scale = scale;
        this.goodSteps = goodSteps;
    }

    /** Adapts the scale after a step. */
    void update(boolean skipped) {
        goodSteps = skipped ? 0 : goodSteps + 1;
        double next = skipped ? scale * backoffFactor : scale;
        if (goodSteps == growthInterval) {
            goodSteps = 0;
            next = scale * growthFactor;
        }
        // The factor of gradients is a float32; PyTorch's scale grows no further either.
        scale = next > Float.MAX_VALUE || next < Float.MIN_NORMAL ? scale : next;
    }

    private static void requirePositive(String name, double value) {
        if (!(value > 0) || Double.isInfinite(value)) {
            throw new IllegalArgumentException(
                    "GradScaler: " + name + " must be positive and finite, not " + value);
        }
    }

    /** Builds a {@link GradScaler}. The defaults are PyTorch's. */
    public static final class Builder {

        private double scale = 65536;
        private double growthFactor = 2;
        private double backoffFactor = 0.5;
        private int growthInterval = 2000;

        private Builder() {}

        /**
         * Sets the scale of the first step.
         *
         * @param scale the scale, positive; the default is 65536
         * @return this builder
         */
        public Builder optInitScale(double scale) {
            this.scale = scale;
            return this;
        }

        /**
         * Sets the factor by which the scale grows.
         *
         * @param factor more than 1; the default is 2
         * @return this builder
         */
        public Builder optGrowthFactor(double factor) {
            growthFactor = factor;
            return this;
        }

        /**
         * Sets the factor of the scale after a skipped step.
         *
         * @param factor between 0 and 1; the default is 0.5
         * @return this builder
         */
        public Builder optBackoffFactor(double factor) {
            backoffFactor = factor;
            return this;
        }

        /**
         * Sets after how many steps in a row without a skipped one the scale grows.
         *
         * @param steps 1 or more; the default is 2000
         * @return this builder
         */
        public Builder optGrowthInterval(int steps) {
            growthInterval = steps;
            return this;
        }

        /**
         * Builds the scaler.
         *
         * @return the scaler
         * @throws IllegalArgumentException if an option is out of range
         */
        public GradScaler build() {
            requirePositive("optInitScale", scale);
            requirePositive("optGrowthFactor", growthFactor);
            requirePositive("optBackoffFactor", backoffFactor);
            if (growthFactor <= 1 || backoffFactor >= 1 || growthInterval < 1) {
                throw new IllegalArgumentException(
                        String.format(
                                "GradScaler: optGrowthFactor %s must be more than 1,"
                                        + " optBackoffFactor %s less than 1 and optGrowthInterval"
                                        + " %d at least 1",
                                growthFactor, backoffFactor, growthInterval));
            }
            return new GradScaler(this);
        }
    }
}
