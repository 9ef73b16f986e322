// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

/**
 * A control message by which two ranks negotiate a message: the message's number, counted by its
 * sender, the code of its element type, and its size in bytes. A {@link MessageChannel} carries it.
 */
public record Letter(Kind kind, long message, int tag, int type, long size, long[] signature) {

    /** The kind of a letter. */
    public enum Kind {
        /** From the sender: offers a message. */
        OFFER,
        /** From the receiver: requests the data of a message. */
        ACCEPT,
        /**
         * From the receiver: rejects a message that does not match; has the receive's signature.
         */
        REJECT,
        /** From the sender: withdraws a message. */
        WITHDRAW
    }
}
