/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples;

/** Gives ranks that are threads their share of the cores. */
final class ThreadsPerRank {

    private static final String PROPERTY = "ai.djl.pytorch.num_threads";

    private ThreadsPerRank() {}

    /**
     * Limits libtorch's threads, which by default are as many as there are cores for each rank.
     * Takes effect if it comes before the engine is loaded, and unless the user has set a limit.
     */
    static void limit(int worldSize) {
        if (System.getProperty(PROPERTY) == null) {
            int threads = Math.max(1, Runtime.getRuntime().availableProcessors() / worldSize);
            System.setProperty(PROPERTY, Integer.toString(threads));
        }
    }
}
