// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import java.util.function.IntConsumer;

/**
 * One way to do an operation on one rank. It rotates through several sets of inputs, because the
 * previous call leaves its inputs in the caches.
 */
@FunctionalInterface
interface Contender extends AutoCloseable {

    /**
     * Runs the operation; on a GPU, enqueues it on the current stream. {@code turn} selects the set
     * of inputs. Returns the result, which the caller closes; null if it is in the {@link #kept}
     * array.
     */
    NDArray call(int turn);

    /** Restores the inputs that calls overwrite. */
    default void reset() {}

    /** Returns the array of the first turn's result; null if calls return their results. */
    default NDArray kept() {
        return null;
    }

    default boolean isChecked() {
        return true;
    }

    @Override
    default void close() {}

    /**
     * Writes results into its own arrays. {@code kept} is the array of the first turn's result;
     * null if results are not checked. {@code restore} restores the inputs that calls overwrite.
     */
    record IntoArrays(IntConsumer body, NDArray kept, Runnable restore, Runnable free)
            implements Contender {

        @Override
        public NDArray call(int turn) {
            body.accept(turn);
            return null;
        }

        @Override
        public void reset() {
            restore.run();
        }

        @Override
        public boolean isChecked() {
            return kept != null;
        }

        @Override
        public void close() {
            free.run();
        }
    }
}
