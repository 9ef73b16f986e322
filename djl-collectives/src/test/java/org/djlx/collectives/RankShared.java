/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.function.Supplier;

/**
 * What all ranks of a test would compute alike. Of those that are threads of this process the first
 * one that asks computes it, and the others wait for it: 8 ranks that make the inputs of all 8 do
 * so 64 times otherwise.
 */
public final class RankShared {

    // Ranks that run one case after the other are at most a few cases apart.
    private static final int KEPT = 4;
    private static final Map<Object, FutureTask<?>> LATEST = new LinkedHashMap<>();

    private RankShared() {}

    /**
     * Computes something, unless it is among the latest few that were computed.
     *
     * @param key what it depends on
     * @param compute makes it, on the calling thread; its result is not changed
     * @return the result, the same for all who ask with an equal key
     */
    @SuppressWarnings("unchecked") // A key says what it is of.
    public static <T> T get(Object key, Supplier<T> compute) {
        FutureTask<?> task;
        synchronized (LATEST) {
            task = LATEST.computeIfAbsent(key, missing -> new FutureTask<>(compute::get));
            if (LATEST.size() > KEPT) {
                LATEST.remove(LATEST.keySet().iterator().next());
            }
        }
        task.run(); // Does nothing where another thread does or did.
        try {
            return (T) task.get();
        } catch (ExecutionException | InterruptedException e) {
            throw new AssertionError("a reference was not computed", e);
        }
    }
}
