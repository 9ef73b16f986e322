// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import java.io.PrintWriter;
import java.io.Writer;

/**
 * Reads the text of exceptions from user code. Their {@code toString} and {@code getMessage} may be
 * user code, too, which may throw or return null, and the heap may be full. Code that reports a
 * failure to other ranks or callers must read the text here.
 */
public final class FailureText {

    private FailureText() {}

    /**
     * Returns the exception's {@code toString()}, or the name of its class if that fails.
     *
     * @param failure the exception
     * @return the text, never null
     */
    public static String of(Throwable failure) {
        try {
            String text = failure.toString();
            return text == null ? failure.getClass().getName() : text;
        } catch (Throwable t) {
            return failure.getClass().getName();
        }
    }

    /**
     * Returns the exception's message, or {@link #of} if it has none.
     *
     * @param failure the exception
     * @return the text, never null
     */
    public static String message(Throwable failure) {
        try {
            String text = failure.getMessage();
            return text == null ? of(failure) : text;
        } catch (Throwable t) {
            return failure.getClass().getName();
        }
    }

    /**
     * Returns an exception that a logger can print.
     *
     * @param failure the exception
     * @return the exception itself, or if its stack trace cannot be printed, one with its class
     *     name and stack trace
     */
    public static Throwable printable(Throwable failure) {
        try {
            failure.printStackTrace(new PrintWriter(Writer.nullWriter()));
            return failure;
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
}
