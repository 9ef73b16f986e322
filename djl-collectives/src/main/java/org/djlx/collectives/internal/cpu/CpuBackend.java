// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cpu;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Function;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.cpu.HostCollectives.Extent;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.PeerStates;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Support;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * The base class of backends on CPUs: opens the tensors of a call, and runs collectives in order
 * and messages beside them. A subclass passes its transport to {@link #start}.
 */
public abstract class CpuBackend extends Backend {

    /** What backends on CPUs support. */
    public static final Support SUPPORT =
            Support.builder()
                    .addMoves(
                            EnumSet.allOf(ScalarType.class),
                            OpType.BROADCAST,
                            OpType.ALL_GATHER,
                            OpType.ALL_GATHER_INTO_TENSOR,
                            OpType.GATHER,
                            OpType.SCATTER,
                            OpType.ALL_TO_ALL,
                            OpType.ALL_TO_ALL_SINGLE,
                            OpType.SEND,
                            OpType.RECV,
                            OpType.RECV_ANY_SOURCE)
                    .addReductions(
                            EnumSet.of(
                                    ScalarType.FLOAT64,
                                    ScalarType.FLOAT32,
                                    ScalarType.FLOAT16,
                                    ScalarType.BFLOAT16,
                                    ScalarType.INT64,
                                    ScalarType.INT32,
                                    ScalarType.INT16,
                                    ScalarType.INT8,
                                    ScalarType.UINT8,
                                    ScalarType.BOOL),
                            EnumSet.allOf(ReduceOp.Kind.class),
                            OpType.ALL_REDUCE,
                            OpType.REDUCE,
                            OpType.REDUCE_SCATTER,
                            OpType.REDUCE_SCATTER_TENSOR)
                    .addPlain(OpType.BARRIER)
                    .build();

    /** Owns the temporary arrays of operations. */
    protected final NDManager manager;

    private int rank;
    private int worldSize;
    private PeerStates peers;
    private HostCollectives collectives;
    private OpQueue queue;
    private MessageQueue messages;

    /** Creates a backend whose manager has a name. */
    protected CpuBackend(String name) {
        manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");
        manager.setName(name);
    }

    /** Sets this rank and its transport, before the first operation. */
    protected final void start(
            PeerStates states,
            HostCollectives transport,
            OpQueue operations,
            MessageQueue messageQueue) {
        rank = states.rank();
        worldSize = states.worldSize();
        peers = states;
        collectives = transport;
        queue = operations;
        messages = messageQueue;
    }

    @Override
    public final Support support() {
        return SUPPORT;
    }

    @Override
    public Device device() {
        return Device.cpu();
    }

    @Override
    public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        HostTensor host = HostTensor.input(manager, tensor, operation.tensor());
        List<HostTensor> hosts = List.of(host);
        return submit(
                operation,
                () -> {
                    host.load();
                    collectives.allReduce(operation, hosts, op);
                    host.flush();
                },
                () -> close(host),
                List.of(tensor));
    }

    @Override
    public Work reduce(Operation operation, NDArray tensor, int root, ReduceOp op) {
        HostTensor host = HostTensor.input(manager, tensor, operation.tensor());
        return submit(
                operation,
                () -> {
                    host.load();
                    collectives.reduce(operation, host, root, op);
                    if (rank == root) {
                        host.flush();
                    }
                },
                () -> close(host),
                List.of(tensor));
    }

    @Override
    public Work broadcast(Operation operation, NDArray tensor, int root) {
        HostTensor host =
                rank == root
                        ? HostTensor.input(manager, tensor, operation.tensor())
                        : HostTensor.output(manager, tensor, operation.tensor());
        return submit(
                operation,
                () -> {
                    host.load();
                    collectives.broadcast(operation, host, root);
                    if (rank != root) {
                        host.flush();
                    }
                },
                () -> close(host),
                List.of(tensor));
    }

    @Override
    public Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        return submit(
                operation,
                outputs,
                tensors -> {
                    HostTensor in = tensors.input(input, operation.tensor());
                    List<HostTensor> out = tensors.outputs(outputs);
                    return () -> {
                        List<long[]> addresses = List.of(addresses(out, in.byteSize()));
                        collectives.allGather(operation, addresses, List.of(in));
                        out.forEach(HostTensor::flush);
                    };
                });
    }

    @Override
    public Work gather(Operation operation, List<NDArray> outputs, NDArray input, int root) {
        return submit(
                operation,
                outputs,
                tensors -> {
                    HostTensor in = tensors.input(input, operation.tensor());
                    List<HostTensor> out = tensors.outputs(outputs);
                    return () -> {
                        long[] addresses = rank == root ? addresses(out, in.byteSize()) : null;
                        collectives.gather(operation, addresses, in, root);
                        out.forEach(HostTensor::flush);
                    };
                });
    }

    @Override
    public Work scatter(Operation operation, NDArray output, List<NDArray> inputs, int root) {
        return submit(
                operation,
                List.of(output),
                tensors -> {
                    HostTensor out = tensors.output(output, operation.tensor());
                    List<HostTensor> in = tensors.inputs(inputs);
                    return () -> {
                        long[] addresses = rank == root ? addresses(in, out.byteSize()) : null;
                        collectives.scatter(operation, out, addresses, root);
                        out.flush();
                    };
                });
    }

    // Coalesced operations process their tensors in order, small ones together in one step. The
    // first step compares the calls of all ranks, tensor count included.

    @Override
    public boolean batchesCollectives() {
        return false;
    }

    @Override
    public Work allReduceCoalesced(
            Operation operation, List<NDArray> tensors, List<TensorInfo> infos, ReduceOp op) {
        return submit(
                operation,
                tensors,
                open -> {
                    List<HostTensor> hosts = open.inputs(tensors, infos);
                    return () -> {
                        collectives.allReduce(operation, hosts, op);
                        hosts.forEach(HostTensor::flush);
                    };
                });
    }

    @Override
    public Work allGatherCoalesced(
            Operation operation,
            List<NDArray> outputs,
            List<NDArray> inputs,
            List<TensorInfo> infos) {
        return submit(
                operation,
                outputs,
                open -> {
                    List<HostTensor> in = open.inputs(inputs, infos);
                    List<HostTensor> out = open.outputs(outputs);
                    return () -> {
                        collectives.allGather(operation, addresses(out, in), in);
                        out.forEach(HostTensor::flush);
                    };
                });
    }

    @Override
    public Work reduceScatterCoalesced(
            Operation operation,
            List<NDArray> outputs,
            List<NDArray> inputs,
            List<TensorInfo> infos,
            ReduceOp op) {
        return submit(
                operation,
                outputs,
                open -> {
                    List<HostTensor> in = open.inputs(inputs);
                    List<HostTensor> out = open.outputs(outputs, infos);
                    return () -> {
                        collectives.reduceScatter(operation, out, addresses(in, out), op);
                        out.forEach(HostTensor::flush);
                    };
                });
    }

    /**
     * Returns, for each tensor, the address of each rank's part; {@code parts} has the part sizes.
     */
    private List<long[]> addresses(List<HostTensor> tensors, List<HostTensor> parts) {
        List<long[]> addresses = new ArrayList<>(parts.size());
        for (int i = 0; i < parts.size(); i++) {
            addresses.add(addresses(tensors.subList(i, i + 1), parts.get(i).byteSize()));
        }
        return addresses;
    }

    @Override
    public Work allToAll(Operation operation, List<NDArray> outputs, List<NDArray> inputs) {
        return submit(
                operation,
                outputs,
                tensors -> {
                    List<HostTensor> out = tensors.outputs(outputs);
                    List<HostTensor> in = tensors.inputs(inputs);
                    return () -> {
                        collectives.allToAll(operation, extents(out), extents(in));
                        out.forEach(HostTensor::flush);
                    };
                });
    }

    private static Extent[] extents(List<HostTensor> tensors) {
        return tensors.stream()
                .map(tensor -> new Extent(tensor.address(), tensor.byteSize()))
                .toArray(Extent[]::new);
    }

    @Override
    public Work allToAllSingle(
            Operation operation,
            NDArray output,
            NDArray input,
            long[] outputCounts,
            long[] inputCounts) {
        return submit(
                operation,
                List.of(output),
                tensors -> {
                    HostTensor out = tensors.output(output, Torch.info(output));
                    HostTensor in = tensors.input(input, Torch.info(input));
                    return () -> {
                        collectives.allToAll(
                                operation, parts(out, outputCounts), parts(in, inputCounts));
                        out.flush();
                    };
                });
    }

    private static Extent[] parts(HostTensor tensor, long[] counts) {
        Extent[] parts = new Extent[counts.length];
        long address = tensor.address();
        for (int i = 0; i < parts.length; i++) {
            parts[i] = new Extent(address, counts[i] * tensor.type().itemSize());
            address += parts[i].size();
        }
        return parts;
    }

    @Override
    public Work send(Operation operation, NDArray tensor, int destination, int tag) {
        return submit(operation, tensor, true, destination, tag);
    }

    @Override
    public Work recv(Operation operation, NDArray tensor, int source, int tag) {
        return submit(operation, tensor, false, source, tag);
    }

    private Work submit(Operation operation, NDArray tensor, boolean sends, int peer, int tag) {
        HostTensor host =
                sends
                        ? HostTensor.input(manager, tensor, operation.tensor())
                        : HostTensor.output(manager, tensor, operation.tensor());
        host.load(); // Loads now, because messages are not ordered after earlier operations.
        Transfer transfer =
                new Transfer(messages, operation, host, sends, peer, tag, List.of(tensor));
        messages.submit(transfer);
        return transfer;
    }

    @Override
    public Work reduceScatter(
            Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        return submit(
                operation,
                List.of(output),
                tensors -> {
                    HostTensor out = tensors.output(output, operation.tensor());
                    List<HostTensor> in = tensors.inputs(inputs);
                    return () -> {
                        List<long[]> addresses = List.of(addresses(in, out.byteSize()));
                        collectives.reduceScatter(operation, List.of(out), addresses, op);
                        out.flush();
                    };
                });
    }

    /** Returns the addresses of the ranks' tensors: one tensor each, or parts of one tensor. */
    private long[] addresses(List<HostTensor> tensors, long partSize) {
        long[] addresses = new long[worldSize];
        for (int peer = 0; peer < worldSize; peer++) {
            addresses[peer] =
                    tensors.size() == 1
                            ? tensors.get(0).address() + peer * partSize
                            : tensors.get(peer).address();
        }
        return addresses;
    }

    @Override
    public Work barrier(Operation operation) {
        return submit(operation, () -> collectives.barrier(operation), () -> {}, List.of());
    }

    @Override
    public Work execute(Operation operation, Consumer<Operation> body) {
        return submit(
                operation,
                () -> {
                    collectives.begin(operation);
                    NoGradient.run(() -> body.accept(operation));
                },
                () -> {},
                List.of());
    }

    private void close(HostTensor tensor) {
        if (collectives.takeOrphaned()) {
            tensor.leak();
        }
        tensor.close();
    }

    /** Submits an operation on several tensors; the opener opens them and returns the body. */
    private Work submit(
            Operation operation, List<NDArray> result, Function<HostTensors, Runnable> opener) {
        HostTensors tensors = new HostTensors(manager);
        Runnable body = opened(tensors, opener);
        return submit(
                operation,
                () -> {
                    tensors.load();
                    body.run();
                },
                () -> {
                    if (collectives.takeOrphaned()) {
                        tensors.leak();
                    }
                    tensors.close();
                },
                result);
    }

    private static Runnable opened(HostTensors tensors, Function<HostTensors, Runnable> opener) {
        try {
            return opener.apply(tensors);
        } catch (RuntimeException | Error e) {
            tensors.close();
            throw e;
        }
    }

    @Override
    public void abort(CollectiveException reason) {
        peers.fail(reason);
    }

    private Work submit(
            Operation operation, Runnable body, Runnable cleanup, List<NDArray> result) {
        return queue.submit(operation, () -> run(operation, body), cleanup, result);
    }

    private void run(Operation operation, Runnable body) {
        CollectiveMismatchException mismatch = operation.mismatchBefore();
        if (mismatch != null) {
            throw mismatch;
        }
        try {
            operation.started();
            body.run();
        } catch (RuntimeException | Error e) {
            if (e instanceof CollectiveMismatchException calls && !calls.isGroupBroken()) {
                throw calls; // All ranks throw it at the same point, so the group stays usable.
            }
            CollectiveException reason = GroupErrors.failed(operation, e);
            peers.fail(reason);
            throw reason;
        }
    }
}
