// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

/** The number of updates, of complete epochs, and of batches trained on in the current epoch. */
public record TrainingProgress(long step, long epoch, long batch) {

    public static final TrainingProgress START = new TrainingProgress(0, 0, 0);

    /** Throws an {@link IllegalArgumentException} if a number is less than 0. */
    public TrainingProgress {
        if (step < 0 || epoch < 0 || batch < 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "step %d, epoch %d or batch %d is out of range: all are 0 or more",
                            step, epoch, batch));
        }
    }
}
