/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.LongConsumer;
import java.util.function.Supplier;
import org.djlx.collectives.Backend;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.GroupContext;
import org.djlx.collectives.Operation;
import org.djlx.collectives.P2pBuffers;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Support;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.cudap2p.P2pAllReduce.Algorithm;
import org.djlx.collectives.internal.gpu.CurrentStreams;
import org.djlx.collectives.internal.gpu.Disposal;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.collectives.internal.nccl.NcclBackend;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.GpuTopology;
import org.djlx.nativeops.KernelCache;
import org.djlx.nativeops.KernelCompiler;
import org.djlx.nativeops.NoGradient;
import org.djlx.nativeops.TensorInfo;
import org.djlx.nativeops.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * NCCL, with P2P buffers beside it and small all-reduces between the GPUs themselves. Whether P2P
 * is used is found out when the group is created, and agreed on by all ranks.
 */
final class CudaP2pBackend extends Backend {

    static final String NAME = "cuda_p2p";

    private static final Logger logger = LoggerFactory.getLogger(CudaP2pBackend.class);
    private static final int MESH_RANKS = 8;

    private final NcclBackend nccl;
    private final CudaP2pOptions options;
    private final String name;
    private final int worldSize;
    private final CudaDevice device;
    private final HostSync hosts; // this and the next three: null if there is no P2P
    private final P2pLine line;
    private final CudaP2pBuffers buffers;
    private final P2pAllReduce allReduce;
    private final GpuTopology.Kind topology;
    private Work lastOfNccl; // null if nothing need wait for it; guarded by the group's lock
    private boolean closed;

    private CudaP2pBackend(GroupContext context, CudaP2pOptions options, NcclBackend nccl) {
        this.nccl = nccl;
        this.options = options;
        name = context.name();
        worldSize = context.worldSize();
        device = CudaDevice.open(nccl.device());
        P2pRegion.Mapped mapped = P2pRegion.map(context, options, device);
        P2pRegion region = mapped.region();
        Kernels kernels = new Kernels();
        Hosts joined = new Hosts();
        String problem = mapped.problem();
        GpuTopology.Kind kind = GpuTopology.Kind.OTHER;
        boolean done = false;
        try {
            if (problem == null) {
                problem =
                        P2pRegion.agree(
                                context,
                                "p2p-kernels",
                                () -> kernels.load(region, device, context));
            }
            if (problem == null) {
                joined.join(context);
                problem = P2pRegion.agree(context, "p2p-hosts", joined::check);
            }
            if (problem == null) {
                kind = options.topology().orElseGet(() -> region.topology(context));
                done = true;
            }
        } finally {
            if (!done) {
                joined.close();
                kernels.close();
                if (region != null) {
                    region.close();
                }
            }
        }
        topology = kind;
        if (problem != null) {
            if (context.rank() == 0) {
                logger.warn(
                        "group '{}' uses NCCL alone, for all ranks: {}", context.name(), problem);
            }
            buffers = null;
            allReduce = null;
            hosts = null;
            line = null;
            return;
        }
        allReduce = kernels.allReduce;
        hosts = joined.sync;
        CurrentStreams currentStreams = new CurrentStreams(device);
        buffers = new CudaP2pBuffers(region, device, hosts, currentStreams, kernels.reducer);
        line =
                new P2pLine(
                        context,
                        device,
                        options.ncclOptions().isBlockingWait(),
                        hosts,
                        buffers,
                        currentStreams,
                        allReduce,
                        nccl::breakWith);
    }

    /** The other ranks' hosts, or why they cannot be reached. */
    private static final class Hosts {

        private HostSync sync;
        private RuntimeException failure;

        void join(GroupContext context) {
            try {
                sync = HostSync.join(context);
            } catch (CollectiveTimeoutException e) {
                throw e; // Who has not come will not come to agree on this.
            } catch (RuntimeException e) {
                failure = e;
            }
        }

        void check() {
            if (failure != null) {
                throw failure;
            }
        }

        void close() {
            if (sync != null) {
                sync.close();
            }
        }
    }

    /** Compiled and loaded before any runs: doing so later could wait for those that wait. */
    private static final class Kernels {

