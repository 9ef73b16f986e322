// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;

/**
 * Records SIGTERM while at least one job watches for it. A second SIGTERM ends the process at once.
 */
final class Termination {

    static final int EXIT_CODE = 143;

    private static int watchers;
    private static Object before; // the handler that watch() replaced
    private static volatile boolean requested;

    private Termination() {}

    /**
     * Starts to handle SIGTERM. Each call needs one call of {@link #unwatch}; the last one restores
     * the previous handler. A shutdown hook would be too late: it runs concurrently with the hooks
     * that close process groups. Throws if the JVM does not allow it.
     */
    static synchronized void watch() {
        if (watchers == 0) {
            requested = false; // may be left over from an earlier trainer
            before = handle(null);
        }
        watchers++;
    }

    /** Ends one {@link #watch}. The last call restores the previous handler. */
    static synchronized void unwatch() {
        watchers--;
        if (watchers == 0) {
            handle(before);
        }
    }

    /**
     * Returns the previous handler; null stands for the one that records the request. Uses
     * reflection because javac warns about each use of {@code sun.misc}.
     */
    static Object handle(Object handler) {
        try {
            Class<?> signal = Class.forName("sun.misc.Signal");
            Class<?> type = Class.forName("sun.misc.SignalHandler");
            InvocationHandler note =
                    (proxy, method, args) -> {
                        if (!method.getName().equals("handle")) {
                            return method.invoke(Termination.class, args); // toString and such
                        }
                        if (requested) {
                            System.exit(EXIT_CODE);
                        }
                        requested = true;
                        return null;
                    };
            Object next =
                    handler != null
                            ? handler
                            : Proxy.newProxyInstance(
                                    Termination.class.getClassLoader(),
                                    new Class<?>[] {type},
                                    note);
            return signal.getMethod("handle", signal, type)
                    .invoke(null, signal.getConstructor(String.class).newInstance("TERM"), next);
        } catch (ReflectiveOperationException e) {
            throw new IllegalStateException(
                    "optSaveOnSigterm: this JVM does not let SIGTERM be handled; start it without"
                            + " -Xrs",
                    e);
        }
    }

    static boolean isRequested() {
        return requested;
    }
}
