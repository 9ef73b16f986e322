// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

/**
 * The limits of a server: they keep clients from exhausting its memory. {@code maxBytes} is for all
 * clients together: keys, values, awaited keys, and data in transit. PyTorch's libuv server has the
 * same limits on the size of keys and values and on the number of keys in a command.
 */
public record ServerLimits(
        int maxConnections,
        int maxKeys,
        int maxKeyBytes,
        int maxKeysInCommand,
        int maxValueBytes,
        long maxBytes) {

    /** The limits of the servers of jobs. */
    public static final ServerLimits DEFAULTS =
            new ServerLimits(16 << 10, 1 << 20, 8 << 20, Runtime.getRuntime().maxMemory() / 4);

    /** No limits, for requests that are not from a client. */
    static final ServerLimits NONE =
            new ServerLimits(
                    0,
                    Integer.MAX_VALUE,
                    Integer.MAX_VALUE,
                    Integer.MAX_VALUE,
                    Integer.MAX_VALUE,
                    Long.MAX_VALUE);

    private static final int MAX_KEY_BYTES = 8 << 10;

    private static final int MAX_KEYS_IN_COMMAND = 128 << 10;

    /** How many values of maximum length one command or answer may carry. */
    private static final int MAX_VALUES_IN_COMMAND = 16;

    private static final int MAX_STRANGERS_VALUE_BYTES = 64;

    /** Creates the limits of a server, with PyTorch's on the keys of a command. */
    public ServerLimits(int maxConnections, int maxKeys, int maxValueBytes, long maxBytes) {
        this(
                maxConnections,
                maxKeys,
                MAX_KEY_BYTES,
                (int) Math.min(MAX_KEYS_IN_COMMAND, (long) maxValueBytes * MAX_VALUES_IN_COMMAND),
                maxValueBytes,
                maxBytes);
    }

    /** Returns the maximum length of a command or answer in bytes. */
    long maxMessageBytes() {
        return (long) maxValueBytes * MAX_VALUES_IN_COMMAND;
    }

    /** Returns the limits for clients that have not authenticated yet. */
    ServerLimits forStrangers() {
        return new ServerLimits(maxConnections, maxKeys, MAX_STRANGERS_VALUE_BYTES, maxBytes);
    }
}
