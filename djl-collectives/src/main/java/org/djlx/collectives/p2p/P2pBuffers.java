/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.p2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Optional;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.internal.host.Required;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

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
 * raised a word is visible to the rank that saw the word raised. An operation uses epochs, signals,
 * puts or barriers on all ranks or on none, as each rank counts those that do. On GPUs it is the
 * current stream that raises words and waits for them: methods return when that is enqueued, and a
 * wait in vain fails the operation, not the method.
 *
 * <p>The buffers are shared by all that is built on the group, so they are to be used within {@link
 * ProcessGroup#execute} only, whose operations run one after the other, and in one way: an
 * operation raises its signals to its {@linkplain #epoch epoch} and writes into one half of the
 * buffers only, the second if that number is odd. So an operation can begin while a slower rank
 * still reads what the last one left. On GPUs, where graphs may be replayed between operations, all
 * use the second half, and the first one is taken: an operation reads what it was sent before it
 * ends, {@linkplain P2pStream#put puts} wait until all ranks have come to the operation, and who
 * writes otherwise where another rank writes or reads, through views or by kernels of its own,
 * calls {@link #intraNodeBarrier} first. Arrays in the heap belong to who {@linkplain P2pAllocator
 * allocates} them; an operation that writes into those of other ranks must know that they are free,
 * as after that barrier.
 *
 * <p>Once the group is destroyed, signals and barriers throw {@link IllegalStateException}, views
 * {@link IllegalArgumentException}, and waits under way fail. Ranks and sizes can still be asked
 * for, and addresses lead nowhere.
 */
public abstract class P2pBuffers {

    private final int rank;
    private final int worldSize;
    private final long bufferSize;
    private final long heapSize;
    private final int channels;
    private final long[] addresses; // of each rank's memory; 0 until asked for; guarded by this
    private P2pAllocator allocator; // null until it is asked for; guarded by this

    /**
     * Constructor for subclasses.
     *
     * @param rank this rank
     * @param worldSize the number of ranks
     * @param bufferSize the size of each rank's buffer, in bytes
     * @param heapSize the size of each rank's heap, in bytes
     * @param channels the number of channels
     */
    protected P2pBuffers(int rank, int worldSize, long bufferSize, long heapSize, int channels) {
        this.rank = rank;
        this.worldSize = worldSize;
        this.bufferSize = bufferSize;
        this.heapSize = heapSize;
        this.channels = channels;
        this.addresses = new long[worldSize];
    }

    /**
     * Returns this rank.
     *
     * @return the rank
     */
    public final int rank() {
        return rank;
    }

    /**
     * Returns the number of ranks.
     *
     * @return the world size
     */
    public final int worldSize() {
        return worldSize;
    }

    /**
     * Returns the size of each rank's buffer.
     *
     * @return the size in bytes; may be 0
     */
    public final long bufferSize() {
        return bufferSize;
    }

    /**
     * Returns the size of each rank's heap, which follows on its buffer.
     *
     * @return the size in bytes; may be 0
     */
    public final long heapSize() {
        return heapSize;
    }

    /**
     * Returns what divides this rank's heap.
     *
     * @return the allocator, always the same
     */
    public final synchronized P2pAllocator allocator() {
        if (allocator == null) {
            allocator = new P2pAllocator(this, rank);
        }
        return allocator;
    }

    /**
     * Returns the number of channels.
     *
     * @return the number
     */
    public final int channels() {
        return channels;
    }

    /**
     * Returns a view of a part of a rank's P2P memory, without a copy. The view of this rank's own
     * keeps the memory alive; that of another's must not be used when the group is destroyed.
     *
     * @param manager the manager to attach the array to
     * @param rank whose memory
     * @param shape the array's shape; contiguous
     * @param type the array's element type
     * @param offset where the array begins, in bytes from the start of the buffer; a multiple of
     *     the element size
     * @return the array
     * @throws IllegalArgumentException if the array does not fit into the buffer and the heap, or
     *     the offset is not a multiple of the element size
     */
    public final NDArray p2pBuffer(
            NDManager manager, int rank, Shape shape, ScalarType type, long offset) {
        Required.argument("p2pBuffer: shape", shape);
        Required.argument("p2pBuffer: type", type);
        checkRange(rank, offset, Math.multiplyExact(shape.size(), type.itemSize()));
        return view(manager, rank, shape, type, offset);
    }

    /**
     * Returns where a part of a rank's P2P memory is, as the device of this rank addresses it; for
     * {@link P2pStream}s and kernels of your own. Not to be used once the group is destroyed.
     *
     * @param rank whose memory; that of another can be written, but not on all backends read
     * @param offset the part's offset in bytes from the start of the buffer
     * @return the address
     */
    public final synchronized long address(int rank, long offset) {
        checkRange(rank, offset, 0);
        if (addresses[rank] == 0) {
            try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
                NDArray first = view(manager, rank, new Shape(1), ScalarType.UINT8, 0);
                addresses[rank] = Torch.dataPointer(first);
            }
        }
        return addresses[rank] + offset;
    }

    /**
     * Returns the stream on which libtorch's operators run for the calling thread; on the CPU, the
     * thread itself. One of each kind is in use at a time, within one operation.
     *
     * @param operation the operation under way
     * @return the stream, to be closed by the caller
     */
    public P2pStream currentStream(Operation operation) {
        Required.argument("currentStream: operation", operation);
        return HostP2pStream.current(this, operation);
    }

    /**
     * Returns a stream that runs beside the current one; on the CPU, unless a backend has its own,
     * a thread of a pool, which copies to {@link #address}. Before the operation ends, the current
     * stream is to wait for an event behind all that it does.
     *
     * @param operation the operation under way
     * @return the stream, to be closed by the caller
     */
    public P2pStream sideStream(Operation operation) {
        Required.argument("sideStream: operation", operation);
        return HostP2pStream.side(this, operation);
    }

    /**
     * Checks a part of a rank's memory that a caller passes.
     *
     * @param rank the rank
     * @param offset where the part begins
     * @param byteSize its size
     * @throws IllegalArgumentException if there is none
     */
    protected final void checkRange(int rank, long offset, long byteSize) {
        checkRank(rank);
        if (offset < 0 || offset > bufferSize + heapSize - byteSize) {
            throw new IllegalArgumentException(
                    String.format(
                            "%d bytes at %d do not fit into a P2P buffer of %d bytes and a heap of"
                                    + " %d bytes",
                            byteSize, offset, bufferSize, heapSize));
        }
    }

    /**
     * Returns a view of a part of a rank's P2P memory, the arguments being right.
     *
     * @param manager the manager to attach the array to
     * @param rank whose memory
     * @param shape the array's shape
     * @param type the array's element type
     * @param offset where the array begins
     * @return the array
     */
    protected abstract NDArray view(
            NDManager manager, int rank, Shape shape, ScalarType type, long offset);

    /**
     * Checks a rank that a caller passes.
     *
     * @param rank the rank
     * @throws IllegalArgumentException if there is none
     */
    protected final void checkRank(int rank) {
        if (rank < 0 || rank >= worldSize) {
            throw new IllegalArgumentException(
                    "rank " + rank + " lies outside a group of " + worldSize + " ranks");
        }
    }

    /**
     * Checks a channel that a caller passes.
     *
     * @param channel the channel
     * @throws IllegalArgumentException if there is none
     */
    protected final void checkChannel(int channel) {
        if (channel < 0 || channel >= channels) {
            throw new IllegalArgumentException(
                    "channel " + channel + " lies outside of " + channels + " channels");
        }
    }

    /**
     * Returns the number that an operation raises its signals to. An operation that asks for it
     * raises a signal to it on every rank, before or after it has put something there, and waits
     * for those of all ranks; so the next but one may use the same half of the buffers again, and
     * on GPUs, where it waits for all ranks, the next.
     *
     * @param operation the operation under way
     * @return the number, the same on all ranks, and larger with each operation that asks for it;
     *     on GPUs always 1, as a graph can be replayed: operations are counted on the device, and
     *     signals are raised relative to that count
     */
    public abstract int epoch(Operation operation);

    /**
     * Returns what kernels need to raise signals and wait for them themselves, within an operation
     * that does not ask for an {@linkplain #epoch epoch}.
     *
     * @return the signals; empty, on all ranks alike, where the ranks have no such kernels
     */
    public Optional<KernelSignals> kernelSignals() {
        return Optional.empty();
    }

    /**
     * Returns what kernels need to exchange data as one-shot all-reduces do, within an operation
     * that need not ask for an {@linkplain #epoch epoch}: launches are counted on the device.
     *
     * @return the slots; empty, on all ranks alike, where the ranks have no such all-reduces
     */
    public Optional<OneShotSlots> oneShotSlots() {
        return Optional.empty();
    }

    /**
     * Raises this rank's signal word on a rank.
     *
     * @param rank the rank that waits for it
     * @param channel the channel
     * @param epoch the word's new value: the operation's {@linkplain #epoch epoch}
     * @throws IllegalArgumentException if there is no such rank or channel; on GPUs also for
     *     another value, as the next operations raise their words to what is beyond
     */
    public abstract void putSignal(int rank, int channel, int epoch);

    /**
     * Waits until a rank has raised its signal word here.
     *
     * @param operation the operation under way, for its timeout and for messages
     * @param rank the rank that raises it
     * @param channel the channel
     * @param epoch the value to wait for, likewise
     * @throws IllegalArgumentException likewise
     * @throws CollectiveException if the rank is gone or does not raise it in time; on GPUs, the
     *     operation's work fails with it instead
     */
    public abstract void waitSignal(Operation operation, int rank, int channel, int epoch);

    /**
     * Waits until all ranks have begun the operation and checks that they agree on what it is,
     * where the host must know that before it goes on. It returns at once on {@code cuda_p2p},
     * which compares the calls behind the operation, or, if it verifies, has done so before.
     *
     * @param operation the operation under way
     * @throws CollectiveException if they do not agree, naming what each called
     */
    public abstract void awaitAgreement(Operation operation);

    /**
     * Waits until all ranks have called this, and done all work before; on GPUs, the current stream
     * does. Begins with an {@link #awaitAgreement}.
     *
     * @param operation the operation under way
     * @throws CollectiveException as {@link #awaitAgreement}
     */
    public abstract void intraNodeBarrier(Operation operation);
}
