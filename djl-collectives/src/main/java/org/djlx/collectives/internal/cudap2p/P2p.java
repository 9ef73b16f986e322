// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.function.Function;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.DebugLevel;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.internal.gpu.GpuCall;
import org.djlx.collectives.internal.gpu.GpuGroup;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.collectives.internal.nccl.NcclBackend;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaException;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.GpuRates;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorHold;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The P2P part of a {@code cuda_p2p} group: memory that the GPUs of linked ranks write to, kernels
 * of all-reduces, and the queue of operations. Either all ranks have it or none.
 */
final class P2p {

    private static final Logger logger = LoggerFactory.getLogger(P2p.class);

    private final GroupContext context;
    private final CudaP2pOptions options;
    private final CudaDevice device;
    private final GpuGroup group;
    private final P2pRegion region;
    private final WaitStatus waits;
    private final AllReduceKernels kernels;
    private final ExchangeKernels exchanges;
    private final CopyExchange copies;
    private final P2pCollectives collectives;
    private final SignalKernels signals;
    private final HostSync hosts;
    private final RegionHandshake.Place place;
    private final CudaP2pBuffers buffers;
    private final P2pQueue queue;
    private final CurrentStreams currentStreams;
    private final BooleanSupplier capturing; // whether the current stream is being captured

    private final boolean allCompareNccl;
    private volatile long maxKernelBytes =
            Long.MAX_VALUE; // larger ones use NCCL, but not in graphs

    private final LateWriters lateWriters = new LateWriters();

    private P2p(
            GroupContext context,
            CudaP2pOptions options,
            CudaDevice device,
            GpuGroup group,
            P2pParts parts) {
        this.context = context;
        this.options = options;
        this.device = device;
        this.group = group;
        this.region = parts.region;
        this.waits = parts.waits;
        this.kernels = parts.kernels;
        this.exchanges = parts.exchanges;
        this.signals = parts.signals;
        this.hosts = parts.hosts;
        this.place = parts.place;
        this.allCompareNccl = parts.allCompareNccl;
        currentStreams = new CurrentStreams(device);
        capturing = () -> currentStreams.get().isCapturing();
        buffers =
                new CudaP2pBuffers(
                        region,
                        device,
                        currentStreams,
                        signals,
                        parts.kernelBlocks,
                        parts.gpuRates,
                        parts.linkRate,
                        place.turn(),
                        () -> parts.waitingBlocks(AllReduceKernels.maxBlocks(parts.processors)),
                        () -> parts.waitingBlocks(Integer.MAX_VALUE),
                        this::onGroupStream);
        queue =
                new P2pQueue(
                        context,
                        device,
                        options.debug() == DebugLevel.DETAIL,
                        hosts,
                        currentStreams,
                        waits,
                        group,
                        place);
        copies = new CopyExchange(region, signals, exchanges, group.resources(), buffers.side());
        collectives =
                new P2pCollectives(
                        exchanges,
                        copies,
                        options.isCopyEngines(),
                        queue,
                        group,
                        currentStreams,
                        region);
    }

    /**
     * Measures from which size on NCCL's all-reduce is faster than the kernels, see {@link
     * NcclLimit}. All ranks call this before the first operation. No-op in these cases:
     *
     * <ul>
     *   <li>some rank does not {@linkplain NcclBackend#connectsEarly connect early}, or its options
     *       are against it
     *   <li>NVLink does not join every two GPUs
     *   <li>there is no one-shot or no two-shot kernel for float32
     * </ul>
     */
    void compareWith(NcclBackend nccl) {
        boolean linked = region.links().kind() == GpuTopology.Kind.FULLY_CONNECTED_NVLINK;
        boolean able =
                kernels.isSupported(Algorithm.ONE_SHOT, ScalarType.FLOAT32)
                        && kernels.isSupported(Algorithm.TWO_SHOT, ScalarType.FLOAT32);
        if (!linked || !able || !allCompareNccl) {
            return;
        }
        // Every size up to this limit takes a one-shot or two-shot kernel. The P2P buffer holds the
        // numbers that are summed.
        long most = options.twoShotBytes(region.ranks(), false);
        long buffer = region.address(region.rank()) + region.layout().buffer();
        Duration timeout = context.options().timeout();
        try (CudaStream stream = CudaStream.create(device)) {
            maxKernelBytes =
                    NcclLimit.measure(
                            context,
                            Math.min(region.layout().bufferSize(), most),
                            bytes -> {
                                Algorithm algorithm =
                                        algorithm(options, region.links(), bytes, () -> false);
                                long count = bytes / Float.BYTES;
                                Runnable sum =
                                        () ->
                                                kernels.enqueue(
                                                        stream,
                                                        algorithm,
                                                        buffer,
                                                        count,
                                                        ScalarType.FLOAT32,
                                                        1,
                                                        timeout);
                                double seconds = GpuRates.seconds(stream, sum);
                                requireArrived();
                                return seconds;
                            },
                            bytes -> {
                                Runnable sum = () -> nccl.sum(buffer, bytes / Float.BYTES, stream);
                                return GpuRates.seconds(stream, sum);
                            });
        }
        logger.debug(
                "group '{}': all-reduces of more than {} bytes use NCCL",
                context.name(),
                maxKernelBytes);
    }

