/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

/**
 * What a server grants its clients, so that they cannot exhaust its memory: each on its own, and by
 * {@code maxBytes} all together. PyTorch's libuv server has the same limits on the size of keys and
 * values and on the number of keys in a command.
 *
 * @param maxConnections how many connections there may be
 * @param maxKeys how many keys the store may hold
 * @param maxValueBytes how long a value may be
 * @param maxBytes how much memory all clients together may use: for keys and values, for what they
 *     wait for, and for what is on its way to or from them
 */
public record ServerLimits(int maxConnections, int maxKeys, int maxValueBytes, long maxBytes) {

    /** How long a key may be, in bytes. */
    static final int MAX_KEY_BYTES = 8 << 10;

    private static final int MAX_KEYS_IN_COMMAND = 128 << 10;

    /** How many of the longest values one command, or the answer to it, may carry. */
    private static final int MAX_VALUES_IN_COMMAND = 16;

    private static final int MAX_STRANGERS_VALUE_BYTES = 64;

    /**
     * Checks the limits.
     *
     * @param maxConnections how many connections there may be
     * @param maxKeys how many keys the store may hold
     * @param maxValueBytes how long a value may be
     * @param maxBytes how much memory all clients together may use
     */
    public ServerLimits {
        checkPositive("maximum number of connections", maxConnections);
        checkPositive("maximum number of keys", maxKeys);
        checkPositive("maximum length of a value", maxValueBytes);
        checkPositive("maximum number of bytes", maxBytes);
    }

    /** Returns how many keys one command may name. */
    int maxKeysInCommand() {
        return (int) Math.min(MAX_KEYS_IN_COMMAND, maxMessageBytes());
    }

    /** Returns how long a command, or the answer to it, may be, in bytes. */
    long maxMessageBytes() {
        return (long) maxValueBytes * MAX_VALUES_IN_COMMAND;
    }

    /** Returns what is granted to those who have yet to prove that they belong to the job. */
    ServerLimits forStrangers() {
        return new ServerLimits(maxConnections, maxKeys, MAX_STRANGERS_VALUE_BYTES, maxBytes);
    }

    private static void checkPositive(String what, long value) {
        if (value < 1) {
            throw new IllegalArgumentException("The " + what + " must be positive: " + value);
        }
    }
}
