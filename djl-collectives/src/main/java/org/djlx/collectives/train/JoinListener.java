// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.train;

import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListener;

/**
 * A training listener whose {@code onTrainingBatch} runs collectives of the trainer's processes.
 * With {@link DataParallelConfig#optJoin} its process may be in {@link DataParallelTrainer#join}
 * while others train on. Then {@code onTrainingBatch} first calls {@link
 * DataParallelTrainer#callInJoin}, and the joined process runs the same collectives in {@link
 * #onJoinedBatch}.
 */
public interface JoinListener extends TrainingListener {

    /**
     * Called on a process in {@code join}, on its trainer's thread, for a batch of other processes.
     *
     * @param trainer the trainer of this process
     */
    void onJoinedBatch(Trainer trainer);
}
