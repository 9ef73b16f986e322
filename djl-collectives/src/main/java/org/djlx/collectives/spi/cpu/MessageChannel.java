// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import java.util.function.Consumer;

/**
 * Carries letters and data of messages between this rank and one peer, in order. No method blocks.
 * One thread at a time calls the channels of a rank.
 *
 * <p>A send is offered by a letter, and its data starts after the peer's letter has accepted it.
 * The caller matches sends with receives and writes the letters; the channel need not look into
 * them.
 */
public interface MessageChannel {

    /** Posts a letter; returns false if there is no space yet. */
    boolean post(Letter letter);

    /** {@return the next letter from the peer; null if none has arrived} */
    Letter take();

    /**
     * Starts to move the data of a message that is not empty: a send after the peer has accepted
     * it, a receive before its acceptance is posted.
     */
    void start(Transfer transfer);

    /**
     * Moves data of started messages, counts it with {@link Transfer#advance}, and calls {@code
     * onMoved} for each transfer whose data has moved completely. Returns whether any moved.
     */
    boolean move(Consumer<Transfer> onMoved);

    /**
     * Stops the receive that awaits the data of a message, and returns it; null if there is none.
     */
    Transfer stopReceiving(long message);

    /**
     * Stops a transfer, which may not have started, before its tensor is released. If the tensor's
     * memory may still be accessed, it is {@linkplain Transfer#leak leaked}. Returns whether it was
     * being sent.
     */
    boolean stop(Transfer transfer);

    /** Stops all transfers, as {@link #stop}. */
    void stopAll();
}
