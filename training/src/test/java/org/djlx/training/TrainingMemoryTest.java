// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Model;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Activation;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.training.GradientCollector;
import ai.djl.training.Trainer;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.host.CHeap;
import org.djlx.training.strategy.GradientCompression;
import org.djlx.training.strategy.ShardingStrategy;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What a step makes is closed in it, however many steps there are. */
@Tag("slow")
class TrainingMemoryTest {

    private static final int WARM = 500;
    private static final int STEPS = 1000;
    private static final int TIMES = 15;

    private static final long MOST = 1024L * STEPS; // An activation of a rank has 32 KB.
    private static final int ROWS = 1024;
    private static final int FEATURES = 16;

    @ParameterizedTest
    @CsvSource({
        "adam, 2, NONE, NO_SHARD",
        "momentum, 2, BFLOAT16, NO_SHARD",
        "adam, 2, NONE, FULL_SHARD"
    })
    void memoryDoesNotGrow(
            String optimizer,
            int ranks,
            GradientCompression compression,
            ShardingStrategy strategy) {
        SequentialBlock block =
                new SequentialBlock()
                        .add(Linear.builder().setUnits(FEATURES).build())
                        .add(Activation::tanh)
                        .add(Linear.builder().setUnits(FEATURES).build());
        DataParallelConfig config =
                new DataParallelConfig(Training.loss())
                        .optRanks(ranks)
                        .optBucketBytes(1)
                        .optShardingStrategy(strategy)
                        .optGradientHook(compression);
        config.optOptimizer(Training.optimizer(optimizer));
        try (Model model = Model.newInstance("flat", P2pEngine.NAME)) {
            model.setBlock(block);
            try (Trainer trainer = model.newTrainer(config)) {
                trainer.initialize(new Shape(1, FEATURES));
                steps(trainer, WARM);
                long arrays = arrays(trainer.getManager());
                // The JVM's compilers take up to 20 MB meanwhile, most of it in the first turn, and
                // not each time, as a leak does.
                List<Long> grown = new ArrayList<>();
                do {
                    long before = CHeap.bytesInUse();
                    steps(trainer, STEPS);
                    grown.add(CHeap.bytesInUse() - before);
                } while (grown.size() < TIMES && Collections.min(grown) >= MOST);
                assertEquals(arrays, arrays(trainer.getManager()));
                assertTrue(Collections.min(grown) < MOST, () -> grown + " bytes more each time");
            }
        }
    }

    private static void steps(Trainer trainer, int count) {
        for (int step = 0; step < count; step++) {
            try (NDManager manager = trainer.getManager().newSubManager()) {
                NDArray x = manager.ones(new Shape(ROWS, FEATURES));
                try (GradientCollector collector = trainer.newGradientCollector()) {
                    NDArray y = trainer.forward(new NDList(x)).head();
                    collector.backward(y.square().sum());
                }
                trainer.step();
            }
        }
    }

    /** Counts the arrays of all managers. Views of memory aside: shm keeps some, a fixed number. */
    static long arrays(NDManager any) {
        NDManager root = any;
        while (root.getParentManager() != null) {
            root = root.getParentManager();
        }
        return root.getManagedArrays().stream()
                .filter(a -> a.getClass() == PtNDArray.class)
                .count();
    }
}
