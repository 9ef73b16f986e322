/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;

/**
 * A send or a receive in a batch; the counterpart of {@code torch.distributed.P2POp}. P2P is c10d's
 * word for messages here; elsewhere in this library it is the memory of other ranks, as in {@link
 * P2pBuffers}.
 *
 * @param type {@link OpType#SEND}, {@link OpType#RECV} or {@link OpType#RECV_ANY_SOURCE}
 * @param tensor what to send, or where the message goes
 * @param peer the other rank, one of the group that is called; -1 for any
 * @param tag the message's tag
 * @see ProcessGroup#batchIsendIrecv
 */
public record P2pOp(OpType type, NDArray tensor, int peer, int tag) {

    /**
     * Checks the type; the rest is checked when the batch is issued.
     *
     * @param type {@link OpType#SEND}, {@link OpType#RECV} or {@link OpType#RECV_ANY_SOURCE}
     * @param tensor what to send, or where the message goes
     * @param peer the other rank, one of the group that is called; -1 for any
     * @param tag the message's tag
     */
    public P2pOp {
        if (type == null || !type.isPointToPoint()) {
            throw new IllegalArgumentException("a batch consists of sends and receives: " + type);
        }
    }

    /**
     * Returns a send; see {@link ProcessGroup#send}.
     *
     * @param tensor what to send
     * @param destination the rank to send it to, one of the group that is called
     * @param tag the message's tag
     * @return the operation
     */
    public static P2pOp send(NDArray tensor, int destination, int tag) {
        return new P2pOp(OpType.SEND, tensor, destination, tag);
    }

    /**
     * Returns a receive; see {@link ProcessGroup#recv}.
     *
     * @param tensor where the message goes
     * @param source the rank that sends it, one of the group that is called
     * @param tag the message's tag
     * @return the operation
     */
    public static P2pOp recv(NDArray tensor, int source, int tag) {
        return new P2pOp(OpType.RECV, tensor, source, tag);
    }

    /**
     * Returns a receive from whichever rank sends first; see {@link ProcessGroup#recvAnySource}.
     *
     * @param tensor where the message goes
     * @param tag the message's tag
     * @return the operation
     */
    public static P2pOp recvAnySource(NDArray tensor, int tag) {
        return new P2pOp(OpType.RECV_ANY_SOURCE, tensor, -1, tag);
    }
}
