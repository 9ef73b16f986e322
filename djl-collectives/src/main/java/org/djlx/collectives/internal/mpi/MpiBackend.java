// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.mpi;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.internal.cpu.CpuBackend;
import org.djlx.collectives.internal.cpu.MessageQueue;
import org.djlx.collectives.internal.cpu.OpQueue;
import org.djlx.collectives.internal.cpu.Reducer;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.Peers;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.nativeops.mpi.MpiCommunicator;

/** The {@code mpi} backend of one rank. */
final class MpiBackend extends CpuBackend {

    static final String NAME = "mpi";

    private final MpiGroup group;
    private final Reducer reducer;
    private final OpQueue queue;
    private final MessageQueue messages;
    private boolean closed;

    private MpiBackend(GroupContext context, MpiCommunicator comm, Peers peers) {
        super(NAME + "-" + context.name() + "-" + context.rank());
        int rank = context.rank();
        String thread = "mpi-" + context.name() + "-rank-" + rank;
        group = new MpiGroup(comm, context.name(), peers);
        MpiProcess.opened(group);
        reducer = new Reducer(manager, new MpiSums(group::add));
        MpiCollectives collectives = new MpiCollectives(group, reducer);
        int first = rank == 0 ? 1 : 0;
        messages =
                new MessageQueue(
                        thread + "-p2p", group, peer -> new MpiChannel(group, peer, peer == first));
        queue = new OpQueue(thread, group, 1);
        start(group, collectives, queue, messages);
        try {
            // Afterwards no peer needs the store, so this rank may close the store's server.
            collectives.begin(context.joining());
        } catch (RuntimeException | Error e) {
            group.fail(GroupErrors.failed("creating group '" + context.name() + "'", e));
            close();
            throw e;
        }
    }

    static MpiBackend create(GroupContext context) {
        if (context.options().getClass() != BackendOptions.class) {
            throw new IllegalArgumentException(
                    "backend '%s' takes BackendOptions, not %s"
                            .formatted(NAME, context.options().getClass().getSimpleName()));
        }
        MpiCommunicator world = MpiProcess.world();
        byte[] process = Peers.own();
        int size = 2 * Integer.BYTES + process.length;
        int tag = MpiProcess.newTag(world);
        byte[] own =
                ByteBuffer.allocate(size).putInt(world.rank()).putInt(tag).put(process).array();
        List<byte[]> ranks = context.exchange(NAME, own);
        int[] members = ranks.stream().mapToInt(rank -> ByteBuffer.wrap(rank).getInt()).toArray();
        requireProcesses(context, world, members);
        // All members have exchanged their ranks, so this does not wait for long.
        tag = ByteBuffer.wrap(ranks.get(0)).getInt(Integer.BYTES);
        MpiCommunicator comm = world.create(members, tag);
        List<byte[]> processes =
                ranks.stream()
                        .map(r -> Arrays.copyOfRange(r, 2 * Integer.BYTES, r.length))
                        .toList();
        return new MpiBackend(context, comm, Peers.of(context, processes));
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
    public String name() {
        return NAME;
    }

    @Override
    public synchronized void close() {
        if (closed) {
            return;
        }
        closed = true;
        group.beginClose();
        try {
            queue.close();
        } finally {
            try {
                messages.close();
            } finally {
                group.leave();
                MpiProcess.closed(group);
            }
        }
        reducer.close();
        manager.close();
    }
}
