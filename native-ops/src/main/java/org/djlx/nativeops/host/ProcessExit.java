// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import com.sun.jna.Function;

/** Control over the end of this process. */
public final class ProcessExit {

    private ProcessExit() {}

    /**
     * Makes the process end without running the destructors of native libraries, or handlers
     * registered with {@code atexit(3)} before this call. The exit status is kept. Otherwise a
     * thread that is inside a native library could crash while the library is destroyed.
     */
    public static void skipLibraries() {
        // The handler registered last runs first, and receives the exit status.
        Function.getFunction("c", "on_exit")
                .invokeInt(new Object[] {Function.getFunction("c", "_exit"), null});
    }
}
