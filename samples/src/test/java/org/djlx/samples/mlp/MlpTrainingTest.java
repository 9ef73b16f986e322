// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.mlp;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import org.djlx.collectives.gradient.GradientScope;
import org.junit.jupiter.api.Test;

class MlpTrainingTest {

    /** Memory that autograd keeps for a loss must survive the garbage collector. */
    @Test
    void gradientsSurviveTheGarbageCollector() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray next = manager.create(new float[] {1, 1, 1});
            for (int i = 0; i < 10; i++) {
                NDArray y = manager.create(new float[] {2, 3, 4});
                y.setRequiresGradient(true);
                try (NDManager temporary = manager.newSubManager();
                        GradientScope scope = GradientScope.open()) {
                    NDArray loss = MlpTraining.loss(temporary, y, next, 2);
                    System.gc();
                    manager.create(new float[] {7, 7, 7}); // may reuse the memory of a freed number
                    scope.backward(loss);
                }
                try (NDArray gradient = y.getGradient()) {
                    assertArrayEquals(new float[] {1, 2, 3}, gradient.toFloatArray());
                }
            }
        }
    }
}
