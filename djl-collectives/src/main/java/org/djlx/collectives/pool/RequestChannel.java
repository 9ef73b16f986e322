/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
import java.util.function.BiConsumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ShmOptions;
import org.djlx.collectives.SubGroups;
import org.djlx.collectives.internal.host.ControlBlock;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * What the processes of a {@link RankPool} tell each other: rank 0 its requests, the others, which
 * follow it, that they are ready and why they have failed. It goes over a group of its own in the
 * shared memory of their host, whatever the pool's group is: there who waits for a request sleeps,
 * for hours if need be, and learns of a process that has died.
 *
 * <p>A request is broadcast: its size in bytes, or what else it is, and its first bytes together,
 * and what is left after them. Reports are messages to rank 0, two of each follower at most: that
 * it is ready, and that it has failed. A follower that fails then waits for rank 0 to destroy the
 * group, so that rank 0 knows the reason before it knows that the follower is gone.
 */
final class RequestChannel implements AutoCloseable {

    private static final Duration ENDLESS = Duration.ofSeconds(Long.MAX_VALUE);
    private static final Duration PATIENCE = Duration.ofSeconds(10); // of a follower with rank 0
    private static final int FIRST_BYTES = 4096;
    private static final int REPORT_BYTES = Integer.BYTES + 4096;
    private static final int TAG = 0;
    // What a request is that has no size.
    private static final int BEGIN = -1;
    private static final int END = -2;

    private final ProcessGroup group; // whose destruction is that of the group beside which it is
    private final ProcessGroup waiting;
    private final NDManager manager;
    private final List<CompletableFuture<Void>> ready = new ArrayList<>(); // of the followers
    private boolean begun; // of the rank's thread
    private volatile boolean ending;

    private RequestChannel(ProcessGroup group) {
        this.group = group;
        waiting = group.withTimeout(ENDLESS);
        manager = NDManager.newBaseManager(group.device(), "PyTorch");
    }

    /**
     * Opens a channel; all ranks do so.
     *
     * @throws CollectiveException on all ranks, if they are not on one host
     */
    static RequestChannel open(ProcessGroup group) {
        ShmOptions options =
                ShmOptions.builder()
                        .optTimeout(group.timeout())
                        .optWarnAfter(ENDLESS) // That no request comes is nothing unusual.
                        .optBufferSize(0)
                        .build();
        return new RequestChannel(SubGroups.beside(group, "shm", options));
    }

    /**
     * Listens to the followers, on rank 0.
     *
     * @param failed is told, by a thread that must not be kept, which follower has failed, and why
     */
    void listen(BiConsumer<Integer, String> failed) {
        for (int rank = 1; rank < group.worldSize(); rank++) {
            CompletableFuture<Void> begun = new CompletableFuture<>();
            ready.add(begun);
            listen(rank, begun, failed);
            listen(rank, new CompletableFuture<>(), failed);
        }
    }

    private void listen(
            int rank, CompletableFuture<Void> begun, BiConsumer<Integer, String> failed) {
        NDArray report = Torch.empty(manager, new Shape(REPORT_BYTES), ScalarType.INT8);
        waiting.recv(report, rank, TAG)
                .getFuture()
                .whenComplete(
                        (arrays, gone) -> {
                            String reason = gone == null ? text(report) : text(gone);
                            if (reason.isEmpty()) {
                                begun.complete(null);
                            } else if (!ending) {
                                failed.accept(rank, reason);
                                begun.completeExceptionally(new CollectiveException(reason));
                            }
                        });
    }

    private static String text(NDArray report) {
        ByteBuffer bytes = ByteBuffer.wrap(report.toByteArray());
        int length = bytes.getInt();
        return new String(bytes.array(), Integer.BYTES, length, StandardCharsets.UTF_8);
    }

    /** Not what a future has put around the failure, whose message is the failure's once more. */
    private static String text(Throwable gone) {
        boolean wrapped = gone instanceof CompletionException && gone.getCause() != null;
        return String.valueOf((wrapped ? gone.getCause() : gone).getMessage());
    }

    /** On rank 0: waits until all followers are ready, and has them begin. */
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

    /** On rank 0: tells the followers that there are no more requests, if they have begun. */
    void end() {
        ending = true;
        if (begun) {
            send(END, new byte[0]);
        }
    }

    private void send(int what, byte[] bytes) {
        byte[] first = new byte[FIRST_BYTES];
        int count = Math.min(bytes.length, FIRST_BYTES - Integer.BYTES);
        ByteBuffer.wrap(first).putInt(what).put(bytes, 0, count);
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

    /** On a follower: tells rank 0 that this one is ready, and waits until all are. */
    void awaitBegin() {
        report("");
        receive(waiting);
    }

    /** On a follower: waits for a request. Returns null if there are no more. */
    byte[] receive() {
        return receive(waiting);
    }

    private byte[] receive(ProcessGroup view) {
        byte[] first = broadcast(view, empty(FIRST_BYTES));
        int what = ByteBuffer.wrap(first).getInt();
        if (what < 0) {
            return what == END ? null : new byte[0];
        }
        int count = Math.min(what, FIRST_BYTES - Integer.BYTES);
        byte[] request = Arrays.copyOfRange(first, Integer.BYTES, Integer.BYTES + what);
        if (count < what) {
            byte[] rest = broadcast(group, empty(what - count));
            System.arraycopy(rest, 0, request, count, rest.length);
        }
        return request;
    }

    private NDArray empty(int bytes) {
        return Torch.empty(manager, new Shape(bytes), ScalarType.INT8);
    }

    /** On a follower: tells rank 0 why this one has failed, as far as rank 0 is there. */
    void fail(String reason) {
        try {
            report(reason);
            ProcessGroup patient = group.withTimeout(PATIENCE);
            while (receive(patient) != null) {
                // Rank 0 did not know of it yet when it sent that.
                continue;
            }
        } catch (RuntimeException | Error e) {
            // Rank 0 has destroyed the group, or is gone. If there is no memory to tell it why,
            // it learns that this rank leaves.
            return;
        }
    }

    private void report(String reason) {
        byte[] text = ControlBlock.encoded(reason);
        byte[] bytes = new byte[REPORT_BYTES];
        ByteBuffer.wrap(bytes).putInt(text.length).put(text);
        try (NDArray tensor = manager.create(bytes)) {
            group.withTimeout(PATIENCE).send(tensor, 0, TAG).await();
        }
    }

    /** To be called when the group beside which it is has been destroyed. */
    @Override
    public void close() {
        manager.close();
    }
}
