// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import com.sun.jna.Function;
import java.util.concurrent.atomic.AtomicInteger;

/** Control over the end of this process. */
public final class ProcessExit {

    private static final AtomicInteger USES = new AtomicInteger();

    static {
        try {
            Runtime.getRuntime().addShutdownHook(new Thread(ProcessExit::end, "libraries-exit"));
        } catch (IllegalStateException e) {
            skipLibraries(); // The JVM is exiting.
        }
    }

    private ProcessExit() {}

    /**
     * Begins a use of native libraries by threads that the JVM's exit does not stop, such as
     * training. If the JVM exits before {@link #endUse}, as after SIGTERM, it {@linkplain
     * #skipLibraries skips} the libraries' destructors.
     */
    public static void beginUse() {
        USES.incrementAndGet();
    }

    /** Ends one {@link #beginUse}. */
    public static void endUse() {
        USES.decrementAndGet();
    }

    private static void end() {
        if (USES.get() > 0) {
            skipLibraries();
        }
    }

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
