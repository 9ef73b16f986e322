/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.host;

import com.sun.jna.LastErrorException;

/**
 * A file descriptor of this process, which whoever holds this object closes. Safe for use by
 * several threads, except that closing while another thread uses the number is not: the system may
 * give the number to another file at once.
 */
public final class Descriptor implements AutoCloseable {

    private final int number;
    private boolean closed;

    /** Takes over an open descriptor. */
    public Descriptor(int number) {
        this.number = number;
    }

    /**
     * Returns the descriptor's number in this process, for a call that takes one.
     *
     * @return the number
     * @throws IllegalStateException if it is closed
     */
    public synchronized int number() {
        if (closed) {
            throw new IllegalStateException("descriptor " + number + " is closed");
        }
        return number;
    }

    /** Closes the descriptor; does nothing when called again. */
    @Override
    public synchronized void close() {
        if (!closed) {
            closed = true;
            close(number);
        }
    }

    /** Closes a descriptor that nothing was written through, so that nothing can be lost. */
    static void close(int number) {
        try {
            LibC.close(number);
        } catch (LastErrorException e) {
            // Linux has closed it in any case, and a second try could close another file.
        }
    }

    @Override
    public String toString() {
        return "descriptor " + number;
    }
}