    /** Throws if a measured sum has not waited for a rank. */
    private void requireArrived() {
        waits.error()
                .ifPresent(
                        problem -> {
                            throw new CollectiveException(
                                    "cannot measure the all-reduces of group '"
                                            + context.name()
                                            + "': "
                                            + problem);
                        });
    }

    private void onGroupStream(Consumer<CudaStream> work) {
        queue.launchAfterAll(() -> group.collectives().enqueue(work));
    }

    /**
     * Maps the memory of all ranks, if their GPUs can access it; empty on all ranks if one cannot.
     */
    static Optional<P2p> create(
            GroupContext context,
            CudaP2pOptions options,
            CudaDevice device,
            Function<List<String>, GpuTopology> topology,
            NcclBackend nccl) {
        GpuGroup group = nccl.group();
        RegionHandshake.Outcome outcome = RegionHandshake.run(context, options, device, topology);
        P2pParts parts = new P2pParts(outcome);
        String problem = outcome.problem();
        P2p p2p = null;
        try {
            if (problem == null) {
                problem =
                        RegionHandshake.agree(
                                context, "p2p-kernels", () -> parts.loadKernels(device));
            }
            if (problem == null) {
                parts.agreeOnKernels(context);
                boolean compares =
                        nccl.connectsEarly()
                                && options.measuresNcclLimit(
                                        context.worldSize(), mayMulticast(device));
                parts.compareGpus(context, device, compares);
                p2p = new P2p(context, options, device, group, parts);
                group.extend(p2p.queue);
            }
        } finally {
            if (p2p == null) {
                parts.close();
            }
        }
        if (problem != null && context.rank() == 0) {
            logger.warn("group '{}' uses NCCL only, on all ranks: {}", context.name(), problem);
        } else if (context.rank() == 0 && !outcome.region().links().isComplete()) {
            logger.info(
                    "group '{}' has no P2P buffers: its GPUs are not fully connected",
                    context.name());
        }
        return Optional.ofNullable(p2p);
    }

    /**
     * Returns the P2P buffers; empty if they have no bytes, as where a pair of ranks is not linked.
     */
    Optional<P2pBuffers> buffers() {
        return buffers.bufferSize() + buffers.heapSize() == 0
                ? Optional.empty()
                : Optional.of(buffers);
    }

    P2pCollectives collectives() {
        return collectives;
    }

    /** Returns whether NCCL may reduce within NVSwitches (NVLS). */
    private static boolean mayMulticast(CudaDevice device) {
        if ("0".equals(System.getenv("NCCL_NVLS_ENABLE"))) {
            return false;
        }
        try {
            return device.attribute(CudaAttribute.MULTICAST) != 0;
        } catch (CudaException e) { // drivers before CUDA 12.1 do not know the attribute
            logger.debug("{} has no multicast", device, e);
            return false;
        }
    }

    /** Returns whether the caller's current stream is being captured into a graph. */
    boolean isCapturing() {
        return capturing.getAsBoolean();
    }

    /** Returns the algorithm for a tensor, the same on all ranks; null for NCCL. */
    Algorithm algorithm(TensorInfo tensor, ReduceOp op) {
        boolean sum = op == ReduceOp.SUM || op == ReduceOp.AVG;
        long byteSize = tensor.byteSize();
        if (!sum || byteSize == 0 || context.worldSize() == 1) {
            return null;
        }
        if (byteSize > maxKernelBytes && !isCapturing()) {
            return null;
        }
        Algorithm algorithm = algorithm(options, region.links(), byteSize, capturing);
        return algorithm != null && kernels.isSupported(algorithm, tensor.type().real())
                ? algorithm
                : null;
    }

    /** Returns the algorithm for a sum of so many bytes; null for NCCL. */
    static Algorithm algorithm(
            CudaP2pOptions options, P2pLinks links, long byteSize, BooleanSupplier capturing) {
        int ranks = links.ranks();
        switch (links.kind()) {
            case FULLY_CONNECTED_NVLINK:
                if (byteSize <= options.oneShotBytes(ranks)) {
                    return Algorithm.ONE_SHOT;
                }
                if (byteSize <= options.twoShotBytes(ranks, false)) {
                    return Algorithm.TWO_SHOT;
                }
                boolean graph = capturing.getAsBoolean();
                if (byteSize <= options.twoShotBytes(ranks, graph)) {
                    return Algorithm.TWO_SHOT;
                }
                return options.isDirect(ranks, graph) ? Algorithm.DIRECT : null;
            case HYBRID_CUBE_MESH:
                return byteSize <= options.meshBytes() ? Algorithm.MESH : null;
            default:
                return null;
        }
    }

