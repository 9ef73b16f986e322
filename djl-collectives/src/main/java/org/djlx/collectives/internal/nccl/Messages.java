// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import org.djlx.collectives.internal.gpu.Lane;

/** Where the messages of a group run: {@link PairMessages} or {@link GroupMessages}. */
interface Messages {

    /**
     * Where the messages with a peer run.
     *
     * @param peer the peer's rank in the communicator
     */
    record Channel(Lane lane, Calls calls, int peer) {}

    Channel to(int peer);

    Channel from(int peer);
}
