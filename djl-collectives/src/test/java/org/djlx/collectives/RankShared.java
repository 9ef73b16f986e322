// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.function.Supplier;

/**
 * Results that all ranks of a test need. If ranks are threads, the first one computes a result and
 * the others wait for it. Otherwise 8 ranks would create the inputs of all 8 ranks 64 times.
 */
public final class RankShared {

    // Ranks that run one case after the other are at most a few cases apart.
    private static final int KEPT = 4;
    private static final Map<Object, FutureTask<?>> LATEST = new LinkedHashMap<>();

    private RankShared() {}

    /**
     * Returns a result, computed unless it is among the latest few results.
     *
     * @param key all parameters of the result
     * @param compute makes it, on the calling thread; its result is not changed
     * @return the result, the same object for all calls with an equal key
     */
    @SuppressWarnings("unchecked") // The key determines the type.
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
