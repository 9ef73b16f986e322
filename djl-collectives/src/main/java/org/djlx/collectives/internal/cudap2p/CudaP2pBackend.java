// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import java.util.List;
import java.util.Optional;
import java.util.function.Consumer;
import java.util.function.Function;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.DebugLevel;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.internal.gpu.Batch;
import org.djlx.collectives.internal.gpu.Disposal;
import org.djlx.collectives.internal.nccl.NcclBackend;
import org.djlx.collectives.p2p.P2pBackend;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Support;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.GpuTopology;

/**
 * Sends each operation to NCCL, {@link P2p} or {@link P2pCollectives}. P2P runs all-reduces and
 * operators on P2P buffers. It needs GPUs that all reach each other's memory, or form a hybrid cube
 * mesh; otherwise NCCL runs everything.
 */
final class CudaP2pBackend extends Backend implements P2pBackend {

    static final String NAME = "cuda_p2p";

    private final String name;
    private final CudaP2pOptions options;
    private final Function<List<String>, GpuTopology> topology;
    private final CudaDevice device;
    private final NcclBackend nccl;
    private final Optional<P2p> p2p;
    private final P2pCollectives collectives; // null if there is no P2P
    private boolean closed; // guarded by this

    private CudaP2pBackend(
            GroupContext context,
            CudaP2pOptions options,
            Function<List<String>, GpuTopology> topology,
            NcclBackend nccl) {
        this.name = context.name();
        this.options = options;
        this.topology = topology;
        this.nccl = nccl;
        this.device = CudaDevice.open(nccl.device());
        try {
            this.p2p = P2p.create(context, options, device, topology, nccl);
            this.collectives = p2p.map(P2p::collectives).orElse(null);
        } catch (Throwable e) {
            device.close();
            throw e;
        }
    }

    /** Creates the backend. The topology finds the links of GPUs from their PCI bus ids. */
    static CudaP2pBackend create(
            GroupContext context,
            CudaP2pOptions options,
            Function<List<String>, GpuTopology> topology) {
        NcclBackend.requireLibraries(NAME);
        NcclBackend nccl = NcclBackend.create(context, options.ncclOptions());
        CudaP2pBackend backend = create(context, options, topology, nccl);
        // Connects after the probes: with broken peer access, NCCL would hang or lose data. Does
        // not connect if ranks share a GPU: NCCL refuses such ranks, and only operations that need
        // NCCL should fail.
        if (!options.isSharedGpus()) {
            try {
                nccl.connectEarly(() -> backend.p2p.ifPresent(p2p -> p2p.compareWith(nccl)));
            } catch (RuntimeException | LinkageError e) {
                backend.close();
                throw e;
            }
        }
        return backend;
    }

    private static CudaP2pBackend create(
            GroupContext context,
            CudaP2pOptions options,
            Function<List<String>, GpuTopology> topology,
            NcclBackend nccl) {
        try {
            return new CudaP2pBackend(context, options, topology, nccl);
        } catch (RuntimeException | LinkageError e) {
            nccl.close();
            throw e;
        }
    }

    @Override
    public Optional<Backend> split(GroupContext child, int color, List<Integer> members) {
        return nccl.split(child, color, members)
                .map(part -> create(child, options, topology, (NcclBackend) part));
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
        return p2p.flatMap(P2p::buffers);
    }

    @Override
    public void checkInOrder(Operation operation) {
        Batch.requireNone(operation);
    }

    @Override
    public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        if (p2p.isEmpty()) {
            return nccl.allReduce(operation, tensor, op);
        }
        Algorithm algorithm = p2p.get().algorithm(operation.tensor(), op);
        if (algorithm != null) {
            return p2p.get().allReduce(operation, tensor, op, algorithm);
        }
        return collectives.hasCopies() && options.isSharedGpus()
                ? collectives.allReduce(operation, tensor, op)
                : nccl.allReduce(operation, tensor, op);
    }

    /**
     * Returns whether an all-to-all runs by kernels. With verification NCCL runs it outside of
     * graphs, because it compares the sizes of the parts before it moves them.
     */
    private boolean canExchange() {
        return collectives != null
                && collectives.canExchange()
                && (options.debug() != DebugLevel.DETAIL || p2p.get().isCapturing());
    }

    @Override
    public Work execute(Operation operation, Consumer<Operation> body) {
        return p2p.isPresent()
                ? p2p.get().execute(operation, body)
                : super.execute(operation, body);
    }

    @Override
    public Work reduce(Operation operation, NDArray tensor, int root, ReduceOp op) {
        return nccl.reduce(operation, tensor, root, op);
    }

    @Override
    public Work broadcast(Operation operation, NDArray tensor, int root) {
        return collectives != null && collectives.isPossible(operation)
                ? collectives.broadcast(operation, tensor, root)
                : nccl.broadcast(operation, tensor, root);
    }

    @Override
    public Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        return collectives != null && collectives.isPossible(operation)
                ? collectives.allGather(operation, outputs, input)
                : nccl.allGather(operation, outputs, input);
    }

    @Override
    public Work reduceScatter(
            Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        return collectives != null && collectives.isPossible(operation, op)
                ? collectives.reduceScatter(operation, output, inputs, op)
                : nccl.reduceScatter(operation, output, inputs, op);
    }

    @Override
    public Work gather(Operation operation, List<NDArray> outputs, NDArray input, int root) {
        return nccl.gather(operation, outputs, input, root);
    }

    @Override
    public Work scatter(Operation operation, NDArray output, List<NDArray> inputs, int root) {
        return nccl.scatter(operation, output, inputs, root);
    }

    @Override
    public Work allToAll(Operation operation, List<NDArray> outputs, List<NDArray> inputs) {
        return canExchange()
                ? collectives.allToAll(operation, outputs, inputs)
                : nccl.allToAll(operation, outputs, inputs);
    }

    @Override
    public Work allToAllSingle(
            Operation operation,
            NDArray output,
            NDArray input,
            long[] outputCounts,
            long[] inputCounts) {
        return canExchange()
                ? collectives.allToAllSingle(operation, output, input, outputCounts, inputCounts)
                : nccl.allToAllSingle(operation, output, input, outputCounts, inputCounts);
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
    public Work barrier(Operation operation) {
        return collectives != null && collectives.hasCopies()
                ? collectives.barrier(operation)
                : nccl.barrier(operation);
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
    public synchronized void stopWaiting() {
        if (!closed) {
            p2p.ifPresent(P2p::stopWaiting);
        }
    }

    @Override
    public synchronized void endCalls() {
        if (!closed) {
            p2p.ifPresent(P2p::endCalls);
        }
    }

    @Override
    public void abort(CollectiveException reason) {
        nccl.abort(reason);
    }

    @Override
    public Optional<CollectiveException> failure() {
        return nccl.failure();
    }

    @Override
    public void drain() {
        nccl.drain();
    }

    @Override
    public synchronized void close() {
        if (closed) {
            return;
        }
        closed = true;
        nccl.stop();
        p2p.ifPresent(P2p::stop);
        nccl.close();
        Disposal.run(
                "the P2P memory of group '" + name + "'",
                () -> {
                    p2p.ifPresent(P2p::free);
                    device.close();
                });
    }
}
