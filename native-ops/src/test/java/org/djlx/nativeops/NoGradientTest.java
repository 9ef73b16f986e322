/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.engine.Engine;
import ai.djl.pytorch.jni.JniUtils;
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
}
