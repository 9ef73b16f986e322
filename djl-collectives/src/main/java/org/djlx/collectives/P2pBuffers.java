/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.ScalarType;

/**
 * Symmetric memory of a group: memory on each rank, as much on all, that every rank can read and
 * write; and signal words through which ranks tell each other that data has arrived. The
 * counterpart of c10d's P2P buffers and of PyTorch's symmetric memory.
 *
 * <pre>
 *   a rank's P2P memory:   | buffer: bufferSize() bytes | heap: heapSize() bytes |
 * </pre>
 *
 * <p>A signal word belongs to a channel, the rank it lies on, and the rank that raises it. Words
 * only grow: they are epoch counters, never reset, compared modulo 2³². What a rank wrote before it
 * raised a word is visible to the rank that saw the word raised.
 *
 * <p>The buffers are shared by all that is built on the group, so they are to be used within {@link
 * ProcessGroup#execute} only, whose operations run one after the other, and in one way: an
 * operation raises its signals to its {@linkplain #epoch epoch} and writes into one half of the
 * buffers only, the second if that number is odd. So an operation can begin while a slower rank
 * still reads what the last one left. Arrays in the heap belong to who {@linkplain P2pAllocator
 * allocates} them; an operation that writes into those of other ranks must know that they are free,
 * as after {@link #intraNodeBarrier}.
 *
 * <p>Once the group is destroyed, all methods throw {@link IllegalStateException}, or {@link
 * IllegalArgumentException} for a view; waits under way fail.
 */
public interface P2pBuffers {

    /**
     * Returns the size of each rank's buffer.
     *
     * @return the size in bytes; may be 0
     */
    long bufferSize();

    /**
     * Returns the size of each rank's heap, which follows on its buffer.
     *
     * @return the size in bytes; may be 0
     */
    long heapSize();

    /**
     * Returns what divides this rank's heap.
     *
     * @return the allocator, always the same
     */
    P2pAllocator allocator();

    /**
     * Returns the number of channels.
     *
     * @return the number
     */
    int channels();

    /**
     * Returns a view of a part of a rank's P2P memory, without a copy. The view keeps the memory
     * alive.
     *
     * @param manager the manager to attach the array to
     * @param rank whose memory
     * @param shape the array's shape; contiguous
     * @param type the array's element type
     * @param offset where the array begins, in bytes from the start of the buffer; a multiple of
     *     the element size
     * @return the array
     * @throws IllegalArgumentException if the array does not fit into the buffer and the heap
     */
    NDArray p2pBuffer(NDManager manager, int rank, Shape shape, ScalarType type, long offset);

    /**
     * Returns the number that an operation raises its signals to.
     *
     * @param operation the operation under way
     * @return the number, the same on all ranks, and larger with each operation
     */
    int epoch(Operation operation);

    /**
     * Raises this rank's signal word on a rank.
     *
     * @param rank the rank that waits for it
     * @param channel the channel
     * @param epoch the word's new value
     */
    void putSignal(int rank, int channel, int epoch);

    /**
     * Waits until a rank has raised its signal word here.
     *
     * @param operation the operation under way, for its timeout and for messages
     * @param rank the rank that raises it
     * @param channel the channel
     * @param epoch the value to wait for
     * @throws CollectiveException if the rank is gone or does not raise it in time
     */
    void waitSignal(Operation operation, int rank, int channel, int epoch);

    /**
     * Waits until all ranks have begun the operation and checks that they agree on what it is.
     *
     * @param operation the operation under way
     * @throws CollectiveException if they do not, naming what each called
     */
    void awaitAgreement(Operation operation);

    /**
     * Waits until all ranks have called this, and done all work before; on GPUs, the current stream
     * does. Also an {@link #awaitAgreement}, so it is the first that an operation waits for.
     *
     * @param operation the operation under way
     * @throws CollectiveException as {@link #awaitAgreement}
     */
    void intraNodeBarrier(Operation operation);
}
