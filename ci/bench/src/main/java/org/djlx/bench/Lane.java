/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

/**
 * The work that a rank issues in order: a CUDA stream, or a thread. A lane has marks, numbered from
 * 0, to measure the time between them, and records work to issue it again at the cost of one call.
 */
interface Lane extends AutoCloseable {

    /** Recorded work. */
    interface Recording extends AutoCloseable {

        /** Issues all of it once. */
        void launch();

        @Override
        void close();
    }

    /** Puts a mark after all issued work; a mark that is there already moves. */
    void set(int mark);

    /** Waits until all issued work is done. */
    void synchronize();

    /** Returns the microseconds between two marks that the work has passed. */
    double micros(int from, int to);

    /**
     * Records work without running it.
     *
     * @param work issues the work on the lane; its arrays stay in place until the recording is
     *     closed
     * @return the recording, to be closed by the caller
     */
    Recording record(Runnable work);

    @Override
    void close();
}
