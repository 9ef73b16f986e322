// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.internal.gpu.QueuedWork;
import org.djlx.collectives.internal.host.CallWords;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.LongWaits;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.store.StoreTimeoutException;
import org.djlx.nativeops.host.Deadline;

/**
 * Compares calls with the other ranks' calls through the group's store, before they run. For
 * debugging: the host waits for the other ranks in each call. The counterpart of c10d's {@code
 * TORCH_DISTRIBUTED_DEBUG=DETAIL}.
 */
final class Verification {

    private final GroupContext context;
    private final String root; // of the keys
    private final Map<String, Integer> messages = new HashMap<>(); // started, by "sender-receiver"

    /** Creates the verification of one connection, with the root of its keys. */
    Verification(GroupContext context, String root) {
        this.context = context;
        this.root = root + "/";
    }

    /**
     * Publishes a call. The result waits for the other ranks' calls and compares: a collective with
     * those of the same sequence number, a message with the peer's message of the same number in
     * its direction. Not thread-safe.
     */
    Runnable start(QueuedWork work) {
        if (!work.operation().type().isPointToPoint()) {
            List<Integer> ranks = IntStream.range(0, context.worldSize()).boxed().toList();
            String key = root + work.operation().sequence();
            publish(key, work);
            return () -> compareCollectives(work, exchanged(key, ranks, work));
        }
        boolean sends = work.operation().type() == OpType.SEND;
        int sender = sends ? context.rank() : work.peer();
        int receiver = sends ? work.peer() : context.rank();
        String direction = sender + "-" + receiver;
        String key = root + direction + "/" + messages.merge(direction, 1, Integer::sum);
        publish(key, work);
        return () ->
                compareMessages(exchanged(key, List.of(sender, receiver), work), sender, receiver);
    }

    private void compareCollectives(QueuedWork work, List<long[]> calls) {
        Operation operation = work.operation();
        int n = context.worldSize();
        if (calls.stream().map(CallWords::describe).distinct().count() > 1) {
            throw GroupErrors.disagreement(operation, context.name(), calls);
        }
        if (work.call().detail().length > 0) {
            // An all-to-all: the bytes to each rank, then the bytes expected from each rank.
            int sent = CallWords.COUNT;
            GroupErrors.requireSizes(
                    operation,
                    n,
                    (from, to) -> calls.get(from)[sent + to],
                    (from, to) -> calls.get(to)[sent + n + from]);
        }
    }

    private static void compareMessages(List<long[]> calls, int sender, int receiver) {
        for (int word = CallWords.COUNT; word < calls.get(0).length; word++) {
            if (calls.get(0)[word] != calls.get(1)[word]) {
                throw new CollectiveMismatchException(
                        ("%s of rank %s does not match %s of rank %s: send and recv must have the"
                             + " same element type, number of elements and tag, and be called in"
                             + " the same order, because NCCL ignores tags")
                                .formatted(
                                        CallWords.describe(calls.get(0)),
                                        sender,
                                        CallWords.describe(calls.get(1)),
                                        receiver));
            }
        }
    }

    private void publish(String key, QueuedWork work) {
        context.store().set(key + "/" + context.rank(), encode(work));
    }

    private List<long[]> exchanged(String key, List<Integer> ranks, QueuedWork work) {
        List<String> keys = ranks.stream().map(rank -> key + "/" + rank).toList();
        try {
            List<byte[]> calls = await(key, keys, ranks, work);
            context.forget(keys);
            return calls.stream().map(Verification::decode).toList();
        } catch (StoreTimeoutException e) {
            throw GroupErrors.timedOut(
                    work.operation(), context.rank(), missing(key, ranks, e), omission(work), e);
        }
    }

    private List<byte[]> await(
            String key, List<String> keys, List<Integer> ranks, QueuedWork work) {
        Operation operation = work.operation();
        Deadline deadline = Deadline.after(operation.timeout());
        Duration warnAfter = context.options().warnAfter();
        if (warnAfter.compareTo(operation.timeout()) < 0) {
            try {
                return context.store().multiGet(keys, warnAfter);
            } catch (StoreTimeoutException e) {
                List<Integer> missing = missing(key, ranks, e);
                LongWaits.warnOnce(operation, context.rank(), missing, warnAfter.toNanos());
            }
        }
        return context.store().multiGet(keys, Duration.ofNanos(deadline.remainingNanos()));
    }

    private static List<Integer> missing(
            String key, List<Integer> ranks, StoreTimeoutException timeout) {
        return ranks.stream()
                .filter(rank -> timeout.missingKeys().contains(key + "/" + rank))
                .toList();
    }

    private static String omission(QueuedWork work) {
        OpType type = work.operation().type();
        return type == OpType.RECV
                ? "did not send"
                : type == OpType.SEND ? "did not receive it" : "did not arrive";
    }

    private static byte[] encode(QueuedWork work) {
        long[] detail = work.call().detail();
        long[] words = new long[CallWords.COUNT + detail.length];
        CallWords.put(words, work.operation().signature(), false);
        System.arraycopy(detail, 0, words, CallWords.COUNT, detail.length);
        ByteBuffer bytes = ByteBuffer.allocate(words.length * Long.BYTES);
        bytes.asLongBuffer().put(words);
        return bytes.array();
    }

    private static long[] decode(byte[] bytes) {
        long[] words = new long[bytes.length / Long.BYTES];
        ByteBuffer.wrap(bytes).asLongBuffer().get(words);
        return words;
    }
}
