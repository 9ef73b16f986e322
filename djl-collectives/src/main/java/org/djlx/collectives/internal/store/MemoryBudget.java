// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.store;

/**
 * The memory limit of a server for all clients together. Memory that a client makes the server keep
 * is acquired here first, and released when it is no longer kept. One sixteenth is reserved for the
 * start of commands and for answers: small requests succeed even if large ones have used the rest.
 * Confined to the server's thread.
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
     * Acquires bytes; if not enough are free, throws IllegalArgumentException and acquires none.
     */
    void take(long bytes) {
        take(bytes, max - reserve);
    }

    /** As {@link #take}, for the start of a command or for an answer: may use the reserve. */
    void takeLittle(long bytes) {
        take(bytes, max);
    }

    private void take(long bytes, long limit) {
        if (bytes > Math.max(0, limit - used)) {
            throw new IllegalArgumentException(
                    String.format(
                            "the server's memory limit is exceeded: of %d bytes (15/16 of"
                                    + " the limit, or all of it for short commands and answers) %d"
                                    + " are in use, and %d more are needed",
                            limit, used, bytes));
        }
        used += bytes;
    }

    /** Releases bytes. */
    void giveBack(long bytes) {
        used -= bytes;
    }

    long used() {
        return used;
    }
}
