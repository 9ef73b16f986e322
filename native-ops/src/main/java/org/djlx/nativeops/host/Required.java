// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

/** Checks of arguments, which throw an {@link IllegalArgumentException}. */
public final class Required {

    private Required() {}

    /** Checks an argument, named by its method and its own name, such as {@code reduce: parts}. */
    public static <T> T argument(String what, T argument) {
        if (argument == null) {
            throw new IllegalArgumentException(what + " is null");
        }
        return argument;
    }

    /** Checks a condition; the message is {@code problem}, formatted with the values. */
    public static void check(boolean condition, String problem, Object... values) {
        if (!condition) {
            throw new IllegalArgumentException(problem.formatted(values));
        }
    }

    /** Code that may throw a checked exception. */
    public interface Call<T, E extends Exception> {

        T run() throws E;
    }

    /** Returns a call's result. The message of its IllegalArgumentException begins with a place. */
    public static <T, E extends Exception> T naming(Object place, Call<T, E> call) throws E {
        try {
            return call.run();
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(place + ": " + e.getMessage(), e);
        }
    }
}
