// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.launch;

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.IntConsumer;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.store.PrefixStore;
import org.djlx.collectives.store.Store;
import org.djlx.collectives.store.StoreTimeoutException;

/**
 * Connects the launchers of a job on several nodes through the job's store. They agree on the job's
 * size, the failure of a node, and the end of all nodes. A launcher with another job size or a
 * duplicate rank is refused; the other launchers print the reason and the missing nodes.
 *
 * <p>A killed launcher or a lost host cannot report its end. Node 0 serves the store, so the other
 * launchers notice the end of node 0. The end of another node shows as failed operations of the
 * ranks.
 */
final class Nodes implements AutoCloseable {

    /** Exit code of the other launchers if node 0 disappears. */
    private static final int NODE_GONE = 1;

    /**
     * Timeout of a launcher's wait for the other launchers after its own ranks have ended;
     * torchrun's value.
     */
    private static final Duration PATIENCE = Duration.ofMinutes(5);

    private static final Duration LONG = Duration.ofDays(1);
    private static final String OUTCOME = "outcome"; // 0, or the exit code
    private static final String REFUSED =
            "refused"; // key of the number of refusals; with a number appended, of a reason
    private static final byte[] UNSET = new byte[0];

    private final Store store;
    private final int nodes;
    private final int node;
    private final IntConsumer onFailure;
    private final PrintStream err;
    private final Thread hook = new Thread(this::close, "tell-other-nodes");
    private final CountDownLatch ended = new CountDownLatch(1);
    private volatile int code; // exit code of the first failed node
    private volatile boolean done; // this node's ranks have ended, or are being stopped

    /**
     * Joins the other launchers.
     *
     * @param err for messages about other nodes
     * @param onFailure called once with the exit code if another node fails
     * @throws IllegalArgumentException if launchers were started with different sizes, or with the
     *     same rank
     */
    Nodes(
            Store jobStore,
            int nodes,
            int node,
            int processes,
            PrintStream err,
            IntConsumer onFailure) {
        store = new PrefixStore("launch", jobStore);
        this.nodes = nodes;
        this.node = node;
        this.err = err;
        this.onFailure = onFailure;
        checkAlike(nodes + " nodes of " + processes + " processes");
        start("other-nodes", this::watch);
        start("refused-nodes", this::watchRefusals);
        try {
            Runtime.getRuntime().addShutdownHook(hook);
        } catch (IllegalStateException e) {
            close(); // The JVM is shutting down: no rank will be started here.
        }
    }

    private static void start(String name, Runnable body) {
        Thread thread = new Thread(body, name);
        thread.setDaemon(true);
        thread.start();
    }

    private void checkAlike(String job) {
        String first = text(store.compareSet("job", UNSET, bytes(job)));
        if (!first.equals(job)) {
            throw refuse(
                    "this launcher has "
                            + job
                            + " (--nnodes, --nproc), but another one with the same --master-addr"
                            + " and --master-port has "
                            + first,
                    "it has " + job + " (--nnodes, --nproc), this job has " + first);
        }
        if (store.add("node" + node, 1) > 1) {
            String taken = "--node-rank " + node + " is taken by another launcher";
            throw refuse(taken + "; give each launcher its own", taken);
        }
    }

    /** Reports to the other launchers that this one was refused; returns the exception to throw. */
    private IllegalArgumentException refuse(String message, String reason) {
        store.set(REFUSED + store.add(REFUSED, 1), bytes("a launcher was refused: " + reason));
        return new IllegalArgumentException(message);
    }

    /**
     * Prints why launchers are refused, because this node's ranks may wait for a refused launcher.
     */
    private void watchRefusals() {
        try {
            for (int number = 1; ; number++) {
                String reason = text(store.get(REFUSED + number, LONG));
                String missing =
                        IntStream.range(0, nodes)
                                .filter(other -> !store.check(List.of("node" + other)))
                                .mapToObj(Integer::toString)
                                .collect(Collectors.joining(", "));
                String rest = missing.isEmpty() ? "" : "; still waiting for node(s) " + missing;
                RankProcesses.say(err, reason + rest);
            }
        } catch (CollectiveException e) {
            return; // The job has ended, or no launcher was refused in a day.
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private void watch() {
        String outcome = null;
        while (outcome == null) {
            try {
                outcome = text(store.get(OUTCOME, LONG));
            } catch (StoreTimeoutException e) {
                continue;
            } catch (CollectiveException e) {
                // The store is gone: node 0 ended. This is a failure unless this node's ranks are
                // done.
                outcome = Integer.toString(done ? 0 : NODE_GONE);
            }
        }
        code = Integer.parseInt(outcome);
        if (code != 0 && !done) {
            onFailure.accept(code);
        }
        ended.countDown();
    }

    /**
     * Reports to the other nodes that this node's ranks ended with code 0, and waits for the other
     * nodes.
     *
     * @return 0, or the exit code of a node that failed
     */
    int awaitOthers() throws InterruptedException {
        done = true;
        if (store.add("ended", 1) == nodes) {
            store.compareSet(OUTCOME, UNSET, bytes("0"));
        }
        if (!ended.await(PATIENCE.toMillis(), TimeUnit.MILLISECONDS)) {
            String store = node == 0 ? "; their ranks lose the store" : "";
            RankProcesses.say(err, "other nodes still run, and are not waited for" + store);
        } else if (code != 0) {
            RankProcesses.say(err, "the ranks of this node ended well, another node has failed");
        }
        return code;
    }

    /** Reports to the other nodes that this node failed, unless another node failed before. */
    void fail(int exitCode) {
        done = true;
        try {
            store.compareSet(OUTCOME, UNSET, bytes(Integer.toString(exitCode)));
        } catch (CollectiveException e) {
            // Node 0 is gone with the store. The other launchers notice this.
            return;
        }
    }

    /** If this node's ranks have not ended, reports to the other nodes that it was stopped. */
    @Override
    public void close() {
        if (!done) {
            fail(NODE_GONE);
        }
        try {
            Runtime.getRuntime().removeShutdownHook(hook);
        } catch (IllegalStateException e) {
            // The JVM is shutting down and runs the hook.
            return;
        }
    }
}
