// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch.cli;

import org.djlx.nativeops.host.Required;

/** Wrong arguments. The command line prints the message and a hint, and ends with exit code 2. */
public final class UsageException extends IllegalArgumentException {

    private static final long serialVersionUID = 1L;

    private UsageException(String message, Throwable cause) {
        super(message, cause);
    }

    /** Throws if a condition holds. */
    public static void refuseIf(boolean wrong, String message) {
        if (wrong) {
            throw new UsageException(message, null);
        }
    }

    /** Returns the parser's result. Its IllegalArgumentException becomes a UsageException. */
    public static <T, E extends Exception> T parsed(Required.Call<T, E> parser) throws E {
        try {
            return parser.run();
        } catch (IllegalArgumentException e) {
            throw new UsageException(e.getMessage(), e);
        }
    }
}
