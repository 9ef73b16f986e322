// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.djlx.collectives.internal.gpu.StreamQueue;

/**
 * Messages on the group's communicator, with a stream for each peer.
 *
 * <ul>
 *   <li>NCCL runs the operations of a communicator in the order of their launches, even on
 *       different streams. So a message waits for all earlier operations of its rank in the group,
 *       and later operations wait for the message.
 *   <li>NCCL runs the messages of a batch at the same time.
 * </ul>
 */
final class GroupMessages implements Messages {

    private static final String HINT =
            "; messages of this group run on its NCCL communicator, one after the other and in the"
                    + " order of all calls, collectives included: both ranks must make these calls"
                    + " in the same order, or send and receive in one batchIsendIrecv. With"
                    + " NcclOptions.Builder.optPairCommunicators(true) each pair of ranks has its"
                    + " own communicators";

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
