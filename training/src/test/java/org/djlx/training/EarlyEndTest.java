// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.engine.P2pEngine;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Ranks with a trainer each, as processes have, of which one ends before the others. */
@Timeout(60)
class EarlyEndTest {

    private static void step(Trainer trainer) {
        try (NDManager manager = trainer.getManager().newSubManager()) {
            NDArray x = manager.ones(new Shape(4, Training.FEATURES));
            try (GradientCollector collector = trainer.newGradientCollector()) {
                collector.backward(trainer.forward(new NDList(x)).head().square().sum());
            }
            trainer.step();
        }
    }

    /** Its dataset has fewer batches, say. The others wait for it in a step. */
    @Test
    void closingATrainerEarlyFailsTheOtherRanksByName() {
        List<ProcessGroup> groups = ProcessGroups.local(3);
        try {
            ProcessGroups.run(
                    groups,
                    group -> {
                        DataParallelConfig config =
                                new DataParallelConfig(Training.loss()).optProcessGroup(group);
                        config.optOptimizer(Training.optimizer("sgd"));
                        try (Model model = Model.newInstance("early", P2pEngine.NAME)) {
                            model.setBlock(Training.block());
                            Trainer trainer = model.newTrainer(config);
                            trainer.initialize(new Shape(1, Training.FEATURES));
                            step(trainer);
                            CollectiveException e;
                            if (group.rank() == 1) {
                                e = assertThrows(CollectiveException.class, trainer::close);
                            } else {
                                e = assertThrows(CollectiveException.class, () -> step(trainer));
                                trainer.close(); // It knows that it cannot compare parameters.
                            }
                            String message = e.getMessage();
                            assertTrue(message.contains("closed its trainer"), message);
                            assertTrue(message.contains("rank 1 called allGather"), message);
                        }
                        return null;
                    });
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
