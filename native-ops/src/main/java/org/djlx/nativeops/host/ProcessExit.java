/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.host;

import com.sun.jna.Function;

/** How this process ends. */
public final class ProcessExit {

    private ProcessExit() {}

    /**
     * Lets the process end, with its exit status, without the destructors of its native libraries
     * and what else they have registered with {@code atexit(3)} before this call. A thread that is
     * in such a library would crash when that is taken down under it.
     */
    public static void skipLibraries() {
        // What is registered last runs first, and is given the status.
        Function.getFunction("c", "on_exit")
                .invokeInt(new Object[] {Function.getFunction("c", "_exit"), null});
    }
}
