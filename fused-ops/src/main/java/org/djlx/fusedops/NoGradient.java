/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.pytorch.jni.JniUtils;
import java.util.function.Supplier;

/** Runs code without recording gradients. */
final class NoGradient {

    private NoGradient() {}

    static <T> T run(Supplier<T> body) {
        boolean before = JniUtils.isGradMode();
        JniUtils.setGradMode(false);
        try {
            return body.get();
        } finally {
            JniUtils.setGradMode(before);
        }
    }
}
