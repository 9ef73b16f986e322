// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.p2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.function.Consumer;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.ContextLoader;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.GpuRates;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Symmetric memory of a group: each rank has a region of the same size, which all ranks map, and
 * signals that announce data. The counterpart of PyTorch's {@code SymmetricMemory}.
 *
 * <pre>
 *   a rank's region:   | buffer: first half, second half | heap |
 * </pre>
 *
 * <ul>
 *   <li><b>Region</b>: a rank's P2P memory. Offsets count from its start and are the same on all
 *       ranks.
 *   <li><b>Buffer</b>: the first {@link #bufferSize()} bytes, for data that an operation exchanges.
 *       Its contents are arbitrary when the operation starts.
 *   <li><b>Half</b>: the part of the buffer that an operation writes, see {@link #half}. On CPUs,
 *       operation n uses half n mod 2. On GPUs, operations use the second half; FUSED operators and
 *       collectives by copy engines also use the first.
 *   <li><b>Heap</b>: the next {@link #heapSize()} bytes, for arrays of the {@link #allocator()}.
 *   <li><b>Signal</b>: a word that one rank sets and one other rank waits for. A rank that sees a
 *       signal also sees everything that the sender wrote before it (release and acquire).
 *   <li><b>Channel</b>: the number of a signal between two ranks. An operation sends at most one
 *       signal per channel to a rank.
 *   <li><b>Epoch</b>: the value of an operation's signals, see {@link #epoch}. A signal is never
 *       reset; its value only grows.
 * </ul>
 *
 * <p>Example: an operation that sends an array to the next rank.
 *
 * <pre>{@code
 * Work shift(ProcessGroup group, NDManager manager, NDArray array) {
 *     P2pBuffers buffers = group.requireP2pBuffers();
 *     int ranks = group.worldSize();
 *     return group.execute(
 *             new OpType("shift"),
 *             new Operation.Agreed(Torch.scalarType(array), array.getShape().getShape(), null, 0),
 *             operation -> {
 *                 buffers.intraNodeBarrier(operation); // before a view of another rank is written
 *                 long epoch = buffers.epoch(operation);
 *                 long half = buffers.half(epoch);
 *                 int next = (group.rank() + 1) % ranks;
 *                 Torch.copy(view(buffers, manager, next, array, half), array);
 *                 for (int peer = 0; peer < ranks; peer++) {
 *                     buffers.putSignal(peer, 0, epoch);
 *                 }
 *                 for (int peer = 0; peer < ranks; peer++) {
 *                     buffers.waitSignal(operation, peer, 0, epoch);
 *                 }
 *                 Torch.copy(array, view(buffers, manager, group.rank(), array, half));
 *             });
 * }
 *
 * NDArray view(P2pBuffers buffers, NDManager manager, int rank, NDArray array, long offset) {
 *     return buffers.p2pBuffer(
 *             manager, rank, array.getShape(), Torch.scalarType(array), offset);
 * }
 * }</pre>
 *
 * <h2>Rules</h2>
 *
 * <ol>
 *   <li>Use the buffers only within {@code ProcessGroup.execute}, because all libraries on the
 *       group share them. The group's operations run in sequence.
 *   <li>An operation uses epochs, signals, puts or barriers on all ranks or on none, because every
 *       rank counts them. Exception: {@linkplain #intraNodeBarrier(Operation, int...) barriers of
 *       some ranks}, which each pair of ranks counts.
 *   <li>An operation writes only to its half of a peer's buffer. On CPUs it can then start while a
 *       slower rank still reads the data of the previous operation.
 *   <li>On GPUs, an operation reads all received data before it ends, and writes to a peer only
 *       after the peer has entered it. {@linkplain P2pStream#put Puts} wait for all ranks to enter.
 *       Code that writes by other means (views, own kernels) calls {@link #intraNodeBarrier} first.
 *   <li>Copy to and from views of peers by {@link Torch#copy} or {@link P2pStream#put}. On GPUs
 *       these copies wait for this rank's stream only. {@code NDArray.copyTo} and other code of
 *       libtorch also waits for the current stream of the peer's GPU, which may wait for this rank.
 *   <li>An array in the heap belongs to the code that {@linkplain P2pAllocator allocated} it.
 *       Before an operation writes to a peer's array, the peer must have finished with that array;
 *       a barrier ensures this.
 * </ol>
 *
 * <p>On GPUs, signals and waits run on the current stream, and methods return once they are
 * enqueued. A timeout fails the operation's work, not the method that enqueued the wait.
 *
 * <p>After the group has been destroyed, signals and barriers throw {@link IllegalStateException},
 * views throw {@link IllegalArgumentException}, running waits fail, and addresses are invalid.
 * Ranks and sizes remain available.
 */
public abstract class P2pBuffers {

    private final int rank;
    private final int worldSize;
    private final long bufferSize;
    private final long heapSize;
    private final int channels;
    private final long[] addresses; // of each rank's memory; 0 until first used; guarded by this
    private P2pAllocator allocator; // null until first used; guarded by this

    /** Constructor for subclasses; sizes of each rank's buffer and heap are in bytes. */
    protected P2pBuffers(int rank, int worldSize, long bufferSize, long heapSize, int channels) {
        this.rank = rank;
        this.worldSize = worldSize;
        this.bufferSize = bufferSize;
        this.heapSize = heapSize;
        this.channels = channels;
        this.addresses = new long[worldSize];
    }

    /** {@return this rank} */
    public final int rank() {
        return rank;
    }

    /** {@return the number of ranks} */
    public final int worldSize() {
        return worldSize;
    }

    /** {@return the size of each rank's buffer in bytes; may be 0} */
    public final long bufferSize() {
        return bufferSize;
    }

    /** {@return the offset of the half of the buffer that an operation writes, in bytes} */
    public final long half(long epoch) {
        return epoch % 2 == 0 ? 0 : bufferSize / 2;
    }

    /** {@return the size in bytes of each rank's heap, which follows the buffer; may be 0} */
    public final long heapSize() {
        return heapSize;
    }

    /** {@return the allocator of this rank's heap; the same object in every call} */
    public final synchronized P2pAllocator allocator() {
        if (allocator == null) {
            allocator = new P2pAllocator(this, rank);
        }
        return allocator;
    }

    /** {@return the number of channels} */
    public final int channels() {
        return channels;
    }

    /**
     * {@return an array that is a view of a rank's P2P memory, without a copy} A view of this
     * rank's memory keeps it alive. Do not use a view of a peer's memory after the group has been
     * destroyed.
     *
     * @param offset the array's offset in bytes from the start of the buffer; a multiple of the
     *     element size
     * @throws IllegalArgumentException if the array does not fit into the buffer and the heap, or
     *     the offset is not a multiple of the element size
     */
    public final NDArray p2pBuffer(
            NDManager manager, int rank, Shape shape, ScalarType type, long offset) {
        Required.argument("p2pBuffer: shape", shape);
        Required.argument("p2pBuffer: type", type);
        checkRange(rank, offset, type.byteSize(shape.getShape()));
        return view(manager, rank, shape, type, offset);
    }

    /**
     * {@return the address of a rank's P2P memory as seen by this rank's device; for {@link
     * P2pStream} and custom kernels} Invalid after the group has been destroyed.
     *
     * @param rank the owner of the memory. Peer memory is always writable; some backends cannot
     *     read it
     * @param offset the offset in bytes from the start of the buffer
     */
    public final synchronized long address(int rank, long offset) {
        checkRange(rank, offset, 0);
        if (addresses[rank] == 0) {
            try (NDManager manager = ContextLoader.pytorch().newBaseManager()) {
                NDArray first = view(manager, rank, new Shape(1), ScalarType.UINT8, 0);
                addresses[rank] = Torch.dataPointer(first);
            }
        }
        return addresses[rank] + offset;
    }

    /**
     * Returns the stream on which libtorch's operators run for the calling thread; on the CPU, the
     * thread itself. An operation uses at most one current and one side stream at a time.
     *
     * @return the stream; the caller closes it
     */
    public P2pStream currentStream(Operation operation) {
        Required.argument("currentStream: operation", operation);
        return HostP2pStream.current(this, operation);
    }

    /**
     * Returns a stream that runs concurrently with the current stream; on the CPU by default a pool
     * thread. Before the operation ends, the current stream must wait for an event recorded after
     * all work on this stream.
     *
     * @return the stream; the caller closes it
     */
    public P2pStream sideStream(Operation operation) {
        Required.argument("sideStream: operation", operation);
        return HostP2pStream.side(this, operation);
    }

    /**
     * Enqueues work of the caller on the group's CUDA stream, outside of an operation: after all
     * operations of the group that this rank has issued, on whichever stream they run, and before
     * all that it issues later. To let another stream wait for these operations, record an event in
     * the work; to let later operations wait for another stream, wait for its event there.
     *
     * <ul>
     *   <li>It concerns this rank only; the other ranks need not call it.
     *   <li>The host may wait for other ranks, as in {@link
     *       org.djlx.collectives.ProcessGroup#execute}. Operations of an open batch are issued when
     *       it ends.
     *   <li>The memory that the work uses must remain until it has ended.
     * </ul>
     *
     * @param work enqueues kernels, copies or events on the stream, and returns; must not issue
     *     operations of the group, wait for a peer or close the stream. If it throws, the exception
     *     is passed on, and what it has enqueued stays
     * @throws CollectiveException if the group is broken
     * @throws IllegalStateException if the group has been destroyed
     * @throws UnsupportedOperationException on CPUs
     */
    public void onGroupStream(Consumer<CudaStream> work) {
        Required.argument("onGroupStream: work", work);
        throw new UnsupportedOperationException(
                "onGroupStream: this group runs on CPUs, which have no stream; enqueue work with"
                        + " ProcessGroup.execute");
    }

    /** Checks a range in a rank's P2P memory. */
    protected final void checkRange(int rank, long offset, long byteSize) {
        checkRank(rank);
        if (offset < 0 || offset > bufferSize + heapSize - byteSize) {
            throw new IllegalArgumentException(
                    String.format(
                            "%d bytes at offset %d are out of range: the P2P memory has a buffer of"
                                    + " %d bytes and a heap of %d bytes",
                            byteSize, offset, bufferSize, heapSize));
        }
    }

    /** Implements {@link #p2pBuffer}; the arguments have been checked. */
    protected abstract NDArray view(
            NDManager manager, int rank, Shape shape, ScalarType type, long offset);

    protected final void checkRank(int rank) {
        GroupContext.checkRank(rank, worldSize);
    }

    protected final void checkChannel(int channel) {
        if (channel < 0 || channel >= channels) {
            throw new IllegalArgumentException(
                    "channel %s is out of range: there are channels 0 to %s"
                            .formatted(channel, channels - 1));
        }
    }

    /**
     * Returns the value for an operation's signals.
     *
     * <p>An operation that calls this does one of two things:
     *
     * <ul>
     *   <li>It signals every rank with that value, before or after it writes data there, and waits
     *       for the signals of all ranks.
     *   <li>It calls a {@linkplain P2pStream#barrier barrier} after it writes data.
     * </ul>
     *
     * <p>After that, a later operation may use the same half of the buffer: on GPUs the next one,
     * because it first waits for all ranks; on CPUs the one after the next.
     *
     * @return the epoch, the same on all ranks. On CPUs it grows with each operation that calls
     *     this. On GPUs it is always 1: the device counts operations and adds the count to signal
     *     values, so that graphs can be replayed
     */
    public abstract long epoch(Operation operation);

    /**
     * All-gather of a few KiB by one kernel on the current stream: writes this rank's part at an
     * offset of every rank's buffer, this rank included, and waits for the parts of all ranks. A
     * rank on another path takes part by {@link #epoch}, {@linkplain P2pStream#put puts} and
     * signals on channel 0.
     *
     * @param operation the running operation; it calls neither this method again nor {@link #epoch}
     * @return false if there is no such kernel, as on CPUs; nothing was done
     */
    public boolean exchange(Operation operation, long offset, long part, long byteSize) {
        Required.argument("exchange: operation", operation);
        return false;
    }

    /**
     * {@return the signal addresses for custom kernels that signal and wait on the device; empty on
     * all ranks if not supported} Use them in an operation that does not call {@link #epoch}.
     */
    public Optional<KernelSignals> kernelSignals() {
        return Optional.empty();
    }

    /**
     * {@return the rates of the slowest GPU of the group, for the cost model; the same on all
     * ranks} Empty on CPUs, for GPUs of several kinds, and if a rank cannot measure them.
     */
    public Optional<GpuRates> gpuRates() {
        return Optional.empty();
    }

    /**
     * {@return the rate of copies between GPUs in GB/s, the same on all ranks; empty on CPUs, for
     * one rank, for buffers of less than 1 MiB, and if ranks share a GPU} It is measured when the
     * group is created: each rank copies from its buffer to the next rank's, and the slowest pair
     * of ranks counts.
     */
    public OptionalDouble linkRate() {
        return OptionalDouble.empty();
    }

    /**
     * {@return the slots and signals of one-shot all-reduces, for custom kernels that exchange data
     * in the same way; empty on all ranks if there are no one-shot all-reduces} The operation need
     * not call {@link #epoch}: the device counts launches.
     */
    public Optional<OneShotSlots> oneShotSlots() {
        return Optional.empty();
    }

    /**
     * {@return the maximum number of thread blocks of a kernel that waits for peers without a
     * {@linkplain #takeTurn turn}} A limit besides {@link KernelSignals#blocks} and {@link
     * OneShotSlots#blocks}, while several groups of this process share a GPU. It may differ between
     * ranks, and between calls. The default is {@link Integer#MAX_VALUE}, no limit.
     */
    public int waitingBlocks() {
        return Integer.MAX_VALUE;
    }

    /**
     * Waits for the turn of an operation whose kernel fills the GPU while it waits for peers. Call
     * it before the launch. Groups of this process that share GPUs run such kernels one after the
     * other, in the same order on all GPUs. Otherwise two groups could deadlock, each with one GPU
     * occupied. In a CUDA graph, each launch of the graph takes the turn. The default returns
     * {@link Integer#MAX_VALUE}.
     *
     * @return the maximum number of thread blocks of the kernel, a limit besides {@link
     *     KernelSignals#blocks}. A kernel that needs more must make progress while only this many
     *     are resident
     * @throws CollectiveException on a timeout; names the group and the rank that has to make its
     *     call first
     * @throws IllegalStateException outside of an operation, and when a graph is launched that
     *     holds such kernels of two groups on the same GPU
     */
    public int takeTurn(Operation operation) {
        return Integer.MAX_VALUE;
    }

    /**
     * Signals a rank.
     *
     * @param epoch the value: the operation's {@linkplain #epoch epoch}
     * @throws IllegalArgumentException if the rank or channel is out of range; on GPUs also for a
     *     value other than the epoch, because larger values belong to later operations
     * @throws IllegalStateException on GPUs, outside of an operation
     */
    public abstract void putSignal(int rank, int channel, long epoch);

    /**
     * Waits for a signal from a rank.
     *
     * @param operation the running operation; its timeout bounds the wait
     * @throws IllegalArgumentException as {@link #putSignal}
     * @throws CollectiveException if the rank has left or died, or does not signal in time; on GPUs
     *     the operation's work fails instead
     */
    public abstract void waitSignal(Operation operation, int rank, int channel, long epoch);

    /**
     * Waits until all ranks have started the operation and checks that their calls match. A no-op
     * on {@code cuda_p2p}, which compares calls asynchronously or, with {@code DebugLevel.DETAIL},
     * has already compared them.
     *
     * @throws CollectiveException if the calls do not match; lists each rank's call
     */
    public abstract void awaitAgreement(Operation operation);

    /**
     * Barrier: waits until all ranks have called it and finished all work before it. On GPUs the
     * current stream waits. Includes an {@link #awaitAgreement}.
     *
     * @throws CollectiveException as {@link #awaitAgreement}
     */
    public abstract void intraNodeBarrier(Operation operation);

    /**
     * Barrier of some ranks: waits until these ranks have called it and finished all work before
     * it. On GPUs the current stream waits. Other ranks need not call anything. After it, a rank
     * may write to the memory of the named ranks, by views or own kernels.
     *
     * <ul>
     *   <li>Each named rank names the same ranks. Otherwise the group is broken: the barrier fails,
     *       or times out where a rank waits for a rank that did not name it.
     *   <li>Two ranks call their common barriers in the same order.
     *   <li>It does not compare the calls of the ranks; see {@link #awaitAgreement}.
     * </ul>
     *
     * @param operation the running operation; its timeout bounds the wait
     * @param ranks the ranks, in any order; includes this rank
     * @throws IllegalArgumentException if this rank is not among the ranks, or a rank is out of
     *     range or named twice
     * @throws CollectiveException if a rank has left or died, names other ranks, or does not call
     *     in time; on GPUs the operation's work fails instead
     * @throws UnsupportedOperationException if the backend has no such barrier
     */
    public final void intraNodeBarrier(Operation operation, int... ranks) {
        Required.argument("intraNodeBarrier: operation", operation);
        int[] sorted = Required.argument("intraNodeBarrier: ranks", ranks).clone();
        Arrays.sort(sorted);
        for (int i = 0; i < sorted.length; i++) {
            checkRank(sorted[i]);
            if (i > 0 && sorted[i] == sorted[i - 1]) {
                throw new IllegalArgumentException(
                        "intraNodeBarrier: rank " + sorted[i] + " is named twice");
            }
        }
        if (Arrays.binarySearch(sorted, rank) < 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "intraNodeBarrier: rank %d is not among the ranks %s; call it on the"
                                    + " named ranks only",
                            rank, Arrays.toString(ranks)));
        }
        barrier(operation, sorted);
    }

    /**
     * Implements {@link #intraNodeBarrier(Operation, int...)} for checked ranks in ascending order.
     */
    protected void barrier(Operation operation, int[] ranks) {
        throw new UnsupportedOperationException(
                "intraNodeBarrier: the backend has no barrier of some ranks");
    }
}
