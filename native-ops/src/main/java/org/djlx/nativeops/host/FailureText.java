// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import java.io.PrintWriter;
import java.io.Writer;
import java.util.concurrent.Callable;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;

/**
 * Reads the text of exceptions from user code. Their {@code toString} and {@code getMessage} may be
 * user code, too, which may throw, return null or block, and the heap may be full. Code that
 * reports a failure to other ranks or callers must read the text here. User code runs on a thread
 * of its own, for up to a second.
 */
public final class FailureText {

    private static final long LIMIT_NANOS = 1_000_000_000;

    private FailureText() {}

    /**
     * Returns the exception's {@code toString()}, or the name of its class if that fails; never
     * null.
     */
    public static String of(Throwable failure) {
        try {
            String text = text(failure, failure::toString);
            return text == null ? failure.getClass().getName() : text;
        } catch (Throwable t) {
            return failure.getClass().getName();
        }
    }

    /** Returns the exception's message, or {@link #of} if it has none; never null. */
    public static String message(Throwable failure) {
        try {
            String text = text(failure, failure::getMessage);
            return text == null ? of(failure) : text;
        } catch (Throwable t) {
            return failure.getClass().getName();
        }
    }

    /**
     * Returns an exception that a logger can print: the exception itself, or if its stack trace
     * cannot be printed, one with its class name and stack trace.
     */
    public static Throwable printable(Throwable failure) {
        try {
            PrintWriter nowhere = new PrintWriter(Writer.nullWriter());
            return bounded(
                    () -> {
                        failure.printStackTrace(nowhere);
                        return failure;
                    });
        } catch (Throwable t) {
            Throwable substitute = new RuntimeException(of(failure));
            try {
                substitute.setStackTrace(failure.getStackTrace());
            } catch (Throwable hidden) { // The class has no stack trace of its own either.
                substitute.setStackTrace(new StackTraceElement[0]);
            }
            return substitute;
        }
    }

    private static String text(Throwable failure, Callable<String> call) throws Exception {
        boolean isJdks = failure.getClass().getClassLoader() == null;
        return isJdks ? call.call() : bounded(call);
    }

    /** Calls user code. Throws what the code throws, or an exception if it takes too long. */
    private static <T> T bounded(Callable<T> call) throws Exception {
        FutureTask<T> task;
        try {
            task = new FutureTask<>(call);
            Thread thread = new Thread(task, "failure-text");
            thread.setDaemon(true);
            thread.start();
        } catch (OutOfMemoryError e) { // No memory for a thread.
            return call.call();
        }
        long deadline = System.nanoTime() + LIMIT_NANOS;
        boolean interrupted = false;
        try {
            while (true) {
                try {
                    return task.get(deadline - System.nanoTime(), TimeUnit.NANOSECONDS);
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        } finally {
            task.cancel(true);
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
