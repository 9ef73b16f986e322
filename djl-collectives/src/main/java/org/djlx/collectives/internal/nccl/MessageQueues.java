/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.nccl;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.BiConsumer;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.StoreTimeoutException;
import org.djlx.nativeops.nccl.NcclCommunicator;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The queues for messages: one for each peer and direction, with a communicator of these two ranks
 * that is created with their first message.
 *
 * <p>The group's communicator will not do: NCCL runs the operations of one communicator one after
 * the other, whatever their streams, so that a message would wait for collectives, and two ranks
 * that first send and then receive for each other.
 */
final class MessageQueues {

    private static final Logger LOGGER = LoggerFactory.getLogger(MessageQueues.class);

    private final GroupContext context;
    private final GpuResources resources;
    private final NcclOptions options;
    private final NcclQueue.Listener listener;
    private final BiConsumer<Integer, byte[]> met;
    // By "sender-receiver"; in an order that all ranks have in common, in which they are closed.
    private final Map<String, NcclQueue> queues = new TreeMap<>();

    /**
     * Creates it, without any queue.
     *
     * @param context the group and the rank
     * @param resources what queues use
     * @param options the options
     * @param listener is told of failures
     * @param met is told which rank a queue leads to, and what {@link Peers#own} returned there
     */
    MessageQueues(
            GroupContext context,
            GpuResources resources,
            NcclOptions options,
            NcclQueue.Listener listener,
            BiConsumer<Integer, byte[]> met) {
        this.context = context;
        this.resources = resources;
        this.options = options;
        this.listener = listener;
        this.met = met;
    }

    /** The queue of messages to a rank. */
    NcclQueue to(int peer) {
        return queue(context.rank(), peer);
    }

    /** The queue of messages from a rank. */
    NcclQueue from(int peer) {
        return queue(peer, context.rank());
    }

    private synchronized NcclQueue queue(int sender, int receiver) {
        if (queues.isEmpty()) {
            LOGGER.info(
                    "group '{}': the first message from a rank to another sets up a communicator of"
                            + " these two, which takes some tenths of a second",
                    context.name());
        }
        return queues.computeIfAbsent(
                sender + "-" + receiver, key -> create(key, sender, receiver));
    }

    private NcclQueue create(String key, int sender, int receiver) {
        Verification verification = options.isVerify() ? new Verification(context) : null;
        long[] number = {0};
        return new NcclQueue(
                "messages from rank " + sender + " to " + receiver + " of " + context.name(),
                resources,
                () -> connect("message/" + key, sender, receiver),
                verification == null ? null : work -> verification.message(work, ++number[0]),
                listener);
    }

    /** The ranks meet in the store first: NCCL itself would wait for ever for one of them. */
    private NcclCommunicator connect(String key, int sender, int receiver) {
        boolean sends = sender == context.rank();
        Store store = context.store();
        List<String> ends = List.of(key + "/sender", key + "/receiver");
        String here = ends.get(sends ? 0 : 1);
        String there = ends.get(sends ? 1 : 0);
        byte[] id = sends ? NcclCommunicator.uniqueId() : new byte[0];
        byte[] process = Peers.own();
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
            met.accept(sends ? receiver : sender, other);
            return NcclCommunicator.create(
                    resources.cuda(), id, sends ? 0 : 1, 2, options.config());
        } catch (StoreTimeoutException e) {
            throw new CollectiveTimeoutException(
                    "no rank came to " + there + " within " + options.timeout(), List.of(), e);
        }
    }

    synchronized List<NcclQueue> all() {
        return new ArrayList<>(queues.values());
    }
}
