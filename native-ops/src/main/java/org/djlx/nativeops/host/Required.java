// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

/** Checks arguments for null. */
public final class Required {

    private Required() {}

    /** Checks an argument, named by its method and its own name, such as {@code reduce: parts}. */
    public static <T> T argument(String what, T argument) {
        if (argument == null) {
            throw new IllegalArgumentException(what + " is null");
        }
        return argument;
    }
}
