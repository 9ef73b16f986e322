/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.collectives.internal.nccl.NcclBackend;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * All that a {@code cuda_p2p} group has besides NCCL: memory that the GPUs of all ranks, or of
 * those that are linked, write into, kernels for all-reduces, and a queue of what operators do with
 * them. Either all ranks have it or none.
 */
final class P2p {

    private static final Logger logger = LoggerFactory.getLogger(P2p.class);

    private final GroupContext context;
    private final CudaP2pOptions options;
    private final CudaDevice device;
    private final NcclBackend nccl;
    private final P2pRegion region;
    private final WaitStatus waits;
    private final AllReduceKernels kernels;
    private final SignalKernels signals;
    private final HostSync hosts;
    private final CudaP2pBuffers buffers;
    private final P2pQueue queue;
    private final CurrentStreams currentStreams;
    private final BooleanSupplier recorded; // whether the current stream is

    // What gives tensors up into which ranks that come late may still write; null when all have
    // left. Guarded by this.
    private List<Runnable> abandoned = new ArrayList<>();

    private P2p(
            GroupContext context,
            CudaP2pOptions options,
            CudaDevice device,
            NcclBackend nccl,
            Parts parts) {
        this.context = context;
        this.options = options;
        this.device = device;
        this.nccl = nccl;
        this.region = parts.region;
        this.waits = parts.waits;
        this.kernels = parts.kernels;
        this.signals = parts.signals;
        this.hosts = parts.hosts;
        currentStreams = new CurrentStreams(device);
        recorded = () -> device.within(() -> currentStreams.get().isCapturing());
        buffers = new CudaP2pBuffers(region, device, currentStreams, signals, parts.kernelBlocks);
        queue =
                new P2pQueue(
                        context,
                        device,
                        options.ncclOptions().isBlockingWait(),
                        options.ncclOptions().isVerify(),
                        hosts,
                        currentStreams,
                        waits,
                        nccl);
    }

