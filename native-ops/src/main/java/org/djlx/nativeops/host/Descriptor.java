// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import com.sun.jna.LastErrorException;

/**
 * An owned file descriptor of this process. Thread-safe, with one exception: do not close it while
 * another thread uses its number, because the system may give the number to another file
 * immediately.
 */
public final class Descriptor implements AutoCloseable {

    private final int number;
    private boolean closed;

    /** Takes ownership of an open descriptor. */
    public Descriptor(int number) {
        this.number = number;
    }

    /** {@return the descriptor's number, for system calls} */
    public synchronized int number() {
        if (closed) {
            throw new IllegalStateException("descriptor " + number + " is closed");
        }
        return number;
    }

    /** Closes the descriptor. Idempotent. */
    @Override
    public synchronized void close() {
        if (!closed) {
            closed = true;
            close(number);
        }
    }

    /** Closes a descriptor, ignoring errors. Nothing was written to it, so no data can be lost. */
    static void close(int number) {
        try {
            LibC.close(number);
        } catch (LastErrorException e) {
            // Linux closes the descriptor even on an error; a second try could close another file.
        }
    }

    @Override
    public String toString() {
        return "descriptor " + number;
    }
}
