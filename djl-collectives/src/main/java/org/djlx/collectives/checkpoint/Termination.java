// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.checkpoint;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Proxy;

/**
 * Whether this process has been sent SIGTERM while one or several jobs watch for it. A second
 * SIGTERM ends the process at once.
 */
final class Termination {

    /** The exit code of a process that SIGTERM ends. */
    static final int EXIT_CODE = 143;

    private static int watchers;
    private static Object before; // the handler that watch() has replaced
    private static volatile boolean requested;

    private Termination() {}

    /**
     * Handles SIGTERM until as many calls of {@link #unwatch}. A shutdown hook would be too late:
     * the hooks of groups run at the same time.
     *
     * @throws IllegalStateException if the JVM does not let SIGTERM be handled
     */
    static synchronized void watch() {
        if (watchers == 0) {
            requested = false; // of an earlier trainer
            before = handle(null);
        }
        watchers++;
    }

    /** Restores the handler before {@link #watch}. */
    static synchronized void unwatch() {
        watchers--;
        if (watchers == 0) {
            handle(before);
        }
    }

    /**
     * Sets the handler of SIGTERM, and returns the handler before. By reflection, as javac warns of
     * each use of {@code sun.misc}.
     *
     * @param handler a handler; null for one that notes the request
     */
    static Object handle(Object handler) {
        try {
            Class<?> signal = Class.forName("sun.misc.Signal");
            Class<?> type = Class.forName("sun.misc.SignalHandler");
            InvocationHandler note =
                    (proxy, method, args) -> {
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
