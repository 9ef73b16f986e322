// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.data;

import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListener;

/**
 * A training listener that runs collectives in {@code onTrainingBatch}. With {@link
 * org.djlx.training.DataParallelConfig#optJoin}, some processes may be in {@link
 * org.djlx.training.DataParallelTrainer#join} while others still train. Two rules keep their
 * collectives matched:
 *
 * <ul>
 *   <li>{@code onTrainingBatch} calls {@link org.djlx.training.DataParallelTrainer#callInJoin}
 *       before its collectives.
 *   <li>{@link #onJoinedBatch} runs the same collectives on the processes in {@code join}.
 * </ul>
 */
public interface JoinListener extends TrainingListener {

    /**
     * Called on a process in {@code join}, on its trainer's thread, when other processes have
     * trained on a batch and call this listener.
     */
    void onJoinedBatch(Trainer trainer);
}
