// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import ai.djl.pytorch.jni.JniUtils;
import org.djlx.training.DataParallelTrainer;

/**
 * The seed from which a process draws the random numbers after each checkpoint: the restored one,
 * the engine's, or else the rank.
 */
final class RandomSeed {

    private Integer seed; // null before it is known

    int of(DataParallelTrainer trainer) {
        if (seed == null) {
            Integer set = trainer.getManager().getEngine().getSeed();
            seed = set != null ? set : trainer.process();
        }
        return seed;
    }

    /** Seeds libtorch's generators; not the engine, whose seed is the program's. */
    void draw(DataParallelTrainer trainer, long step) {
        JniUtils.setSeed(31L * of(trainer) + step);
    }

    /** Draws from the restored seed. Processes beyond those that saved get other seeds. */
    void restore(int[] seeds, DataParallelTrainer trainer, long step) {
        int rank = trainer.process();
        seed = seeds[rank % seeds.length] + rank / seeds.length * seeds.length;
        draw(trainer, step);
    }
}
