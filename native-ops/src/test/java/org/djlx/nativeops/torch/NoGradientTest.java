// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.engine.Engine;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.pytorch.jni.JniUtils;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class NoGradientTest {

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void restoresTheModeOfTheThread(boolean mode) {
        Engine.getEngine("PyTorch");
        boolean before = JniUtils.isGradMode();
        JniUtils.setGradMode(mode);
        try {
            assertFalse(NoGradient.get(JniUtils::isGradMode));
            assertEquals(mode, JniUtils.isGradMode());
            NoGradient.run(
                    () -> {
                        NoGradient.run(() -> assertFalse(JniUtils.isGradMode()));
                        assertFalse(JniUtils.isGradMode());
                    });
            assertEquals(mode, JniUtils.isGradMode());
            assertThrows(
                    ArithmeticException.class,
                    () -> NoGradient.run(() -> Math.toIntExact(Long.MAX_VALUE)));
            assertEquals(mode, JniUtils.isGradMode());
        } finally {
            JniUtils.setGradMode(before);
        }
    }

    /** DJL tells of leaves alone whether they require a gradient. */
    @Test
    void resultOfALeafIsRecorded() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            boolean before = JniUtils.isGradMode();
            JniUtils.setGradMode(true);
            try {
                NDArray plain = manager.create(new float[] {1, 2});
                NDArray leaf = manager.create(new float[] {1, 2});
                leaf.setRequiresGradient(true);
                NDArray computed = leaf.mul(plain);
                assertFalse(NoGradient.isRecorded(plain));
                assertTrue(NoGradient.isRecorded(leaf));
                assertTrue(NoGradient.isRecorded(computed));
                assertFalse(NoGradient.isRecorded(computed.stopGradient()));
                assertFalse(NoGradient.isRecorded(NoGradient.get(() -> leaf.mul(plain))));
                NoGradient.run(() -> assertFalse(NoGradient.isRecorded(computed)));
                assertTrue(Torch.requiresGradient(computed));
            } finally {
                JniUtils.setGradMode(before);
            }
        }
    }
}
