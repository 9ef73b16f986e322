// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import org.djlx.collectives.internal.gpu.Lane;

/** The channels of a group's messages: {@link PairMessages} or {@link GroupMessages}. */
interface Messages {

    /**
     * The lane and the communicator of messages with a peer.
     *
     * @param peer the peer's rank in the communicator
     */
    record Channel(Lane lane, Calls calls, int peer) {}

    /** Returns the channel of sends to a rank of the group. */
    Channel to(int peer);

    /** Returns the channel of receives from a rank of the group. */
    Channel from(int peer);
}
