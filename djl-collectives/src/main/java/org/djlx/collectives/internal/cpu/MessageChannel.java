// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cpu;

import java.util.function.Consumer;

/**
 * Carries letters and data between this rank and one peer. No method blocks. Guarded by the lock of
 * the {@link MessageQueue}.
 */
public interface MessageChannel {

    /** Posts a letter; returns false if there is no space yet. */
    boolean post(Letter letter);

    /** Takes the next letter from the peer; returns null if there is none. */
    Letter take();

    /**
     * Starts to move the data of a message: a send after the peer has accepted it, a receive before
     * its acceptance is posted.
     */
    void start(Transfer transfer);

    /**
     * Moves data; returns whether any moved.
     *
     * @param onMoved called for each transfer whose data has moved completely
     */
    boolean move(Consumer<Transfer> onMoved);

    /**
     * Returns the receive that awaits the data of a message, and stops it; null if there is none.
     */
    Transfer stopReceiving(long message);

    /**
     * Stops a transfer, before its tensor is released; a tensor that may still be accessed is
     * {@linkplain Transfer#leak leaked}. Returns whether it was being sent.
     */
    boolean stop(Transfer transfer);

    /** Stops all transfers, as {@link #stop}. */
    void stopAll();
}
