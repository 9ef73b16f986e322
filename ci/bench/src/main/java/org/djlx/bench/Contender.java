/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import ai.djl.ndarray.NDArray;

/**
 * One of several ways to do an operation, as one rank does it. It has prepared inputs for several
 * turns and goes through them, so that none is still in a cache from the call before.
 */
@FunctionalInterface
interface Contender extends AutoCloseable {

    /**
     * Does it; on a GPU, enqueues it on the current stream.
     *
     * @param turn whose inputs
     * @return the result, which the caller closes; null if it is in an array that is kept
     */
    NDArray call(int turn);

    /** Restores inputs that calls overwrite. */
    default void reset() {}

    /**
     * Returns where the result of the first turn is kept.
     *
     * @return the array; null if calls return their results
     */
    default NDArray kept() {
        return null;
    }

    /** Whether the result is to be compared with what is right. */
    default boolean isChecked() {
        return true;
    }

    @Override
    default void close() {}
}
