/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.store;

/**
 * How many bytes a server may use for all its clients together, and how many it does. Whatever a
 * client can make it keep is taken from here first, and given back when it is no longer kept. A
 * sixteenth is there for the beginnings of commands and for answers only, so that clients that want
 * little are served while others have taken all the rest. Not thread-safe: it belongs to the
 * server's one thread.
 */
final class MemoryBudget {

    private final long max;
    private final long reserve;
    private long used;

    MemoryBudget(long max) {
        this.max = max;
        reserve = max / 16;
    }

    /**
     * Takes bytes.
     *
     * @param bytes how many
     * @throws IllegalArgumentException if there are not as many; none is taken then
     */
    void take(long bytes) {
        take(bytes, max - reserve);
    }

    /**
     * Takes bytes for the beginning of a command or for an answer, of the reserve if need be.
     *
     * @param bytes how many
     * @throws IllegalArgumentException if there are not as many; none is taken then
     */
    void takeLittle(long bytes) {
        take(bytes, max);
    }

    private void take(long bytes, long limit) {
        if (bytes > limit - used) {
            throw new IllegalArgumentException(
                    String.format(
                            "the server is out of memory for its clients: of the %d bytes it may"
                                    + " use (15/16 of optMaxBytes, or all for short commands and"
                                    + " answers) %d are in use, and %d are needed",
                            limit, used, bytes));
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