        private P2pAllReduce allReduce;
        private RankOrderReducer reducer;

        void load(P2pRegion region, CudaDevice device, GroupContext context) {
            KernelCompiler compiler = new KernelCompiler(KernelCache.user());
            allReduce = new P2pAllReduce(region, device, context.rank(), compiler);
            reducer = new RankOrderReducer(device, compiler);
        }

        void close() {
            if (allReduce != null) {
                allReduce.close();
            }
            if (reducer != null) {
                reducer.close();
            }
        }
    }

    static CudaP2pBackend create(GroupContext context, CudaP2pOptions options) {
        NcclBackend nccl = NcclBackend.create(context, options.ncclOptions());
        try {
            return new CudaP2pBackend(context, options, nccl);
        } catch (RuntimeException | LinkageError e) {
            nccl.close();
            throw e;
        }
    }

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public Support support() {
        return nccl.support();
    }

    @Override
    public Device device() {
        return nccl.device();
    }

    @Override
    public Optional<P2pBuffers> p2pBuffers() {
        return buffers == null || buffers.bufferSize() + buffers.heapSize() == 0
                ? Optional.empty()
                : Optional.of(buffers);
    }

    @Override
    public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        TensorInfo info = operation.tensor();
        Algorithm algorithm = algorithm(info, op);
        if (algorithm == null) {
            return viaNccl(() -> nccl.allReduce(operation, tensor, op));
        }
        operation.setAlgorithm(algorithm.name().toLowerCase());
        float divisor = op == ReduceOp.AVG ? worldSize : 1;
        return viaP2p(
                operation,
                stream ->
                        inPlace(
                                stream,
                                tensor,
                                info,
                                address -> {
                                    // See CudaP2pBuffers.awaitAgreement: the kernel waits for those
                                    // of the other ranks, which they are about to launch.
                                    hosts.agree(operation);
                                    allReduce.enqueue(
                                            stream,
                                            algorithm,
                                            address,
                                            info.count(),
                                            info.type(),
                                            divisor,
                                            operation.timeout());
                                    awaitLaunches(operation, stream);
                                }),
                List.of(tensor));
    }

    /**
     * Waits until all ranks have launched a kernel that waits for theirs. In one process this rank
     * could otherwise call the driver, which waits for all GPUs, and keep the others from it.
     */
    private void awaitLaunches(Operation operation, CudaStream stream) {
        if (buffers.isInOneProcess() && !stream.isCapturing()) {
            hosts.meet(operation);
        }
    }

    /** Gives the tensor's address to some code, or that of a copy if it is not contiguous. */
    private static void inPlace(
            CudaStream stream, NDArray tensor, TensorInfo info, LongConsumer body) {
        if (info.isContiguous()) {
            body.accept(info.address());
            return;
        }
        try (NDArray copy =
                Torch.empty(tensor.getManager(), new Shape(info.sizes()), info.type())) {
            if (stream.isCapturing()) {
                stream.keepAlive(copy);
            }
            NoGradient.run(
                    () -> {
                        Torch.copy(copy, tensor);
                        body.accept(Torch.dataPointer(copy));
                        Torch.copy(tensor, copy);
                    });
        }
    }

    /** Runs an operation behind those that NCCL runs on a stream of its own. */
    private Work viaP2p(Operation operation, Consumer<CudaStream> body, List<NDArray> result) {
        Work before = lastOfNccl;
        // What is in a batch is not launched yet; a graph is ordered by whoever launches it.
        boolean ordered = !nccl.isBatching() && !buffers.currentStream().isCapturing();
        if (before != null && ordered) {
            lastOfNccl = null;
            if (!before.isCompleted()) {
                try {
                    before.blockCurrentStream();
                } catch (CollectiveException e) {
                    logger.debug("{} follows on an operation that failed", operation, e);
                }
            }
        }
        return line.run(operation, body, result);
    }

    /** Runs an operation behind those that run on the callers' streams. */
    private Work viaNccl(Supplier<Work> operation) {
        if (line == null) {
            return operation.get();
        }
        line.join();
        lastOfNccl = operation.get();
        return lastOfNccl;
    }

    /** How a tensor is reduced; null for NCCL. Depends on what is the same on all ranks. */
    private Algorithm algorithm(TensorInfo tensor, ReduceOp op) {
        boolean sum = op == ReduceOp.SUM || op == ReduceOp.AVG;
        long byteSize = tensor.byteSize();
        if (allReduce == null
                || !sum
                || !P2pAllReduce.isSupported(tensor.type())
                || byteSize == 0
                || worldSize == 1) {
            return null;
        }
        switch (topology) {
            case FULLY_CONNECTED_NVLINK:
                if (byteSize <= options.oneShotBytes()) {
                    return Algorithm.ONE_SHOT;
                }
                return byteSize <= options.twoShotBytes() ? Algorithm.TWO_SHOT : null;
            case HYBRID_CUBE_MESH:
                return worldSize == MESH_RANKS && byteSize <= options.oneShotBytes()
                        ? Algorithm.MESH
                        : null;
            default:
                return null;
        }
    }

    @Override
    public Work execute(Operation operation, Runnable body) {
        if (buffers == null) {
            return super.execute(operation, body);
        }
        return viaP2p(operation, stream -> execute(operation, stream, body), List.of());
    }

    private void execute(Operation operation, CudaStream stream, Runnable body) {
        if (stream.isCapturing()) {
            // The barrier is a kernel that waits for those of the other ranks.
            hosts.agree(operation);
            Runnable barrier = () -> allReduce.barrier(stream, operation.timeout());
            buffers.capture(stream, barrier, body);
        } else {
            body.run();
        }
    }

    @Override
    public Work reduce(Operation operation, NDArray tensor, int root, ReduceOp op) {
        return viaNccl(() -> nccl.reduce(operation, tensor, root, op));
    }

    @Override
    public Work broadcast(Operation operation, NDArray tensor, int root) {
        return viaNccl(() -> nccl.broadcast(operation, tensor, root));
    }

    @Override
    public Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        return viaNccl(() -> nccl.allGather(operation, outputs, input));
    }

    @Override
    public Work reduceScatter(
            Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        return viaNccl(() -> nccl.reduceScatter(operation, output, inputs, op));
    }

    @Override
    public Work gather(Operation operation, List<NDArray> outputs, NDArray input, int root) {
        return viaNccl(() -> nccl.gather(operation, outputs, input, root));
    }

    @Override
    public Work scatter(Operation operation, NDArray output, List<NDArray> inputs, int root) {
        return viaNccl(() -> nccl.scatter(operation, output, inputs, root));
    }

    @Override
    public Work allToAll(Operation operation, List<NDArray> outputs, List<NDArray> inputs) {
        return viaNccl(() -> nccl.allToAll(operation, outputs, inputs));
    }

    @Override
    public Work allToAllSingle(
            Operation operation,
            NDArray output,
            NDArray input,
            long[] outputCounts,
            long[] inputCounts) {
        return viaNccl(
                () -> nccl.allToAllSingle(operation, output, input, outputCounts, inputCounts));
    }

    @Override
    public Work send(Operation operation, NDArray tensor, int destination, int tag) {
        return nccl.send(operation, tensor, destination, tag);
    }

    @Override
    public Work recv(Operation operation, NDArray tensor, int source, int tag) {
        return nccl.recv(operation, tensor, source, tag);
    }

    @Override
    public void startBatch() {
        nccl.startBatch();
    }

    @Override
    public void endBatch() {
        nccl.endBatch();
    }

    @Override
    public Work barrier(Operation operation) {
        return viaNccl(() -> nccl.barrier(operation));
    }

    @Override
    public boolean batchesCollectives() {
        return nccl.batchesCollectives();
    }

    @Override
    public synchronized void stopWaiting() {
        if (line != null && !closed) {
            line.end();
        }
    }

    @Override
    public synchronized void close() {
        if (closed) {
            return;
        }
        closed = true;
        if (line != null) {
            buffers.end();
            line.stop();
        }
        nccl.close();
        Disposal.run(
                "the P2P memory of group '" + name + "'",
                () -> {
                    if (line != null) {
                        line.close();
                    }
                    device.close();
                });
    }
}
