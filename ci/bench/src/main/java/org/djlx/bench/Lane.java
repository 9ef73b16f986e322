// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

/**
 * A queue that runs a rank's work in order: a CUDA stream, or a thread. Marks have numbers from 0;
 * the time between two marks can be measured. One call issues recorded work again.
 */
interface Lane extends AutoCloseable {

    interface Recording extends AutoCloseable {

        void launch();

        @Override
        default void close() {}
    }

    /** Sets a mark after all issued work; an earlier mark of the same number moves. */
    void set(int mark);

    /** Waits until all issued work is done. */
    void synchronize();

    /** Returns the time between two marks in microseconds; the lane must have passed both. */
    double micros(int from, int to);

    /**
     * Records work without running it. Its arrays stay in place until the caller closes the
     * recording.
     */
    Recording record(Runnable work);

    /**
     * Returns a contender that launches an empty kernel: the unit of host times, which differ
     * between machines. Null if the lane has no kernels. Owned by the lane.
     */
    default Contender bareLaunch() {
        return null;
    }

    @Override
    void close();
}
