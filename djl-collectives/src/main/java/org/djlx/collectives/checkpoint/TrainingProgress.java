/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.checkpoint;

/**
 * How far a job has come.
 *
 * @param step how many times the parameters were updated
 * @param epoch how many times all of the dataset was gone through
 * @param batch how many batches of the epoch under way were trained on
 */
public record TrainingProgress(long step, long epoch, long batch) {

    /** Nothing is done yet. */
    public static final TrainingProgress START = new TrainingProgress(0, 0, 0);

    /**
     * Creates a progress.
     *
     * @param step how many times the parameters were updated
     * @param epoch how many times all of the dataset was gone through
     * @param batch how many batches of the epoch under way were trained on
     * @throws IllegalArgumentException if a number is less than 0
     */
    public TrainingProgress {
        if (step < 0 || epoch < 0 || batch < 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "step %d, epoch %d or batch %d is less than 0", step, epoch, batch));
        }
    }
}
