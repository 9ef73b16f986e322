// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.collectives.internal.gpu.StreamQueue;

/**
 * Messages on the group's communicator, with a stream for each peer.
 *
 * <p>NCCL runs the operations of a communicator in the order in which they are launched, also on
 * different streams. So a message waits for all earlier operations of its rank, and later
 * operations wait for it. NCCL runs the messages of a batch at the same time.
 */
final class GroupMessages implements Messages {

    private static final String HINT =
            "; messages of this group run on its NCCL communicator, one after the other and in turn"
                + " with collectives: both ranks must call them in the same order, or send and"
                + " receive in one batchIsendIrecv. NcclOptions.Builder.optPairCommunicators(true)"
                + " frees messages of each other";

    private final StreamQueue queue;
    private final Calls calls;
    private final Map<Integer, Channel> channels = new ConcurrentHashMap<>(); // by peer

    GroupMessages(StreamQueue queue, Calls calls) {
        this.queue = queue;
        this.calls = calls;
    }

    @Override
    public Channel to(int peer) {
        return channels.computeIfAbsent(
                peer, rank -> new Channel(queue.addSide(HINT), calls, rank));
    }

    @Override
    public Channel from(int peer) {
        return to(peer);
    }
}
