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
     * A new trainer.
     *
     * @param process the data-parallel rank of this process, from 0; rank 0 saves the model
     */
    record Made(Trainer trainer, int process) {}

    /**
     * Makes a trainer.
     *
     * @param model a model of the engine, which has a block
     * @return the trainer, owned by the caller
     */
    Made newTrainer(Model model, TrainingConfig config);
}
