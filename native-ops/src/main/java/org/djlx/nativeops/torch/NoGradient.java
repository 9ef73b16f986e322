/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.util.function.Supplier;

/**
 * Runs code without libtorch recording gradients, as {@code torch.no_grad}. The mode is that of the
 * calling thread, which gets it back.
 */
public final class NoGradient {

    private NoGradient() {}

    /**
     * Runs code.
     *
     * @param body the code
     */
    public static void run(Runnable body) {
        get(
                () -> {
                    body.run();
                    return null;
                });
    }

    /**
     * Runs code that returns something.
     *
     * @param body the code
     * @param <T> the type of what it returns
     * @return what it returns
     */
    public static <T> T get(Supplier<T> body) {
        if (!JniUtils.isGradMode()) {
            return body.get();
        }
        JniUtils.setGradMode(false);
        try {
            return body.get();
        } finally {
            JniUtils.setGradMode(true);
        }
    }

    /**
     * Tells whether autograd would record what is done with an array: whether the calling thread's
     * mode is on and the array requires a gradient, be it a leaf or computed from one.
     *
     * @param array an array
     * @return whether it would
     */
    public static boolean isRecorded(NDArray array) {
        return JniUtils.isGradMode() && Torch.requiresGradient(array);
    }
}
