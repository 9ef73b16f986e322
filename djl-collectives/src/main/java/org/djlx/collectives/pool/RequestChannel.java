// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.pool;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.BiConsumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.internal.host.ControlBlock;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Carries requests and reports between the processes of a {@link RankPool}. It uses its own {@code
 * shm} group, whatever the backend of the pool's group, because there a rank can sleep for hours
 * while it waits for a request and still notices that a process has died.
 *
 * <ul>
 *   <li>Rank 0 broadcasts a request in one or two parts. The first part has an int (the size in
 *       bytes, or a negative code) and the first bytes; the second part has the rest.
 *   <li>A follower sends rank 0 two reports: ready (empty text), and ended (empty text) or failed
 *       (the reason). Rank 0 waits for the second, so that no follower leaves before. Rank 0 sends
 *       each follower one report: end (empty text). If rank 0 leaves without it, the pool has
 *       failed, and a follower learns of that while it serves a request.
 *   <li>A follower that has failed waits until rank 0 destroys the group. Otherwise rank 0 could
 *       notice that the follower is gone before it has received the reason.
 * </ul>
 */
final class RequestChannel implements AutoCloseable {

    private static final Duration ENDLESS = Duration.ofSeconds(Long.MAX_VALUE);
    private static final Duration REPORT_TIMEOUT = Duration.ofSeconds(10);
    private static final int FIRST_BYTES = 4096;
    private static final int REPORT_BYTES = Integer.BYTES + 4096;
    private static final int TAG = 0;
    // Codes in place of a size.
    private static final int BEGIN = -1;
    private static final int END = -2;

    private final ProcessGroup group; // destroyed with its parent, the pool's group
    private final ProcessGroup waiting; // view without a timeout
    private final NDManager manager;
    private final List<CompletableFuture<Void>> ready = new ArrayList<>(); // one per follower
    private final List<CompletableFuture<Void>> ended = new ArrayList<>(); // one per follower
    private boolean begun; // confined to the rank's thread
    private volatile boolean ending;

    private RequestChannel(ProcessGroup group) {
        this.group = group;
        waiting = group.withTimeout(ENDLESS);
        manager = NDManager.newBaseManager(group.device(), "PyTorch");
    }

    /** Opens a channel. All ranks call it; it throws on all ranks if they are not on one host. */
    static RequestChannel open(ProcessGroup group) {
        ShmOptions options =
                ShmOptions.builder()
                        .optTimeout(group.timeout())
                        .optWarnAfter(ENDLESS) // An idle pool is not worth a warning.
                        .optBufferSize(0)
                        .build();
        return new RequestChannel(group.newGroup("shm", options));
    }

    /**
     * Receives reports: on rank 0, those of the followers; on a follower, that of rank 0. Calls
     * {@code failed} with the rank and the reason of a failed follower, or with this rank and the
     * end of rank 0, on a thread of the group, which it must not block.
     */
    void listen(BiConsumer<Integer, String> failed) {
        if (group.rank() > 0) {
            BiConsumer<Integer, String> lost =
                    (root, reason) -> failed.accept(group.rank(), reason);
            listen(0, new CompletableFuture<>(), lost);
        }
        for (int rank = 1; group.rank() == 0 && rank < group.worldSize(); rank++) {
            CompletableFuture<Void> begun = new CompletableFuture<>();
            ready.add(begun);
            listen(rank, begun, failed);
            CompletableFuture<Void> end = new CompletableFuture<>();
            ended.add(end);
            listen(rank, end, failed);
        }
    }

    private void listen(
            int rank, CompletableFuture<Void> reported, BiConsumer<Integer, String> failed) {
        NDArray report = Torch.empty(manager, new Shape(REPORT_BYTES), ScalarType.INT8);
        waiting.recv(report, rank, TAG)
                .getFuture()
                .whenComplete(
                        (arrays, gone) -> {
                            String reason = gone == null ? text(report) : text(gone);
                            if (reason.isEmpty() || ending) {
                                reported.complete(null);
                            } else {
                                failed.accept(rank, reason);
                                reported.completeExceptionally(new CollectiveException(reason));
                            }
                        });
    }

    private static String text(NDArray report) {
        ByteBuffer bytes = ByteBuffer.wrap(report.toByteArray());
        int length = bytes.getInt();
        return new String(bytes.array(), Integer.BYTES, length, StandardCharsets.UTF_8);
    }

