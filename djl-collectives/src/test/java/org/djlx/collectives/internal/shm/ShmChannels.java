// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.shm;

import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.cpu.MessageChannel;
import org.djlx.nativeops.host.NativeMemory;

/** The channels of one rank through shared memory, for tests of messages. */
public final class ShmChannels implements AutoCloseable {

    private final ShmSegment segment;
    private final int rank;

    public ShmChannels(GroupContext context, ShmOptions options) {
        segment = ShmSegment.map(context, options);
        rank = context.rank();
    }

    public MessageChannel to(int peer) {
        return ShmBackend.channel(segment, rank, peer, new Copies());
    }

    public NativeMemory memory() {
        return segment.memory();
    }

    @Override
    public void close() {
        segment.close();
    }
}
