// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;

/**
 * A send or receive in a batch; the counterpart of {@code torch.distributed.P2POp}. Here P2P is
 * c10d's word for messages; elsewhere in this library it means access to peer memory, as in {@link
 * P2pBuffers}.
 *
 * @param type {@link OpType#SEND}, {@link OpType#RECV} or {@link OpType#RECV_ANY_SOURCE}
 * @param tensor the tensor to send, or to receive into
 * @param peer the other rank, in the numbering of the called group; -1 for any source
 * @param tag the message's tag; not negative
 * @see ProcessGroup#batchIsendIrecv
 */
public record P2pOp(OpType type, NDArray tensor, int peer, int tag) {

    /** Checks the type. The group checks the other components when the batch is issued. */
    public P2pOp {
        if (type == null || !type.isPointToPoint()) {
            throw new IllegalArgumentException(
                    "the type must be send, recv or recvAnySource, but is " + type);
        }
    }

    /** {@return a send; see {@link ProcessGroup#send}} */
    public static P2pOp send(NDArray tensor, int destination, int tag) {
        return new P2pOp(OpType.SEND, tensor, destination, tag);
    }

    /** {@return a receive; see {@link ProcessGroup#recv}} */
    public static P2pOp recv(NDArray tensor, int source, int tag) {
        return new P2pOp(OpType.RECV, tensor, source, tag);
    }

    /** {@return a receive from any rank; see {@link ProcessGroup#recvAnySource}} */
    public static P2pOp recvAnySource(NDArray tensor, int tag) {
        return new P2pOp(OpType.RECV_ANY_SOURCE, tensor, -1, tag);
    }
}
