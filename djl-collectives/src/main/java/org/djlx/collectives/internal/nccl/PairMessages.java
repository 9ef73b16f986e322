// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BiConsumer;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.DebugLevel;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.internal.gpu.GpuGroup;
import org.djlx.collectives.internal.host.RankProcess;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.StoreTimeoutException;
import org.djlx.nativeops.host.Durations;
import org.djlx.nativeops.nccl.NcclCommunicator;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Messages on pair communicators: for each peer and direction, a communicator of two ranks and a
 * queue. The first message of a queue creates its communicator. A message waits only for earlier
 * messages of its queue, so two ranks may both send first and then receive.
 */
final class PairMessages implements Messages {

    private static final Logger LOGGER = LoggerFactory.getLogger(PairMessages.class);

    private static final AtomicBoolean WARNED = new AtomicBoolean(); // see adviseEagerStart

    private final GroupContext context;
    private final GpuGroup group;
    private final NcclOptions options;
    private final BiConsumer<Integer, RankProcess> met;
    private final Map<String, Channel> channels = new HashMap<>(); // by "sender-receiver"

    /**
     * Creates no queue yet.
     *
     * @param met called with a peer's rank and process before this rank connects to the peer
     */
    PairMessages(
            GroupContext context,
            GpuGroup group,
            NcclOptions options,
            BiConsumer<Integer, RankProcess> met) {
        this.context = context;
        this.group = group;
        this.options = options;
        this.met = met;
    }

    @Override
    public Channel to(int peer) {
        return channel(context.rank(), peer);
    }

    @Override
    public Channel from(int peer) {
        return channel(peer, context.rank());
    }

    private synchronized Channel channel(int sender, int receiver) {
        return channels.computeIfAbsent(
                sender + "-" + receiver, key -> create(key, sender, receiver));
    }

    /**
     * Warns that the first message connects its two ranks, and may start NCCL, unless the ranks are
     * connected when the group is created.
     *
     * @param warned whether the warning has been logged; set to true when it is logged
     */
    static void adviseEagerStart(GroupContext context, NcclOptions options, AtomicBoolean warned) {
        if (DeviceChoice.given(context, options).isEmpty() && !warned.getAndSet(true)) {
            LOGGER.warn(
                    "group '{}': the first message from one rank to another creates an NCCL"
                            + " communicator, which takes some tenths of a second, and longer if"
                            + " NCCL has not started. Name the GPUs with"
                            + " NcclOptions.Builder.optDevices: NCCL then starts when the group is"
                            + " created, and messages use the group's communicator. This warning"
                            + " appears once per process",
                    context.name());
        }
    }

    private Channel create(String key, int sender, int receiver) {
        adviseEagerStart(context, options, WARNED);
        NcclConnection connection =
                new NcclConnection(
                        () -> connect("message/" + key, sender, receiver),
                        options.debug() == DebugLevel.DETAIL
                                ? new NcclConnection.Verifier(
                                        work -> true,
                                        new Verification(context, "verify/pair")::start)
                                : null,
                        reason -> {});
        String name = "messages from rank " + sender + " to " + receiver + " of " + context.name();
        int peer = sender == context.rank() ? 1 : 0; // in the communicator the sender is rank 0
        return new Channel(
                group.addMessages(key, name, connection), new Calls(connection, 2), peer);
    }

    /**
     * Creates the communicator after both ranks have called this: each waits for the other in the
     * store, with a timeout, because NCCL would wait without one.
     */
    private NcclCommunicator connect(String key, int sender, int receiver) {
        boolean sends = sender == context.rank();
        Store store = context.store();
        List<String> ends = List.of(key + "/sender", key + "/receiver");
        String here = ends.get(sends ? 0 : 1);
        String there = ends.get(sends ? 1 : 0);
        byte[] id = sends ? NcclCommunicator.uniqueId() : new byte[0];
        byte[] process = RankProcess.own().encoded();
        byte[] own = Arrays.copyOf(process, process.length + id.length);
        System.arraycopy(id, 0, own, process.length, id.length);
        store.set(here, own);
        try {
            byte[] other = store.get(there, options.timeout());
            context.forget(ends);
            if (!sends) {
                int begin = other.length - NcclCommunicator.UNIQUE_ID_BYTES;
                id = Arrays.copyOfRange(other, begin, other.length);
                other = Arrays.copyOf(other, begin);
            }
            met.accept(sends ? receiver : sender, RankProcess.decoded(other));
            return NcclCommunicator.create(
                    group.resources().cuda(), id, sends ? 0 : 1, 2, options.config());
        } catch (StoreTimeoutException e) {
            throw new CollectiveTimeoutException(
                    "rank %s did not connect to rank %s for their first message within %s"
                            .formatted(
                                    sends ? receiver : sender,
                                    context.rank(),
                                    Durations.text(options.timeout())),
                    List.of(),
                    e);
        }
    }
}
