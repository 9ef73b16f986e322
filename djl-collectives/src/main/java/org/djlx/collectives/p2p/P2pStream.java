/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.p2p;

import ai.djl.ndarray.NDArray;
import org.djlx.collectives.ProcessGroup;

/**
 * A queue of one rank's work that runs in order; two streams run side by side. What the schedules
 * of fused operators need of a group's memory, so that they work on any backend that has some.
 *
 * <p>A stream belongs to {@link P2pBuffers}: {@linkplain P2pBuffers#currentStream the current one}
 * is that on which libtorch's operators run for the calling thread, {@linkplain
 * P2pBuffers#sideStream the other} runs beside it. Both are used within one operation ({@link
 * ProcessGroup#execute}), by the thread that runs it, and closed by it.
 *
 * <p>Methods may return before the work is done. Memory is given by address, on the device of the
 * group; it must live until the current stream has waited for the work that uses it, and until
 * every replay has ended if the work {@linkplain #isRecorded is recorded}. A wait for a signal ends
 * at the operation's timeout at the latest, and then the operation fails.
 */
public interface P2pStream extends AutoCloseable {

    /** A point in a stream that another stream can wait for; good until the operation ends. */
    interface Event {}

    /**
     * Copies bytes into a rank's P2P memory. On GPUs the first one of a stream to another rank
     * waits until all ranks have come to the operation, by such a put, a signal, a wait for one, an
     * epoch or a barrier.
     *
     * @param rank whose memory
     * @param offset where in it, in bytes from the start of the buffer
     * @param source the address of the bytes
     * @param byteSize how many
     * @throws IllegalArgumentException if they do not fit into the buffer and the heap
     */
    void put(int rank, long offset, long source, long byteSize);

    /**
     * Copies bytes within the rank's device.
     *
     * @param destination the address where they go
     * @param source the address where they are; does not overlap the destination
     * @param byteSize how many
     */
    void copy(long destination, long source, long byteSize);

    /**
     * Raises this rank's signal on a rank, after all work before.
     *
     * @param rank the rank that waits for it
     * @param channel the channel
     * @param epoch the value
     */
    void signal(int rank, int channel, int epoch);

    /**
     * Lets work that follows wait for a rank's signal.
     *
     * @param rank the rank that raises it
     * @param channel the channel
     * @param epoch the value to wait for
     */
    void waitSignal(int rank, int channel, int epoch);

    /**
     * Lets work that follows wait for the signals of all other ranks.
     *
     * @param channel the channel
     * @param epoch the value to wait for
     */
    void waitSignals(int channel, int epoch);

    /**
     * Tells whether what is enqueued is recorded for later, when streams may not run side by side.
     *
     * @return whether it is
     */
    boolean isRecorded();

    /**
     * Keeps arrays for as long as what is recorded can be replayed; does nothing if nothing is
     * recorded.
     *
     * @param arrays what the work uses
     */
    void keepAlive(NDArray... arrays);

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
     * @param event an event of another stream of the same buffers and operation
     */
    void waitEvent(Event event);

    /**
     * Ends the use of the stream. On the host, waits until nothing runs any more; what has not
     * begun is dropped. Never throws.
     */
    @Override
    void close();
}
