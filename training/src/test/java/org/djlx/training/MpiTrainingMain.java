// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
import ai.djl.training.DefaultTrainingConfig;
import ai.djl.training.TrainingConfig;
import org.djlx.training.Training.Outcome;

/**
 * One rank under mpirun: trains on backend {@code mpi}, and compares with training on one device.
 */
public final class MpiTrainingMain {

    private MpiTrainingMain() {}

    public static void main(String[] args) throws Exception {
        TrainingConfig config =
                new DefaultTrainingConfig(Training.loss()).optOptimizer(Training.optimizer("adam"));
        Outcome actual = TrainingMain.fitWithListener(config, "mpi");
        Outcome expected = TrainingProcessesTest.onOne("adam", Device.cpu());
        assertEquals(expected.parameters().size(), actual.parameters().size());
        for (int i = 0; i < actual.parameters().size(); i++) {
            assertArrayEquals(
                    expected.parameters().get(i),
                    actual.parameters().get(i),
                    TrainingProcessesTest.TOLERANCE);
        }
        System.out.println("equal parameters");
    }
}
