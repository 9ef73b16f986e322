// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import ai.djl.pytorch.jni.JniUtils;
import org.djlx.nativeops.ContextLoader;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Chooses the number of libtorch's threads for a CPU rank. The engine {@code PyTorch-P2P} calls
 * {@link #choose} itself; programs that run ranks as threads call it before they compute.
 *
 * <p>libtorch itself starts a thread for each core in every rank. Its threads wait for each other
 * after each operation, so one thread without a core slows the rank down to a tenth.
 */
public final class TorchThreads {

    private static final Logger LOG = LoggerFactory.getLogger(TorchThreads.class);
    private static final String PROPERTY = "ai.djl.pytorch.num_threads";
    private static final String VARIABLE = "OMP_NUM_THREADS";

    private static int chosen; // 0 until threads are chosen

    private TorchThreads() {}

    /**
     * {@return the threads of a rank: the cores divided among the ranks of this host, one core left
     * for other threads, 1 or more}
     */
    public static int share(int cores, int ranks) {
        return Math.max(1, (cores - 1) / ranks);
    }

    /**
     * Sets libtorch's threads to the {@linkplain #share share} of a rank, and logs the choice once.
     * Does nothing if the user set {@code OMP_NUM_THREADS} or {@code ai.djl.pytorch.num_threads}.
     *
     * @param ranksHere the ranks that this process runs; with {@code LOCAL_WORLD_SIZE} set, that
     *     many processes share the cores
     */
    public static synchronized void choose(int ranksHere) {
        if (System.getenv(VARIABLE) != null
                || chosen == 0 && System.getProperty(PROPERTY) != null) {
            return;
        }
        int ranks = ranksHere * processesHere();
        int cores = Runtime.getRuntime().availableProcessors();
        int threads = share(cores, ranks);
        if (threads == chosen) {
            return;
        }
        chosen = threads;
        System.setProperty(PROPERTY, Integer.toString(threads));
        // libtorch may be loaded already, and then ignores the property.
        ContextLoader.pytorch();
        JniUtils.setNumThreads(threads);
        LOG.info(
                "libtorch threads per rank: {} (cores: {}, ranks: {}); {} or -D{} overrides this",
                threads,
                cores,
                ranks,
                VARIABLE,
                PROPERTY);
    }

    /** Calls {@link #choose} unless the program has already called it. */
    public static synchronized void chooseFirst(int ranksHere) {
        if (chosen == 0) {
            choose(ranksHere);
        }
    }

    private static int processesHere() {
        try {
            return Math.max(
                    1, Integer.parseInt(LaunchEnvironment.current().get("LOCAL_WORLD_SIZE")));
        } catch (NumberFormatException e) {
            return 1; // Not set, or invalid, which the launcher reports.
        }
    }
}
