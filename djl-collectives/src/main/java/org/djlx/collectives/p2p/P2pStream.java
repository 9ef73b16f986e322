// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.p2p;

import ai.djl.ndarray.NDArray;

/**
 * A queue of work that runs in order, like a CUDA stream but independent of the backend. Pipelines
 * of fused operators are written against it.
 *
 * <ul>
 *   <li>{@link P2pBuffers#currentStream} is the stream on which libtorch's operators run for the
 *       calling thread. {@link P2pBuffers#sideStream} runs concurrently with it.
 *   <li>Use and close both within one operation ({@code ProcessGroup.execute}), on the thread that
 *       runs the operation.
 *   <li>Methods may return before the work has finished.
 *   <li>Memory is given by address on the group's device. It must stay valid until the current
 *       stream has waited for the work that uses it; if the work {@linkplain #isRecorded is
 *       recorded}, until the last replay has ended.
 *   <li>A wait for a signal ends at the operation's timeout, and then the operation fails.
 * </ul>
 */
public interface P2pStream extends AutoCloseable {

    /** A point in a stream for which another stream can wait; valid until the operation ends. */
    interface Event {}

    /**
     * Copies bytes to a rank's P2P memory, at an offset in bytes from the start of the buffer. On
     * GPUs a stream's first put to a peer waits until all ranks have entered the operation. A rank
     * enters with its first put, signal, wait, epoch or barrier of all ranks.
     */
    void put(int rank, long offset, long source, long byteSize);

    /** Copies bytes within the rank's device, between addresses of ranges that do not overlap. */
    void copy(long destination, long source, long byteSize);

    /** Signals a rank after all previous work of this stream; see {@link P2pBuffers#putSignal}. */
    void signal(int rank, int channel, long epoch);

    /** Makes later work of this stream wait for a signal from a rank. */
    void waitSignal(int rank, int channel, long epoch);

    /** Makes later work of this stream wait for the signals of all other ranks. */
    void waitSignals(int channel, long epoch);

    /**
     * Makes later work of this stream wait until all ranks are at their barrier, and have finished
     * the work of their streams before it. All ranks call it in the same order within an operation,
     * on one of their streams. Includes an {@link P2pBuffers#awaitAgreement}.
     */
    void barrier();

    /**
     * {@return whether the enqueued work is recorded into a graph} In a replay, streams may not run
     * concurrently.
     */
    boolean isRecorded();

    /**
     * Keeps arrays alive as long as the recorded work can be replayed. A no-op if nothing is
     * recorded.
     */
    void keepAlive(NDArray... arrays);

    /** {@return an event, recorded now, that completes after all previous work of this stream} */
    Event record();

    /**
     * Makes later work of this stream wait for an event of another stream of the same buffers and
     * operation. If this stream runs on the calling thread, throws the failure of work before the
     * event.
     */
    void waitEvent(Event event);

    /**
     * Closes the stream. On the CPU, waits for running work and drops work that has not started.
     * Never throws.
     */
    @Override
    void close();
}
