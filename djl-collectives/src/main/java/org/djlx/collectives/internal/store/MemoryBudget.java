/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

/**
 * How many bytes a server may use for all its clients together, and how many it does. Whatever a
 * client can make it keep is taken from here first, and given back when it is no longer kept. Not
 * thread-safe: it belongs to the server's one thread.
 */
final class MemoryBudget {

    private final long max;
    private long used;

    MemoryBudget(long max) {
        this.max = max;
    }

    /**
     * Takes bytes.
     *
     * @param bytes how many
     * @throws IllegalArgumentException if there are not as many; none is taken then
     */
    void take(long bytes) {
        if (bytes > max - used) {
            throw new IllegalArgumentException(
                    "the server is out of memory for its clients: of the "
                            + max
                            + " bytes it may use (optMaxBytes) "
                            + used
                            + " are in use, and "
                            + bytes
                            + " are needed");
        }
        used += bytes;
    }

    /** Gives bytes back. */
    void giveBack(long bytes) {
        used -= bytes;
    }

    long used() {
        return used;
    }
}
