// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.Model;
import ai.djl.training.TrainingConfig;
import org.djlx.collectives.engine.TrainerFactory;

public final class P2pTrainerFactory implements TrainerFactory {

    @Override
    public Made newTrainer(Model model, TrainingConfig config) {
        DataParallelTrainer trainer = DataParallelTrainer.create(model, config);
        return new Made(trainer, trainer.process());
    }
}
