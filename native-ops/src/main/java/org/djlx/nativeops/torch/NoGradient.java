// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import ai.djl.ndarray.NDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.util.function.Supplier;
import org.djlx.nativeops.ContextLoader;

/**
 * Runs code without recording gradients, as {@code torch.no_grad}. Switches the calling thread's
 * gradient mode off, and restores it afterwards.
 */
public final class NoGradient {

    private NoGradient() {}

    public static void run(Runnable body) {
        get(
                () -> {
                    body.run();
                    return null;
                });
    }

    public static <T> T get(Supplier<T> body) {
        ContextLoader.loadLibtorch();
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
     * {@return whether autograd records operators on an array: the calling thread's gradient mode
     * is on, and the array requires a gradient, as a leaf or because it was computed from such an
     * array}
     */
    public static boolean isRecorded(NDArray array) {
        return JniUtils.isGradMode() && Torch.requiresGradient(array);
    }
}
