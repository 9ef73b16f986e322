// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.precision;

/**
 * Scales gradients, so that small ones do not become 0 in float16, as PyTorch's {@code GradScaler}.
 * A trainer multiplies each loss's gradient by the scale and divides the reduced gradients by it
 * before it clips them or updates parameters. If a gradient of any rank is infinite or NaN, all
 * ranks skip the update and halve the scale; after enough good steps in a row they double it.
 *
 * <p>Until they are clipped or the step, gradients that the program reads are scaled. Each trainer
 * needs its own object, with the same options on all ranks. Not thread-safe.
 */
public final class GradScaler {

    private final int growthInterval;
    private double scale;
    private int goodSteps; // in a row since the scale has changed

    /** Creates a scaler with PyTorch's defaults: 65536, and 2000 steps. */
    public GradScaler() {
        this(65536, 2000);
    }

    /**
     * The first scale is a positive normal float32; it doubles after {@code growthInterval} steps,
     * 1 or more, of which none was skipped.
     */
    public GradScaler(double initScale, int growthInterval) {
        if (growthInterval < 1) {
            throw new IllegalArgumentException(
                    "GradScaler: growthInterval must be 1 or more, not " + growthInterval);
        }
        this.growthInterval = growthInterval;
        restore(initScale, 0);
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
     * Sets the state, for example that of a checkpoint: a positive normal float32, and the number
     * of steps, 0 or more, since the scale has changed.
     */
    public void restore(double scale, int goodSteps) {
        if (!isValid(scale) || goodSteps < 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "GradScaler: the scale must be from %s to %s, and goodSteps 0 or more,"
                                    + " not %s and %d",
                            Float.MIN_NORMAL, Float.MAX_VALUE, scale, goodSteps));
        }
        this.scale = scale;
        this.goodSteps = goodSteps;
    }

    private static boolean isValid(double scale) {
        return scale >= Float.MIN_NORMAL && scale <= Float.MAX_VALUE;
    }

    @Override
    public String toString() {
        return String.format(
                "GradScaler of scale %s, %d of %d good steps", scale, goodSteps, growthInterval);
    }

    public void update(boolean skipped) {
        goodSteps = skipped ? 0 : goodSteps + 1;
        double next = skipped ? scale / 2 : scale;
        if (goodSteps >= growthInterval) {
            goodSteps = 0;
            next = scale * 2;
        }
        scale = isValid(next) ? next : scale;
    }
}