    /**
     * Reduces a tensor by a kernel. The kernel runs on the caller's current stream if that is being
     * captured, or if the caller waits for the result at once and the kernel can use the tensor in
     * place. Otherwise it runs on the group's stream.
     */
    Work allReduce(Operation operation, NDArray tensor, ReduceOp op, Algorithm algorithm) {
        operation.setAlgorithm(algorithm.kernel());
        TensorInfo info = operation.tensor();
        boolean direct = algorithm == Algorithm.DIRECT;
        float divisor = op == ReduceOp.AVG ? context.worldSize() : 1;
        try (CurrentStreams.Scope scope = currentStreams.hold()) {
            CudaStream current = scope.stream();
            boolean inPlace =
                    info.isContiguous()
                            && (!direct || AllReduceKernels.isReachable(device, info.address()));
            Reduction reduction =
                    new Reduction(this, operation, algorithm, divisor, info.address());
            // Only works of the group's stream hold tensors that late peers may write to, make
            // copies before the call is published, and wait for the helper.
            boolean onCurrent =
                    operation.isInOrder() && !direct && inPlace && group.collectives().isLaunched();
            if (!onCurrent && !current.isCapturing()) {
                return group.run(operation, tensor, inPlace, current, reduction::at);
            }
            Work work =
                    queue.run(
                            operation,
                            current,
                            new OnCurrent(
                                    this, reduction, tensor, inPlace, TensorHold.ofChecked(tensor)),
                            List.of(tensor));
            if (operation.isInOrder() && work instanceof StreamWork streamWork) {
                streamWork.setOrdered();
            }
            return work;
        }
    }

    /** A kernel that reduces the elements at an address, on a stream that was chosen before. */
    private record Reduction(
            P2p p2p, Operation operation, Algorithm algorithm, float divisor, long address)
            implements GpuCall.Body {

        Reduction at(long other) {
            return new Reduction(p2p, operation, algorithm, divisor, other);
        }

        @Override
        public void enqueue(CudaStream stream) {
            TensorInfo info = operation.tensor();
            p2p.kernels.enqueue(
                    stream,
                    algorithm,
                    address,
                    info.realCount(),
                    info.type().real(),
                    divisor,
                    operation.timeout());
        }

        @Override
        public void releaseFailed(Runnable release) {
            p2p.lateWriters.release(release, algorithm == Algorithm.DIRECT);
        }
    }

    /** An all-reduce on the caller's current stream, without a copy if it is in place. */
    private record OnCurrent(
            P2p p2p, Reduction reduction, NDArray tensor, boolean inPlace, TensorHold hold)
            implements P2pQueue.Body {

        @Override
        public void enqueue(CudaStream current, boolean captured) {
            if (inPlace) {
                p2p.keepInGraph(tensor, reduction.algorithm);
                reduction.enqueue(current);
                return;
            }
            TensorInfo info = reduction.operation.tensor();
            try (NDArray copy =
                    Torch.empty(tensor.getManager(), new Shape(info.sizes()), info.type())) {
                current.keepAlive(copy);
                p2p.keepInGraph(copy, reduction.algorithm);
                NoGradient.run(
                        () -> {
                            Torch.copy(copy, tensor);
                            reduction.at(Torch.dataPointer(copy)).enqueue(current);
                            Torch.copy(tensor, copy);
                        });
            }
        }

        @Override
        public void release() {
            hold.close();
        }
    }

    /**
     * Keeps the tensor of a captured direct all-reduce until the graph is closed; if a replay has
     * failed, until late peers no longer write to it.
     */
    private void keepInGraph(NDArray tensor, Algorithm algorithm) {
        if (algorithm == Algorithm.DIRECT) {
            CudaGraph.keepAlive(release -> lateWriters.release(release, waits.hasFailed()), tensor);
        }
    }

    /** Runs an operator that uses the {@link #buffers()} and their streams. */
    Work execute(Operation operation, Consumer<Operation> body) {
        try (CurrentStreams.Scope scope = currentStreams.hold()) {
            return queue.run(
                    operation,
                    scope.stream(),
                    new P2pQueue.Body() {
                        @Override
                        public void enqueue(CudaStream stream, boolean captured) {
                            buffers.enqueue(operation, stream, captured, body);
                        }

                        @Override
                        public void enqueued(StreamWork work) {
                            buffers.enqueued(work);
                        }
                    },
                    List.of());
        }
    }

    /** Makes waits of this host for other ranks fail. Thread-safe. */
    void stopWaiting() {
        queue.end();
    }

    /** Announces to the other ranks that this rank makes no more calls. */
    void endCalls() {
        queue.endCalls();
    }

    /** Makes later calls throw, and ends waits of kernels; no operation may be running. */
    void stop() {
        place.leave();
        buffers.end();
        kernels.end();
        exchanges.end();
        waits.stop(); // Graphs may still run.
    }

    /** Frees all resources, after {@link #stop}. */
    void free() {
        try {
            queue.close();
            copies.close();
            kernels.close();
            exchanges.close();
            signals.close();
            waits.close();
            buffers.close();
        } finally {
            // Also if the driver throws: the other ranks keep their memory until this rank has
            // left.
            RetiredRegions.add(region, hosts, lateWriters::end);
        }
    }
}