    /** Returns the message of a failure, without the CompletionException around it. */
    private static String text(Throwable gone) {
        boolean wrapped = gone instanceof CompletionException && gone.getCause() != null;
        return String.valueOf((wrapped ? gone.getCause() : gone).getMessage());
    }

    /** On rank 0: waits until all followers are ready, then starts them. */
    void begin() throws InterruptedException, ExecutionException {
        for (CompletableFuture<Void> follower : ready) {
            follower.get();
        }
        send(BEGIN, new byte[0]);
        begun = true;
    }

    /** On rank 0: sends a request. */
    void send(byte[] request) {
        send(request.length, request);
    }

    /** On rank 0: announces the end of requests to the followers, if they have been started. */
    void end() {
        ending = true;
        if (begun) {
            for (int rank = 1; rank < group.worldSize(); rank++) {
                report("", rank);
            }
            send(END, new byte[0]);
            awaitFollowers();
        }
    }

    private void awaitFollowers() {
        CompletableFuture<Void> all =
                CompletableFuture.allOf(ended.toArray(CompletableFuture<?>[]::new));
        try {
            all.get(REPORT_TIMEOUT.toMillis(), TimeUnit.MILLISECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (ExecutionException | TimeoutException e) {
            return; // It has failed, or is stopped: the pool ends without it.
        }
    }

    private void send(int sizeOrCode, byte[] bytes) {
        byte[] first = new byte[FIRST_BYTES];
        int count = Math.min(bytes.length, FIRST_BYTES - Integer.BYTES);
        ByteBuffer.wrap(first).putInt(sizeOrCode).put(bytes, 0, count);
        broadcast(group, manager.create(first));
        if (count < bytes.length) {
            byte[] rest = Arrays.copyOfRange(bytes, count, bytes.length);
            broadcast(group, manager.create(rest));
        }
    }

    private static byte[] broadcast(ProcessGroup view, NDArray tensor) {
        try (tensor) {
            view.broadcast(tensor, 0).await();
            return view.rank() == 0 ? null : tensor.toByteArray();
        }
    }

    /** On a follower: reports that it is ready, and waits until rank 0 starts it. */
    void awaitBegin() {
        report("", 0);
        receive(waiting);
    }

    /** On a follower: waits for a request; returns null at the end of requests. */
    byte[] receive() {
        byte[] request = receive(waiting);
        if (request == null) {
            try {
                report("", 0);
            } catch (CollectiveException e) {
                return null; // Rank 0 no longer waits for it.
            }
        }
        return request;
    }

    private byte[] receive(ProcessGroup view) {
        byte[] first = broadcast(view, empty(FIRST_BYTES));
        int size = ByteBuffer.wrap(first).getInt();
        if (size < 0) {
            return size == END ? null : new byte[0];
        }
        int count = Math.min(size, FIRST_BYTES - Integer.BYTES);
        byte[] request = Arrays.copyOfRange(first, Integer.BYTES, Integer.BYTES + size);
        if (count < size) {
            byte[] rest = broadcast(group, empty(size - count));
            System.arraycopy(rest, 0, request, count, rest.length);
        }
        return request;
    }

    private NDArray empty(int bytes) {
        return Torch.empty(manager, new Shape(bytes), ScalarType.INT8);
    }

    /** On a follower: reports the reason of its failure to rank 0, if rank 0 still exists. */
    void fail(String reason) {
        try {
            report(reason, 0);
            ProcessGroup view = group.withTimeout(REPORT_TIMEOUT);
            while (receive(view) != null) {
                // Sent before rank 0 received the report.
                continue;
            }
        } catch (RuntimeException | Error e) {
            // Rank 0 has destroyed the group or died; or memory has run out, and rank 0 only
            // notices that this rank leaves.
            return;
        }
    }

    private void report(String reason, int rank) {
        byte[] text = ControlBlock.encoded(reason);
        byte[] bytes = new byte[REPORT_BYTES];
        ByteBuffer.wrap(bytes).putInt(text.length).put(text);
        try (NDArray tensor = manager.create(bytes)) {
            group.withTimeout(REPORT_TIMEOUT).send(tensor, rank, TAG).await();
        }
    }

    /** Frees the channel's memory; called after the pool's group has been destroyed. */
    @Override
    public void close() {
        manager.close();
    }
}
