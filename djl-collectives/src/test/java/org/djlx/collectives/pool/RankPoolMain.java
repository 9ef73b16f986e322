// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.pool;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.ReduceOp;

/**
 * A rank of a pool of processes, for {@link RankPoolProcessTest}. The first argument is the
 * scenario. Requests are texts; ranks answer with the sum of their results.
 */
public final class RankPoolMain {

    /** Of operations; that of starting is as long as JVMs take. */
    private static final Duration TIMEOUT = Duration.ofSeconds(6);

    private RankPoolMain() {}

    private static final class Worker implements RankWorker<String, Float> {

        private final ProcessGroup group;

        Worker(ProcessGroup group) {
            this.group = group;
        }

        @Override
        public Float serve(String request) throws InterruptedException {
            if (request.equals("fail") && group.rank() == 1) {
                throw new IllegalStateException("out of luck");
            }
            if (request.equals("hang") && group.rank() == 1
                    || request.equals("fail") && group.rank() == 2) {
                say("hangs");
                Thread.sleep(Long.MAX_VALUE);
            }
            if (request.equals("heap") && group.rank() == 1) {
                throw fillHeap();
            }
            if (request.equals("heap twice")) {
                failWhileTheHeapFills(group.rank());
            }
            try (NDManager manager = NDManager.newBaseManager(group.device())) {
                NDArray own =
                        manager.create(new float[] {request.hashCode() % 1000 + group.rank()});
                group.allReduce(own, ReduceOp.SUM).await();
                if (request.equals("late") && group.rank() == 2) {
                    Thread.sleep(500); // Rank 0 closes its pool in this time.
                }
                return own.getFloat();
            }
        }

        @Override
        public void close() {
            say("freed");
        }
    }

    private static final RequestCodec<String> CODEC =
            new RequestCodec<>() {
                @Override
                public byte[] encode(String request) {
                    if (request.isEmpty()) {
                        throw new IllegalArgumentException("an empty request");
                    }
                    return request.getBytes(StandardCharsets.UTF_8);
                }

                @Override
                public String decode(byte[] bytes) {
                    return new String(bytes, StandardCharsets.UTF_8);
                }
            };

    private static void say(String text) {
        System.out.println(text);
        System.out.flush();
    }

    private static volatile Object[] heap; // keeps the heap full
    private static final OutOfMemoryError FIRST = new OutOfMemoryError("first");
    private static volatile boolean isFull;
    private static volatile boolean hasFailed;

    /** Rank 1 takes all memory that rank 0 frees in the second after it has failed. */
    private static void failWhileTheHeapFills(int rank) {
        if (rank == 0) {
            while (!isFull) {
                Thread.onSpinWait();
            }
            hasFailed = true;
            throw FIRST;
        }
        OutOfMemoryError last = null;
        long end = Long.MAX_VALUE;
        while (System.nanoTime() < end) {
            last = fillHeap();
            isFull = true;
            end = hasFailed && end == Long.MAX_VALUE ? System.nanoTime() + 1_000_000_000 : end;
        }
        throw last;
    }

    /** Returns an OutOfMemoryError after which not even a small object fits into the heap. */
    private static OutOfMemoryError fillHeap() {
        OutOfMemoryError full = null;
        for (int length : new int[] {1 << 16, 1 << 10, 1 << 5, 1}) {
            try {
                while (true) {
                    Object[] next = new Object[length];
                    next[0] = heap;
                    heap = next;
                }
            } catch (OutOfMemoryError e) {
                full = e;
            }
        }
        return full;
    }

    /** Fails a pool of threads for want of memory, and frees the heap when the caller knows. */
    private static void useUpHeap(String request) throws InterruptedException {
        try (RankPool<String, Float> pool =
                RankPool.start("pool", ProcessGroups.local(2), Worker::new)) {
            check(pool, "first");
            CompletableFuture<Float> failing = pool.submit(request);
            try {
                failing.get();
            } catch (ExecutionException | OutOfMemoryError e) {
                heap = null;
            }
            say("failed: " + reason(failing));
        }
        say("ended");
    }

    /** Runs this rank. */
    public static void main(String[] args) throws Exception {
        if (args[0].startsWith("heap")) {
            useUpHeap(args[0]);
            return;
        }
        ProcessGroup group = ProcessGroups.init("shm").withTimeout(TIMEOUT);
        boolean starts = !args[0].equals("no-start") || group.rank() != 2;
        RankPool<String, Float> pool =
                RankPool.join(
                        "pool",
                        group,
                        CODEC,
                        own -> {
                            if (!starts) {
                                throw new IllegalStateException("no weights");
                            }
                            if (args[0].equals("serve") && own.rank() == 1) {
                                // Ranks with a worker wait for the others without a timeout.
                                Thread.sleep(TIMEOUT.plusSeconds(1).toMillis());
                            }
                            return new Worker(own);
                        });
        try (pool) {
            if (group.rank() == 0) {
                lead(pool, args[0]);
            } else {
                expect("does not accept requests", () -> pool.submit("x"));
                pool.awaitEnd();
            }
        } finally {
            say("ended: " + pool.failure());
        }
    }

    private static void lead(RankPool<String, Float> pool, String scenario) throws Exception {
        check(pool, "first");
        switch (scenario) {
            case "serve" -> {
                serveCallers(pool);
                check(pool, "more than goes with one broadcast ".repeat(1000));
                expect("an empty request", () -> pool.submit(""));
                say("idle");
                Thread.sleep(TIMEOUT.plusSeconds(1).toMillis());
                say("late");
                check(pool, "late");
            }
            case "fail", "hang" -> {
                List<CompletableFuture<Float>> pending =
                        List.of(pool.submit(scenario), pool.submit("pending"));
                for (CompletableFuture<Float> each : pending) {
                    say("failed: " + reason(each));
                }
                say("later: " + reason(pool.submit("later")));
            }
            case "idle" -> {
                CompletableFuture<CollectiveException> failed = new CompletableFuture<>();
                pool.whenFailed().thenAccept(failed::complete);
                say("idle");
                say("told: " + failed.get().getMessage());
                say("caused by: " + failed.get().getCause());
            }
            default -> throw new IllegalArgumentException(scenario);
        }
    }

    private static void expect(String message, Runnable call) {
        try {
            call.run();
        } catch (IllegalArgumentException | IllegalStateException e) {
            if (e.getMessage().contains(message)) {
                return;
            }
            throw e;
        }
        throw new AssertionError("no " + message);
    }

    private static String reason(CompletableFuture<Float> future) throws InterruptedException {
        try {
            return "not at all: " + future.get();
        } catch (ExecutionException e) {
            return e.getCause().getMessage();
        }
    }

    private static void check(RankPool<String, Float> pool, String request) {
        int ranks = pool.size();
        float expected = ranks * (request.hashCode() % 1000) + ranks * (ranks - 1) / 2;
        float got = pool.submit(request).join();
        if (got != expected) {
            throw new AssertionError(request + ": " + got + " instead of " + expected);
        }
    }

    private static void serveCallers(RankPool<String, Float> pool) {
        List<CompletableFuture<Void>> callers = new ArrayList<>();
        for (int caller = 0; caller < 4; caller++) {
            String prefix = "caller " + caller + " ";
            callers.add(
                    CompletableFuture.runAsync(
                            () -> {
                                for (int i = 0; i < 50; i++) {
                                    check(pool, prefix + i);
                                }
                            },
                            task -> new Thread(task).start()));
        }
        callers.forEach(CompletableFuture::join);
    }
}
