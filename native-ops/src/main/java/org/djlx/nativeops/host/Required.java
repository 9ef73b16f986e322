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
}
