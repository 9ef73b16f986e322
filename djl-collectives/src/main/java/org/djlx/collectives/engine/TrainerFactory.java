// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.engine;

import ai.djl.Model;
import ai.djl.training.Trainer;
import ai.djl.training.TrainingConfig;

/**
 * Makes the trainers of the engine {@code PyTorch-P2P}, which finds it by {@link
 * java.util.ServiceLoader}. The module {@code training} has the only one: a program that loads
 * models and trains none does not need it.
 */
public interface TrainerFactory {

    /**
     * A new trainer, and the data-parallel rank of this process, from 0; rank 0 saves the model.
     */
    record Made(Trainer trainer, int process) {}

    /** Makes a trainer, owned by the caller, for a model of the engine that has a block. */
    Made newTrainer(Model model, TrainingConfig config);
}
