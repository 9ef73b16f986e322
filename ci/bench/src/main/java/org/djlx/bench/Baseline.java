/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;

/**
 * The collectives that ours are compared with, on bfloat16 arrays, which stay in use until the
 * rank's stream has passed the call. They sum.
 */
interface Baseline extends AutoCloseable {

    /** Reduces in place. */
    void allReduce(NDArray tensor);

    /** Gathers the ranks' parts, in rank order. */
    void allGather(NDArray all, NDArray part);

    /** Reduces, and leaves this rank's part. */
    void reduceScatter(NDArray part, NDArray all);

    /** Memory on which the collectives are faster, if there is such. */
    interface Window extends AutoCloseable {

        /** Returns a view of an array that begins at an offset in bytes. */
        NDArray view(NDManager manager, long offset, Shape shape);

        @Override
        void close();
    }

    /**
     * Makes a window; all ranks do so together.
     *
     * @param byteSize its size
     * @return the window, to be closed by the caller; null if there is no such memory, on all ranks
     */
    Window window(long byteSize);

    @Override
    void close();
}
