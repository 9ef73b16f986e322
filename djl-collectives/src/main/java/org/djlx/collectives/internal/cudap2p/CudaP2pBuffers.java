// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.function.Consumer;
import java.util.function.IntSupplier;
import java.util.stream.IntStream;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.internal.gpu.GpuTurns;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.p2p.KernelSignals;
import org.djlx.collectives.p2p.OneShotSlots;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.GpuRates;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * P2P buffers in GPU memory. Streams signal and wait, not the host: the methods of {@link
 * P2pBuffers} enqueue signals and waits on the current stream.
 *
 * <p>{@code docs/design/memory-and-signals.md}, invariants 6 to 8, says when an operation
 * {@linkplain SignalKernels#enter enters} and when it may write. Before a stream waits for its
 * peers to enter, it may compute, and write to this rank's own buffer. A single-kernel operation
 * does all this in the kernel, with {@link KernelSignals}.
 */
final class CudaP2pBuffers extends P2pBuffers {

    // The epoch of every operation, relative to the device's count.
    private static final long EPOCH = 1;

    /** How the running operation is launched. */
    private enum Launch {
        SMALL, // it leaves room on the GPU for kernels of other groups
        FILLS_GPU, // it has taken its turn
        CAPTURED // into a graph, whose launches take the turns
    }

    /** How far a stream has come in the running operation. */
    private enum Progress {
        OUTSIDE, // the current stream has not entered, or the side stream is not in use
        ENTERED, // peers may write to this rank's memory
        PEERS_ENTERED // all peers have entered: the stream may write to their memory
    }

    private final P2pRegion region;
    private final CudaStream side;
    private CudaEvent entry; // created on first use
    private final SignalKernels signals;
    private final CurrentStreams currentStreams;
    private final CudaP2pStream current = new CudaP2pStream(this);
    private final CudaP2pStream sideStream = new CudaP2pStream(this);
    private final int rank;
    private final KernelSignals kernelSignals; // null if kernels have none
    private final OneShotSlots oneShotSlots; // null if there are none
    private final GpuRates gpuRates; // null if unknown
    private final OptionalDouble linkRate;
    private final GpuTurns.Member turn;
    private final IntSupplier waitingBlocks;
    private final IntSupplier turnBlocks;
    private final Consumer<Consumer<CudaStream>> groupStream;
    private Operation underWay; // being enqueued, or null
    private CudaStream running; // the current stream of that operation
    private Launch launch = Launch.SMALL;
    private long number; // of that operation's turn
    private Progress progress = Progress.OUTSIDE; // of the current stream
    private Progress sideProgress = Progress.OUTSIDE;
    private boolean entryMarked; // the event is recorded after the entry
    private volatile boolean destroyed;

    CudaP2pBuffers(
            P2pRegion region,
            CudaDevice device,
            CurrentStreams currentStreams,
            SignalKernels signals,
            int kernelBlocks,
            GpuRates gpuRates,
            OptionalDouble linkRate,
            GpuTurns.Member turn,
            IntSupplier waitingBlocks,
            IntSupplier turnBlocks,
            Consumer<Consumer<CudaStream>> groupStream) {
        super(
                region.rank(),
                region.ranks(),
                region.layout().bufferSize(),
                region.layout().heapSize(),
                RegionLayout.CHANNELS);
        this.region = region;
        this.currentStreams = currentStreams;
        this.rank = region.rank();
        this.side = CudaStream.create(device, device.highestStreamPriority());
        this.signals = signals;
        this.gpuRates = gpuRates;
        this.linkRate = linkRate;
        this.turn = turn;
        this.waitingBlocks = waitingBlocks;
        this.turnBlocks = turnBlocks;
        this.groupStream = groupStream;
        kernelSignals = kernelBlocks == 0 ? null : kernelSignals(kernelBlocks);
        boolean linked = region.links().kind() == GpuTopology.Kind.FULLY_CONNECTED_NVLINK;
        oneShotSlots = kernelBlocks == 0 || !linked ? null : oneShotSlots(kernelBlocks);
    }

    private KernelSignals kernelSignals(int blocks) {
        RegionLayout layout = region.layout();
        int ranks = region.ranks();
        long[] entered = new long[ranks];
        long[] words = new long[ranks];
        long[] flags = new long[ranks];
        for (int peer = 0; peer < ranks; peer++) {
            long memory = region.address(peer);
            entered[peer] = signals.entered(peer);
            words[peer] = memory + layout.signal(0, 0);
            flags[peer] = memory + layout.flags();
        }
        return new KernelSignals(
                blocks,
                signals.status(),
                entered,
                words,
                RegionLayout.LINE,
                flags,
                RegionLayout.FLAGS,
                region.address(rank) + layout.counters());
    }

    private OneShotSlots oneShotSlots(int blocks) {
        RegionLayout layout = region.layout();
        return new OneShotSlots(
                blocks,
                signals.status(),
                IntStream.range(0, region.ranks()).mapToLong(region::address).toArray(),
                layout.begin(Algorithm.ONE_SHOT),
                layout.half(Algorithm.ONE_SHOT),
                layout.slot(Algorithm.ONE_SHOT));
    }

    /** Returns the side stream. Operations use it one after the other. */
    CudaStream side() {
        return side;
    }

    @Override
    public Optional<OneShotSlots> oneShotSlots() {
        requireUsable();
        return Optional.ofNullable(oneShotSlots);
    }

    @Override
    public Optional<GpuRates> gpuRates() {
        return Optional.ofNullable(gpuRates);
    }

    @Override
    public OptionalDouble linkRate() {
        return linkRate;
    }

    @Override
    public int waitingBlocks() {
        return waitingBlocks.getAsInt();
    }

    @Override
    public int takeTurn(Operation operation) {
        requireUsable();
        Required.argument("takeTurn: operation", operation);
        requireUnderWay();
        if (launch == Launch.CAPTURED) {
            graphTurn().fill(running, operation.timeout());
        } else if (launch == Launch.SMALL) {
            launch = Launch.FILLS_GPU;
            for (GpuTurns.Launched earlier : turn.await(number, operation, operation.timeout())) {
                earlier.order(running);
            }
        }
        return turnBlocks.getAsInt();
    }

    private GraphTurn graphTurn() {
        return (GraphTurn) CudaGraph.hook(this, () -> new GraphTurn(turn, underWay.group()));
    }

    @Override
    public Optional<KernelSignals> kernelSignals() {
        requireUsable();
        return Optional.ofNullable(kernelSignals);
    }

    @Override
    public P2pStream currentStream(Operation operation) {
        requireUsable();
        Required.argument("currentStream: operation", operation);
        return current.on(stream(), operation, true);
    }

    @Override
    public P2pStream sideStream(Operation operation) {
        requireUsable();
        Required.argument("sideStream: operation", operation);
        enter();
        if (sideProgress == Progress.OUTSIDE) {
            sideProgress = Progress.ENTERED;
        }
        return sideStream.on(side, operation, false);
    }

    @Override
    public long epoch(Operation operation) {
        requireUsable();
        Required.argument("epoch: operation", operation);
        enter();
        return EPOCH;
    }

    @Override
    public boolean exchange(Operation operation, long offset, long part, long byteSize) {
        requireUsable();
        Required.argument("exchange: operation", operation);
        requireUnderWay();
        checkRange(rank, offset, byteSize);
        progress = Progress.PEERS_ENTERED;
        signals.exchange(running, offset, part, byteSize, operation.timeout());
        return true;
    }

    /** Returns whether the current stream has entered the operation. */
    boolean hasEntered() {
        return progress != Progress.OUTSIDE;
    }

    private CudaStream stream() {
        return running == null ? currentStreams.get() : running;
    }

    /** Enters the running operation on the current stream, unless that has happened. */
    private void enter() {
        requireUnderWay();
        if (progress == Progress.OUTSIDE) {
            progress = Progress.ENTERED;
            signals.enter(running);
        }
    }

    private void requireUnderWay() {
        if (underWay == null) {
            throw new IllegalStateException(
                    "signals, waits, turns and P2P streams belong to an operation: use them in"
                            + " ProcessGroup.execute");
        }
    }

    /** Lets the side stream wait for the entry into the running operation. */
    void orderSideStream() {
        markEntry();
        side.waitEvent(entry);
    }

    private void markEntry() {
        if (!entryMarked) {
            entryMarked = true;
            if (entry == null) {
                entry = CudaEvent.create(side.device());
            }
            entry.record(running);
        }
    }

    /** Lets a stream wait until all peers have entered, before it first writes to them. */
    private void reach(CudaStream stream) {
        enter();
        if ((stream == side ? sideProgress : progress) != Progress.PEERS_ENTERED) {
            setReached(stream);
            signals.awaitEntered(stream, underWay.timeout());
        }
    }

    private void setReached(CudaStream stream) {
        if (stream == side) {
            sideProgress = Progress.PEERS_ENTERED;
        } else {
            progress = Progress.PEERS_ENTERED;
        }
    }

    /** Returns whether the running operation is captured into a CUDA graph. */
    boolean isCapturing() {
        return launch == Launch.CAPTURED;
    }

    /** Enqueues an operation, or captures it into a graph if the stream is being captured. */
    void enqueue(
            Operation operation, CudaStream stream, boolean captured, Consumer<Operation> body) {
        underWay = operation;
        running = stream;
        launch = captured ? Launch.CAPTURED : Launch.SMALL;
        progress = Progress.OUTSIDE;
        sideProgress = Progress.OUTSIDE;
        entryMarked = false;
        try {
            if (captured) {
                graphTurn(); // Counts each launch of the graph as a call.
            } else {
                number = turn.begin();
            }
            body.accept(operation);
            // Signals and waits use the device's count of operations. The next operation must not
            // count before they have run.
            sideStream.joinInto(running);
        } finally {
            underWay = null;
            running = null;
            if (captured) {
                launch = Launch.SMALL;
            }
        }
    }

    /** Passes the operation's turn; the work is on the stream, with its end. */
    void enqueued(StreamWork work) {
        if (launch == Launch.FILLS_GPU) {
            turn.launched(number, work);
        } else {
            turn.passed(number);
        }
    }

    /** Makes later calls throw. */
    void end() {
        destroyed = true;
    }

    private void requireUsable() {
        if (destroyed) {
            throw GroupErrors.buffersDestroyed();
        }
    }

    @Override
    public void onGroupStream(Consumer<CudaStream> work) {
        Required.argument("onGroupStream: work", work);
        requireUsable();
        groupStream.accept(work);
    }

    @Override
    protected NDArray view(NDManager manager, int peer, Shape shape, ScalarType type, long offset) {
        requireUsable();
        return Torch.view(
                manager, region.memory(peer), region.layout().buffer() + offset, shape, type);
    }

    /** Returns the address at which a stream may now write to a rank's buffer or heap. */
    long address(CudaStream stream, int peer, long offset, long byteSize) {
        requireUsable();
        checkRange(peer, offset, byteSize);
        if (peer != rank) {
            reach(stream);
        }
        return region.address(peer) + region.layout().buffer() + offset;
    }

    void putSignal(CudaStream stream, int peer, int channel, long value) {
        requireUsable();
        checkRank(peer);
        checkChannel(channel);
        checkEpoch(value);
        enter();
        signals.signal(stream, peer, channel);
    }

    void waitSignal(CudaStream stream, Operation operation, int peer, int channel, long value) {
        requireUsable();
        checkRank(peer);
        await(stream, operation, channel, 1 << peer, value);
    }

    void waitSignals(CudaStream stream, Operation operation, int channel, long value) {
        requireUsable();
        await(stream, operation, channel, (1 << region.ranks()) - 1 & ~(1 << rank), value);
    }

    private void await(CudaStream stream, Operation operation, int channel, int peers, long value) {
        checkChannel(channel);
        checkEpoch(value);
        if (peers != 0) {
            enter();
            if (stream != side && sideProgress != Progress.OUTSIDE && !sideStream.isOrdered()) {
                markEntry(); // Now: peers may wait for work that the side stream has yet to do.
            }
            signals.await(stream, channel, peers, operation.timeout());
        }
    }

    /** Checks that an epoch is this operation's: later epochs are those of later operations. */
    private static void checkEpoch(long value) {
        if (value != EPOCH) {
            throw new IllegalArgumentException(
                    ("epoch %s is not the operation's epoch, %s: use another channel for a second"
                                    + " signal")
                            .formatted(value, EPOCH));
        }
    }

    @Override
    public void putSignal(int peer, int channel, long value) {
        requireUsable();
        putSignal(currentStreams.get(), peer, channel, value);
    }

    @Override
    public void waitSignal(Operation operation, int peer, int channel, long value) {
        requireUsable();
        Required.argument("waitSignal: operation", operation);
        waitSignal(currentStreams.get(), operation, peer, channel, value);
    }

    /** Does not enter the operation: all ranks count entries, and other ranks may not enter. */
    @Override
    protected void barrier(Operation operation, int[] ranks) {
        requireUsable();
        requireUnderWay();
        int mask = IntStream.of(ranks).map(member -> 1 << member).reduce(0, (a, b) -> a | b);
        signals.meet(currentStreams.get(), mask, operation.timeout());
    }

    /** No-op: {@link P2pQueue} has published the call, and compares it afterwards. */
    @Override
    public void awaitAgreement(Operation operation) {
        requireUsable();
    }

    @Override
    public void intraNodeBarrier(Operation operation) {
        requireUsable();
        Required.argument("intraNodeBarrier: operation", operation);
        barrier(currentStreams.get(), operation);
    }

    /** Lets a stream wait until all ranks have come to this point of the operation. */
    void barrier(CudaStream stream, Operation operation) {
        requireUsable();
        // awaitEntered() would not do: a peer may have worked since it entered.
        enter();
        signals.meet(stream, operation.timeout());
        setReached(stream);
    }

    /** Frees all but the region. */
    void close() {
        current.free();
        sideStream.free();
        side.close();
        if (entry != null) {
            entry.close();
        }
    }
}
