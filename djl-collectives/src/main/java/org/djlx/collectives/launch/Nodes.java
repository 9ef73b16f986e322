// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import com.google.gson.Gson;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.NetworkInterface;
import java.net.SocketException;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.Heartbeat;
import org.djlx.collectives.internal.host.Liveness;
import org.djlx.collectives.store.PrefixStore;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.StoreTimeoutException;
import org.djlx.collectives.store.TcpStore;
import org.djlx.nativeops.host.Deadline;
import org.djlx.nativeops.host.Durations;

/**
 * Connects the launchers of a job on several nodes through the job's store, as one of them uses it.
 * One launcher serves the store and runs the {@link Coordinator}.
 *
 * <pre>
 *   nodeN         {@link Request} of the Nth launcher that comes; it comes again for each attempt
 *   answerN       its {@link Attempt}, or "refused: " and the reason
 *   beatN         its heartbeat
 *   goneN         set if it leaves
 *   outcomeG      the first {@link Result} of generation G; set once
 *   endedG        number of launchers whose ranks have ended well
 * </pre>
 *
 * <p>The records are JSON. A launcher that loses the store looks for it again: the launcher that
 * serves it may have been started anew, with an empty store. The launchers themselves carry
 * generation and failures.
 */
final class Nodes implements AutoCloseable {

    /** Exit code if a launcher has died or left. */
    static final int NODE_GONE = 1;

    /** The code of an attempt that ended because another node came; no exit code. */
    static final int NODE_COME = -1;

    static final String NODE = "node";
    static final String ANSWER = "answer";
    static final String BEAT = "beat";
    static final String GONE = "gone";
    static final String OUTCOME = "outcome";
    static final String REFUSED = "refused: ";
    static final byte[] UNSET = new byte[0];

    private static final Duration SLICE = Duration.ofMillis(500);
    private static final Duration CONNECT_TIMEOUT = Duration.ofSeconds(10);
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(5);
    private static final Duration LEAVE_TIMEOUT = Duration.ofSeconds(2);
    private static final Duration FOREVER = Duration.ofDays(3650);
    private static final AtomicInteger TOKENS = new AtomicInteger();
    private static final Gson GSON = new Gson();
    private static final String ELSEWHERE = "another node has failed or come: ";

    /** A launcher that asks to take part; {@code node} is its node rank, or -1 for any. */
    record Request(int node, int generation, int failures, String host, String job) {}

    /**
     * A start of all ranks, after attempts for any reason (its generation) and those of them that
     * failed.
     */
    record Attempt(int generation, int failures, int node, int nodes) {}

    /** How an attempt ended: 0, the exit code, or {@link #NODE_COME}; and why. */
    record Result(int code, String reason) {

        private static final String STOPPED = "stopped";

        /** Returns the result of a job that ends with this attempt. */
        static Result stopped(int code) {
            return new Result(code, STOPPED);
        }

        boolean isFinal() {
            return reason.equals(STOPPED);
        }
    }

    private final Launcher launcher;
    private final PrintStream err;
    private final int token = TOKENS.incrementAndGet(); // tells launchers of one JVM apart
    private final Thread hook = new Thread(this::leave, "tell-other-nodes");
    private volatile TcpStore server; // null if there is no connection
    private volatile Store store;
    private Coordinator coordinator; // null if another launcher serves the store
    private volatile Heartbeat heartbeat;
    private Attempt last; // null before the first
    private int failures;
    private volatile int number;
    private volatile CompletableFuture<Result> outcome = new CompletableFuture<>();

