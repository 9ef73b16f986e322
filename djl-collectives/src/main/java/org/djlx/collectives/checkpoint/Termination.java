// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.checkpoint;

import java.lang.reflect.Proxy;

/** Whether this process has been sent SIGTERM. A second SIGTERM ends it at once. */
final class Termination {

    /** The exit code of a process that SIGTERM ends. */
    static final int EXIT_CODE = 143;

    private static boolean watched;
    private static volatile boolean requested;

    private Termination() {}

    /**
     * Handles SIGTERM from now on. A shutdown hook would be too late: the hooks of groups run at
     * the same time. By reflection, as javac warns of each use of {@code sun.misc}.
     *
     * @throws IllegalStateException if the JVM does not let SIGTERM be handled
     */
    static synchronized void watch() {
        if (watched) {
            return;
        }
        try {
            Class<?> signal = Class.forName("sun.misc.Signal");
            Class<?> handler = Class.forName("sun.misc.SignalHandler");
            Object own =
                    Proxy.newProxyInstance(
                            Termination.class.getClassLoader(),
                            new Class<?>[] {handler},
                            (proxy, method, args) -> {
                                if (requested) {
                                    System.exit(EXIT_CODE);
                                }
                                requested = true;
                                return null;
                            });
            signal.getMethod("handle", signal, handler)
                    .invoke(null, signal.getConstructor(String.class).newInstance("TERM"), own);
            watched = true;
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
