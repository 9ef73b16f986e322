// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import ai.djl.engine.Engine;
import org.djlx.nativeops.NativeLibrary;

/** Asks for libtorch in an interrupted thread, before anything else of it is used. */
public final class InterruptedProbe {

    private InterruptedProbe() {}

    public static void main(String[] args) {
        Engine.getEngine("PyTorch");
        Thread.currentThread().interrupt();
        Throwable cause = NativeLibrary.LIBTORCH.unavailabilityCause();
        System.out.printf("LIBTORCH: %s, interrupted: %b%n", cause, Thread.interrupted());
    }
}