    /**
     * Finds out with the other ranks whether their GPUs reach each other's memory, and maps it.
     *
     * @param context the group and the rank
     * @param options the options
     * @param device the rank's GPU
     * @param topology how GPUs are linked, by where they are on the PCI bus
     * @param nccl runs the group's other operations
     * @return what all ranks have then; empty on all, if it cannot be done on one
     */
    static Optional<P2p> create(
            GroupContext context,
            CudaP2pOptions options,
            CudaDevice device,
            Function<List<String>, GpuTopology> topology,
            NcclBackend nccl) {
        RegionHandshake.Outcome outcome = RegionHandshake.run(context, options, device, topology);
        Parts parts = new Parts(outcome.region());
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
                parts.join(context);
                problem = RegionHandshake.agree(context, "p2p-hosts", parts::checkHosts);
            }
            if (problem == null) {
                parts.compareGpus(context, device);
                p2p = new P2p(context, options, device, nccl, parts);
                nccl.accompany(p2p.queue);
            }
        } finally {
            if (p2p == null) {
                parts.close();
            }
        }
        if (problem != null && context.rank() == 0) {
            logger.warn("group '{}' uses NCCL alone, for all ranks: {}", context.name(), problem);
        } else if (context.rank() == 0 && !outcome.region().links().isComplete()) {
            logger.info(
                    "group '{}' has no P2P buffers: not every two of its GPUs are linked",
                    context.name());
        }
        return Optional.ofNullable(p2p);
    }

    /**
     * How many blocks of a kernel that waits for peers each rank may launch, if each block takes an
     * SM. Ranks that share a GPU leave half of its SMs free while all but one of them wait: cuBLAS
     * launches clusters of eight blocks that fill an SM each, and such a cluster starts only when
     * eight SMs of one GPC are free at once. With half of the SMs free, some GPC of a Hopper GPU
     * has eight, wherever the waiting blocks are.
     *
     * @param processors the SMs of the GPU
     * @param sharing the ranks that share it, 1 if each rank has its own
     */
    static int waitingBlocks(int processors, int sharing) {
        return sharing == 1 ? processors : Math.max(1, processors / (2 * (sharing - 1)));
    }

    /** Builder state while a P2p is being set up. */
    private static final class Parts {

        private final P2pRegion region; // null if there is none
        private WaitStatus waits;
        private AllReduceKernels kernels;
        private SignalKernels signals;
        private HostSync hosts;
        private RuntimeException noHosts;
        private int kernelBlocks; // of kernels that wait; 0 if the ranks' GPUs differ

        Parts(P2pRegion region) {
            this.region = region;
        }

        /** Compiles and loads them before any runs: doing so later could wait for those that do. */
        void loadKernels(CudaDevice device) {
            KernelCompiler compiler = new KernelCompiler(KernelCache.user());
            SignalKernels.prepare(device, compiler); // While the all-reduces compile.
            waits = new WaitStatus(device, region.rank());
            kernels = new AllReduceKernels(region, device, waits, compiler);
            signals = new SignalKernels(region, device, waits, compiler);
        }

        /** Leaves out what the GPU of another rank cannot run: NCCL does that on all ranks. */
        void agreeOnKernels(GroupContext context) {
            Set<String> own = kernels.names();
            kernels.retain(RegionHandshake.common(context, "p2p-kernel-names", own));
            own.removeAll(kernels.names());
            if (!own.isEmpty()) {
                logger.info(
                        "rank {} of group '{}' does without {}, which another rank cannot run",
                        context.rank(),
                        context.name(),
                        own);
            }
        }

        void join(GroupContext context) {
            try {
                hosts = HostSync.join(context);
            } catch (CollectiveTimeoutException e) {
                throw e; // Who has not come will not come to agree on this.
            } catch (RuntimeException e) {
                noHosts = e;
            }
        }

        /** Agrees on how many blocks of a kernel that waits for peers each rank may launch. */
        void compareGpus(GroupContext context, CudaDevice device) {
            int processors = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
            String gpu = device.architecture() + " " + processors + " " + device.pciBusId();
            List<String> gpus =
                    context.exchange("p2p-gpus", gpu.getBytes(StandardCharsets.UTF_8)).stream()
                            .map(bytes -> new String(bytes, StandardCharsets.UTF_8))
                            .toList();
            boolean alike =
                    gpus.stream()
                                    .map(one -> one.substring(0, one.lastIndexOf(' ')))
                                    .distinct()
                                    .count()
                            == 1;
            int sharing =
                    gpus.stream().mapToInt(one -> Collections.frequency(gpus, one)).max().orElse(1);
            int blocks =
                    gpus.stream()
                            .mapToInt(
                                    one ->
                                            waitingBlocks(
                                                    Integer.parseInt(one.split(" ")[1]), sharing))
                            .min()
                            .orElseThrow();
            if (sharing > 1) {
                kernels.shareGpu(blocks);
            }
            boolean buffers = region.layout().bufferSize() > 0;
            kernelBlocks = alike && buffers ? blocks : 0;
        }

        void checkHosts() {
            if (noHosts != null) {
                throw noHosts;
            }
        }

        void close() {
            if (hosts != null) {
                hosts.close();
            }
            for (AutoCloseable part : new AutoCloseable[] {signals, kernels, waits}) {
                closePart(part);
            }
            if (region != null) {
                region.closePeers();
                region.close();
            }
        }

        private static void closePart(AutoCloseable part) {
            try {
                if (part != null) {
                    part.close();
                }
            } catch (Exception e) {
                logger.warn("what a group without P2P memory had loaded cannot be freed", e);
            }
        }
    }

    /** The buffers; empty also where not every pair of ranks is linked. */
    Optional<P2pBuffers> buffers() {
        return buffers.bufferSize() + buffers.heapSize() == 0
                ? Optional.empty()
                : Optional.of(buffers);
    }

    /** How a tensor is reduced; null for NCCL. Depends on what is the same on all ranks. */
    Algorithm algorithm(TensorInfo tensor, ReduceOp op) {
        boolean sum = op == ReduceOp.SUM || op == ReduceOp.AVG;
        long byteSize = tensor.byteSize();
        if (!sum || byteSize == 0 || context.worldSize() == 1) {
            return null;
        }
        Algorithm algorithm = algorithm(options, region.links(), byteSize, recorded);
        return algorithm != null && kernels.isSupported(algorithm, tensor.type())
                ? algorithm
                : null;
    }

    /** How a sum of so many bytes is done, if there is a kernel for it; null for NCCL. */
    static Algorithm algorithm(
            CudaP2pOptions options, P2pLinks links, long byteSize, BooleanSupplier recorded) {
        int ranks = links.ranks();
        boolean oneShot = byteSize <= options.oneShotBytes(ranks);
        switch (links.kind()) {
            case FULLY_CONNECTED_NVLINK:
                if (oneShot) {
                    return Algorithm.ONE_SHOT;
                }
                if (byteSize <= options.twoShotBytes(ranks, false)) {
                    return Algorithm.TWO_SHOT;
                }
                boolean graph = recorded.getAsBoolean();
                if (byteSize <= options.twoShotBytes(ranks, graph)) {
                    return Algorithm.TWO_SHOT;
                }
                return options.isDirect(ranks, graph) ? Algorithm.DIRECT : null;
            case HYBRID_CUBE_MESH:
                return oneShot ? Algorithm.MESH : null;
            default:
                return null;
        }
    }

    /**
     * Reduces a tensor by a kernel on the group's stream; on the caller's current stream where that
     * is recorded into a graph, or goes on behind it and nothing speaks against it.
     */
    Work allReduce(
            Operation operation,
            NDArray tensor,
            ReduceOp op,
            Algorithm algorithm,
            boolean inOrder) {
        TensorInfo info = operation.tensor();
        operation.setAlgorithm(algorithm.kernel());
        float divisor = op == ReduceOp.AVG ? context.worldSize() : 1;
        boolean direct = algorithm == Algorithm.DIRECT;
        NcclBackend.Kernel kernel =
                new NcclBackend.Kernel() {
                    @Override
                    public void launch(long address, CudaStream stream) {
                        kernels.enqueue(
                                stream,
                                algorithm,
                                address,
                                info.count(),
                                info.type(),
                                divisor,
                                operation.timeout());
                    }

                    @Override
                    public void releaseFailed(Runnable release) {
                        if (!direct || !abandon(release)) {
                            release.run();
                        }
                    }
                };
        return device.within(
                () -> {
                    CudaStream current = currentStreams.get();
                    boolean inPlace =
                            info.isContiguous()
                                    && (!direct
                                            || AllReduceKernels.isReachable(
                                                    device, info.address()));
                    // Works of the group's stream keep what ranks that come late may still write
                    // into, make copies before others know of the call, and wait for NCCL.
                    boolean here = inOrder && !direct && inPlace && nccl.isLaunched();
                    return here || current.isCapturing()
                            ? queue.run(
                                    operation,
                                    current,
                                    (stream, captured) ->
                                            enqueue(stream, tensor, info, inPlace, kernel),
                                    List.of(tensor))
                            : nccl.run(operation, tensor, inPlace, current, kernel);
                });
    }

    /** Enqueues a kernel for the tensor or, in a graph, for a copy. */
    private static void enqueue(
            CudaStream stream,
            NDArray tensor,
            TensorInfo info,
            boolean inPlace,
            NcclBackend.Kernel kernel) {
        if (inPlace) {
            kernel.launch(info.address(), stream);
            return;
        }
        try (NDArray copy =
                Torch.empty(tensor.getManager(), new Shape(info.sizes()), info.type())) {
            stream.keepAlive(copy);
            NoGradient.run(
                    () -> {
                        Torch.copy(copy, tensor);
                        kernel.launch(Torch.dataPointer(copy), stream);
                        Torch.copy(tensor, copy);
                    });
        }
    }

    /** Runs code that enqueues an operation on the streams of the {@link #buffers()}. */
    Work execute(Operation operation, Runnable body) {
        return device.within(
                () ->
                        queue.run(
                                operation,
                                currentStreams.get(),
                                (stream, captured) ->
                                        buffers.enqueue(operation, stream, captured, body),
                                List.of()));
    }

    /** Makes the host's waits for other ranks fail; any thread may call it. */
    void stopWaiting() {
        queue.end();
    }

    /** Tells the other ranks that this one calls nothing more. */
    void endCalls() {
        queue.endCalls();
    }

    /** Ends what is done with it, when no operation is under way any more. */
    void stop() {
        buffers.end();
        kernels.end();
        waits.stop(); // Nobody knows what graphs still do.
    }

    /** Frees everything, after {@link #stop}. */
    void free() {
        try {
            queue.close();
            kernels.close();
            signals.close();
            waits.close();
            buffers.close();
            region.closePeers();
        } finally {
            // Also when the driver refuses calls: other ranks keep what is theirs until this has
            // left.
            RetiredRegions.add(region, hosts, this::releaseAbandoned);
        }
    }

    /** Keeps what a failed operation held until all ranks have left; false if they have. */
    private synchronized boolean abandon(Runnable release) {
        return abandoned != null && abandoned.add(release);
    }

    private void releaseAbandoned() {
        List<Runnable> releases;
        synchronized (this) {
            releases = abandoned;
            abandoned = null;
        }
        for (Runnable release : releases) {
            try {
                release.run();
            } catch (RuntimeException e) {
                logger.warn("memory that a failed operation held cannot be freed", e);
            }
        }
    }
}
