/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

/**
 * The collectives of another library, to compare with, on bfloat16 arrays; reductions are sums.
 * Arrays stay in use until the rank's stream has passed the call.
 */
interface Baseline extends AutoCloseable {

    /** All-reduces in place. */
    void allReduce(NDArray tensor);

    /** All-gathers the ranks' parts in rank order. */
    void allGather(NDArray all, NDArray part);

    /** Reduce-scatters; {@code part} gets this rank's part. */
    void reduceScatter(NDArray part, NDArray all);

    /** Memory on which the collectives are faster. */
    interface Window extends AutoCloseable {

        /** Returns a view of an array that begins at an offset in bytes. */
        NDArray view(NDManager manager, long offset, Shape shape);

        @Override
        void close();
    }

    /**
     * Creates a window; all ranks call this together.
     *
     * @param byteSize the size in bytes
     * @return the window, to be closed by the caller; null if there is no such memory, on all ranks
     */
    Window window(long byteSize);

    @Override
    void close();
}
