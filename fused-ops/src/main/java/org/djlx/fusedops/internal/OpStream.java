/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.internal;

import ai.djl.ndarray.NDArray;
import java.util.List;
import org.djlx.collectives.ReduceOp;

/**
 * A queue of device work that runs in order; two streams run side by side. What the pipelines need
 * of a device, and no more.
 *
 * <p>A method may return before its work is done. What another than the current stream reads must
 * live until the current one waits for it. Used by one thread.
 */
public interface OpStream extends AutoCloseable {

    /** A point in a stream that another stream can wait for. */
    interface Event {}

    /**
     * Copies an array into a rank's P2P memory.
     *
     * @param rank whose memory
     * @param offset where in it, in bytes; the array fits there
     * @param source where from, contiguous
     */
    void put(int rank, long offset, NDArray source);

    /**
     * Copies an array.
     *
     * @param destination where to
     * @param source where from, of the same shape and type
     */
    void copy(NDArray destination, NDArray source);

    /**
     * Raises this rank's signal on a rank, after all work before.
     *
     * @param rank the rank that waits for it
     * @param epoch the value
     */
    void signal(int rank, int epoch);

    /**
     * Lets work that follows wait for a rank's signal.
     *
     * @param rank the rank that raises it
     * @param epoch the value to wait for
     */
    void waitSignal(int rank, int epoch);

    /**
     * Multiplies two matrices.
     *
     * @param out where the product goes, of shape (m, n)
     * @param a of shape (m, k)
     * @param b of shape (k, n)
     */
    void matmul(NDArray out, NDArray a, NDArray b);

    /**
     * Reduces arrays in rank order; 16-bit types in float32, rounded once.
     *
     * @param out where the result goes
     * @param parts the arrays, in rank order
     * @param op how to reduce
     */
    void reduce(NDArray out, List<NDArray> parts, ReduceOp op);

    /**
     * Tells whether what is enqueued is recorded for later, when streams may not run side by side.
     *
     * @return whether it is
     */
    boolean isRecorded();

    /**
     * Marks this point.
     *
     * @return an event that has happened when all work before is done
     */
    Event record();

    /**
     * Lets work that follows wait for an event. The caller's own thread, if that is the stream,
     * throws what failed before the event.
     *
     * @param event an event of another stream of the same device; for one wait only
     */
    void waitEvent(Event event);

    /**
     * Ends the use of the stream. On the host, waits until nothing runs any more; what has not
     * begun is dropped. Never throws.
     */
    @Override
    void close();
}
