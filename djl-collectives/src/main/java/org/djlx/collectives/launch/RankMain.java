// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Arrays;
import java.util.concurrent.locks.LockSupport;
import org.djlx.nativeops.host.FailureText;

/** The entry point of a process started by {@link Launcher}. */
final class RankMain {

    /** How long the shutdown hooks of a failed rank may run. */
    private static final long EXIT_NANOS = 10_000_000_000L;

    private static volatile boolean failed;

    private RankMain() {}

    /**
     * Runs the main method of the class that the first argument names, with the other arguments. An
     * exception ends the process with code 1 immediately, even if other threads still run, the
     * exception cannot be printed, or the heap is full. Shutdown hooks run for up to 10 s.
     */
    public static void main(String[] args) {
        // Started here, because a thread cannot be started when memory has run out.
        Thread watchdog = new Thread(RankMain::haltIfExitHangs, "rank-exit");
        watchdog.setDaemon(true);
        watchdog.start();
        try {
            String[] mainArgs = Arrays.copyOfRange(args, 1, args.length);
            Method main = Class.forName(args[0]).getMethod("main", String[].class);
            // The class need not be public, as with the command java.
            main.setAccessible(true);
            main.invoke(null, (Object) mainArgs);
        } catch (Throwable t) {
            failed = true;
            LockSupport.unpark(watchdog);
            fail(t);
        }
    }

    private static void fail(Throwable t) {
        try {
            boolean wrapped = t instanceof InvocationTargetException && t.getCause() != null;
            FailureText.printable(wrapped ? t.getCause() : t).printStackTrace();
        } catch (Throwable unprintable) { // The heap is full.
            System.err.println("the rank failed, and its exception cannot be printed");
        } finally {
            try {
                System.exit(1);
            } finally {
                Runtime.getRuntime().halt(1);
            }
        }
    }

    /** Waits until the rank has failed, then ends the process unless exit has ended it in time. */
    private static void haltIfExitHangs() {
        while (!failed) {
            LockSupport.park();
        }
        long start = System.nanoTime();
        while (System.nanoTime() - start < EXIT_NANOS) {
            LockSupport.parkNanos(EXIT_NANOS);
        }
        Runtime.getRuntime().halt(1);
    }
}