    Nodes(Launcher launcher, PrintStream err) {
        this.launcher = launcher;
        this.err = err;
        try {
            Runtime.getRuntime().addShutdownHook(hook);
        } catch (IllegalStateException e) {
            throw new CollectiveException("the launcher is being stopped", e);
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static byte[] json(Object value) {
        return bytes(GSON.toJson(value));
    }

    static <T> T read(byte[] json, Class<T> type) {
        return GSON.fromJson(new String(json, StandardCharsets.UTF_8), type);
    }

    /**
     * Waits until enough launchers have come. Throws IllegalArgumentException if this launcher is
     * refused, and CollectiveException if too few come in time.
     */
    Attempt join() throws InterruptedException {
        Deadline deadline = Deadline.after(launcher.joinTimeout);
        boolean said = false;
        while (true) {
            try {
                if (server == null) {
                    connect(deadline);
                }
                register();
                heartbeat = new Heartbeat("node-heartbeat", store, BEAT + number, beat -> {});
                start("node-store-watch", this::watchStore);
                byte[] bytes = store.get(ANSWER + number, left(deadline));
                String answer = new String(bytes, StandardCharsets.UTF_8);
                if (answer.startsWith(REFUSED)) {
                    throw new IllegalArgumentException(
                            "this launcher was refused by the job at %s: %s"
                                    .formatted(
                                            launcher.endpoint(),
                                            answer.substring(REFUSED.length())));
                }
                last = read(bytes, Attempt.class);
                outcome = new CompletableFuture<>();
                return last;
            } catch (StoreTimeoutException e) {
                throw new CollectiveException(
                        ("fewer than %s launchers came to %s within %s, or %s others run the job;"
                             + " start one on each node, or set --rdzv-conf join_timeout=SECONDS")
                                .formatted(
                                        launcher.minNodes,
                                        launcher.endpoint(),
                                        Durations.text(launcher.joinTimeout),
                                        launcher.maxNodes),
                        e);
            } catch (CollectiveException e) {
                boolean connected = server != null;
                disconnect();
                if (Thread.interrupted()) {
                    throw new InterruptedException();
                }
                if (deadline.isOver() || launcher.nodeRank == 0 && last == null) {
                    throw e;
                }
                if (!said && !connected) {
                    RankProcesses.say(err, "trying again: " + e.getMessage());
                    said = true;
                }
                Thread.sleep(SLICE.toMillis());
            }
        }
    }

    /** Takes the first number that no launcher has. */
    private void register() {
        int generation = last == null ? 0 : last.generation() + 1;
        String host = Liveness.HOST_NAME + ":" + ProcessHandle.current().pid() + ":" + token;
        byte[] own =
                json(new Request(launcher.nodeRank, generation, failures, host, launcher.job()));
        // The shutdown hook may run at any time, so number must never be that of another launcher.
        int next = number;
        do {
            next++;
        } while (!Arrays.equals(own, store.compareSet(NODE + next, UNSET, own)));
        number = next;
    }

    private void connect(Deadline deadline) {
        boolean dynamic = launcher.nodeRank < 0;
        boolean serves = dynamic ? isHere(launcher.masterAddress) : launcher.nodeRank == 0;
        Duration left = left(deadline);
        Duration turn = left.compareTo(CONNECT_TIMEOUT) < 0 ? left : CONNECT_TIMEOUT;
        try {
            server = launcher.store(serves, turn);
        } catch (CollectiveException e) {
            if (!serves || !dynamic) {
                throw e;
            }
            // Another launcher of this host serves it. If that one ends, this one tries again.
            serves = false;
            server = launcher.store(false, turn);
        }
        number = 0; // of the old store
        store = new PrefixStore("launch", server);
        coordinator = serves ? new Coordinator(store, launcher, err) : null;
    }

    private static boolean isHere(String host) {
        try {
            InetAddress address = InetAddress.getByName(host);
            return address.isLoopbackAddress()
                    || NetworkInterface.getByInetAddress(address) != null;
        } catch (UnknownHostException | SocketException e) {
            return false;
        }
    }

    private void disconnect() {
        if (heartbeat != null) {
            heartbeat.close();
        }
        if (coordinator != null) {
            coordinator.close();
        }
        if (server != null) {
            server.closeAfterOthers(CLOSE_TIMEOUT);
        }
        server = null;
    }

    /**
     * Closes the store once its server is silent, as when its host is down: all calls that wait for
     * an answer then fail at once.
     */
    private void watchStore() {
        Heartbeat beat = heartbeat;
        TcpStore watched = server;
        try {
            while (beat == heartbeat && watched == server) {
                if (beat.lost() != null) {
                    watched.close();
                    return;
                }
                Thread.sleep(SLICE.toMillis());
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private static Thread start(String name, Runnable body) {
        Thread thread = new Thread(body, name);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static Duration left(Deadline deadline) {
        return Duration.ofNanos(Math.max(1, deadline.remainingNanos()));
    }

    /** Watches the attempt on the other nodes; calls {@code onFailure} once if it fails on any. */
    void watch(Consumer<Result> onFailure) {
        CompletableFuture<Result> result = outcome;
        String key = OUTCOME + last.generation();
        start(
                "other-nodes",
                () -> {
                    try {
                        result.complete(read(store.get(key, FOREVER), Result.class));
                    } catch (CollectiveException e) {
                        String lost = "the launcher that serves the store is gone";
                        result.complete(new Result(NODE_GONE, lost));
                    }
                });
        result.thenAccept(
                known -> {
                    if (known.code() != 0) {
                        onFailure.accept(new Result(known.code(), ELSEWHERE + known.reason()));
                    }
                });
    }

    /**
     * Tells the other nodes that this node's ranks have ended well, and waits for the other nodes.
     */
    Result awaitOthers() throws InterruptedException {
        try {
            if (store.add("ended" + last.generation(), 1) == last.nodes()) {
                put(new Result(0, "all ranks have ended"));
            }
        } catch (CollectiveException e) {
            RankProcesses.say(err, e.getMessage()); // The outcome is that the store is gone.
        }
        Result result = resultOf(outcome);
        if (result.code() != 0) {
            String ended = "the ranks of this node ended well, ";
            RankProcesses.say(err, ended + ELSEWHERE + result.reason());
        }
        return result;
    }

    private static Result resultOf(CompletableFuture<Result> outcome) throws InterruptedException {
        try {
            return outcome.get();
        } catch (ExecutionException e) {
            throw new AssertionError("this future never fails", e);
        }
    }

    /** Tells the other nodes that this node failed; returns the first failure of all nodes. */
    Result fail(Result result) {
        try {
            return put(result);
        } catch (CollectiveException e) {
            return result; // The store is gone, which the other launchers notice.
        }
    }

    private Result put(Result result) {
        String key = OUTCOME + last.generation();
        return read(store.compareSet(key, UNSET, json(result)), Result.class);
    }

    /** Returns how the attempt ended; the given result if only this launcher is being stopped. */
    Result resultOr(Result stopped) {
        return outcome.getNow(stopped);
    }

    /** Prepares to join the next attempt. */
    void again(Result result) {
        heartbeat.close();
        failures = last.failures() + (result.code() == NODE_COME ? 0 : 1);
    }

    /** Tells the other launchers. If the store does not answer, they notice it 8 s later. */
    private void leave() {
        Store told = store;
        if (told == null || number == 0) {
            return;
        }
        Thread telling =
                start(
                        "leave-nodes",
                        () -> {
                            try {
                                told.set(GONE + number, UNSET);
                            } catch (CollectiveException e) {
                                return; // The store is gone, so the others notice at once.
                            }
                        });
        try {
            telling.join(LEAVE_TIMEOUT.toMillis());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void close() {
        leave();
        disconnect();
        try {
            Runtime.getRuntime().removeShutdownHook(hook);
        } catch (IllegalStateException e) {
            // The JVM is shutting down and runs the hook.
            return;
        }
    }
}
