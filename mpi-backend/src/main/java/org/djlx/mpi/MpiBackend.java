// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.cpu.CpuBackend;
import org.djlx.nativeops.mpi.MpiCommunicator;

final class MpiBackend extends CpuBackend {

    static final String NAME = "mpi";

    private final MpiGroup group;

    private MpiBackend(GroupContext context, MpiGroup group) {
        super(NAME, context, group, new MpiSums(group::add));
        this.group = group;
        MpiProcess.opened(group);
        int first = context.rank() == 0 ? 1 : 0;
        start(
                context,
                new MpiCollectives(group, reducer()),
                peer -> new MpiChannel(group, peer, peer == first));
    }

    static MpiBackend create(GroupContext context) {
        if (context.options().getClass() != BackendOptions.class) {
            throw new IllegalArgumentException(
                    "backend '%s' takes BackendOptions, not %s"
                            .formatted(NAME, context.options().getClass().getSimpleName()));
        }
        MpiCommunicator world = MpiProcess.world();
        int tag = MpiProcess.newTag(world);
        byte[] own =
                ByteBuffer.allocate(2 * Integer.BYTES).putInt(world.rank()).putInt(tag).array();
        List<byte[]> ranks = context.exchange(NAME, own);
        int[] members = ranks.stream().mapToInt(rank -> ByteBuffer.wrap(rank).getInt()).toArray();
        requireProcesses(context, world, members);
        // All members have exchanged their ranks, so this does not wait for long.
        tag = ByteBuffer.wrap(ranks.get(0)).getInt(Integer.BYTES);
        MpiCommunicator comm = world.create(members, tag);
        return new MpiBackend(context, new MpiGroup(comm, context.name(), context.watchPeers()));
    }

    private static void requireProcesses(
            GroupContext context, MpiCommunicator world, int[] members) {
        if (IntStream.of(members).distinct().count() == members.length) {
            return;
        }
        String reason =
                world.size() == 1
                        ? MpiEnvironment.alone()
                        : "each rank needs a process of its own, but their ranks in MPI are "
                                + Arrays.toString(members);
        throw new IllegalArgumentException(
                "group '" + context.name() + "' cannot use backend '" + NAME + "': " + reason);
    }

    @Override
    protected void leave() {
        group.leave();
        MpiProcess.closed(group);
    }
}
