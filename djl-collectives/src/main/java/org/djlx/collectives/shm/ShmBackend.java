/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.shm;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.pytorch.jni.JniUtils;
import java.util.EnumSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.djlx.collectives.Backend;
import org.djlx.collectives.BackendOptions;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.GroupContext;
import org.djlx.collectives.OpType;
import org.djlx.collectives.Operation;
import org.djlx.collectives.P2pBuffers;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/** Collectives between ranks on one host, threads or processes, over shared memory. */
final class ShmBackend extends Backend {

    static final String NAME = "shm";

    private static final Set<ScalarType> REDUCIBLE =
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
                    ScalarType.BOOL);

    private final int rank;
    private final int worldSize;
    private final NDManager manager;
    private final ShmSegment segment;
    private final RankSync sync;
    private final OpQueue queue;
    private final ShmCollectives collectives;
    private final P2pBuffers buffers;
    private boolean closed;

    ShmBackend(GroupContext context) {
        rank = context.rank();
        worldSize = context.worldSize();
        segment = ShmSegment.map(context, options(context.options()));
        manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");
        manager.setName(NAME + "-" + context.name() + "-" + rank);
        ControlBlock control = new ControlBlock(segment.memory(), worldSize);
        sync = new RankSync(control, context.name(), rank, worldSize);
        queue = new OpQueue("shm-" + context.name() + "-rank-" + rank);
        collectives = new ShmCollectives(segment, sync, new Reducer(manager), rank, worldSize);
        buffers = new ShmP2pBuffers(segment, sync, worldSize);
        long pid = ProcessHandle.current().pid();
        control.setActive(rank, pid, Liveness.startTime(pid));
        try {
            // The last time that ranks wait for each other here is not in the store: once this rank
            // is through, it may close the store's server, which all others are then done with.
            Operation joining = context.joining();
            sync.begin(joining);
            sync.awaitAgreement(joining);
        } catch (RuntimeException e) {
            close();
            throw e;
        }
    }

    private static ShmOptions options(BackendOptions options) {
        if (options instanceof ShmOptions shmOptions) {
            return shmOptions;
        }
        if (options.getClass() != BackendOptions.class) {
            throw new IllegalArgumentException(
                    "backend '"
                            + NAME
                            + "' takes ShmOptions, not "
                            + options.getClass().getSimpleName());
        }
        return ShmOptions.builder().optTimeout(options.timeout()).build();
    }

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public void check(OpType type, NDArray tensor, ReduceOp op) {
        ScalarType element = Torch.scalarType(tensor);
        if (!tensor.getDevice().equals(Device.cpu())) {
            throw new IllegalArgumentException(
                    type
                            + ": backend '"
                            + NAME
                            + "' works on tensors of the CPU, not of "
                            + tensor.getDevice());
        }
        if (op != null && !REDUCIBLE.contains(element)) {
            throw new IllegalArgumentException(
                    type + ": cannot reduce " + element + "; possible are " + REDUCIBLE);
        }
        if (op == ReduceOp.AVG && !element.isFloatingPoint()) {
            throw new IllegalArgumentException(
                    type + ": AVG is for floating-point types, not for " + element);
        }
    }

    @Override
    public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        HostTensor host = HostTensor.input(manager, tensor);
        return submit(
                operation,
                () -> {
                    collectives.allReduce(operation, host, op);
                    host.flush();
                },
                host::close,
                List.of(tensor));
    }

    @Override
    public Work broadcast(Operation operation, NDArray tensor, int root) {
        HostTensor host =
                rank == root
                        ? HostTensor.input(manager, tensor)
                        : HostTensor.output(manager, tensor);
        return submit(
                operation,
                () -> {
                    collectives.broadcast(operation, host, root);
                    if (rank != root) {
                        host.flush();
                    }
                },
                host::close,
                List.of(tensor));
    }

    @Override
    public Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        HostTensor in = HostTensor.input(manager, input);
        List<HostTensor> out =
                outputs.stream().map(tensor -> HostTensor.output(manager, tensor)).toList();
        return submit(
                operation,
                () -> {
                    collectives.allGather(operation, addresses(out, in.byteSize()), in);
                    out.forEach(HostTensor::flush);
                },
                () -> {
                    in.close();
                    out.forEach(HostTensor::close);
                },
                outputs);
    }

    @Override
    public Work reduceScatter(
            Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        HostTensor out = HostTensor.output(manager, output);
        List<HostTensor> in =
                inputs.stream().map(tensor -> HostTensor.input(manager, tensor)).toList();
        return submit(
                operation,
                () -> {
                    collectives.reduceScatter(operation, out, addresses(in, out.byteSize()), op);
                    out.flush();
                },
                () -> {
                    out.close();
                    in.forEach(HostTensor::close);
                },
                List.of(output));
    }

    /** The addresses of the ranks' tensors: a tensor each, or parts of a single one. */
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
    public Work execute(Operation operation, Runnable body) {
        return submit(
                operation,
                () -> {
                    sync.begin(operation);
                    body.run();
                },
                () -> {},
                List.of());
    }

    @Override
    public Optional<P2pBuffers> p2pBuffers() {
        return segment.bufferSize() == 0 ? Optional.empty() : Optional.of(buffers);
    }

    private Work submit(
            Operation operation, Runnable body, Runnable cleanup, List<NDArray> result) {
        return queue.submit(operation, () -> run(operation, body), cleanup, result);
    }

    private void run(Operation operation, Runnable body) {
        boolean gradients = JniUtils.isGradMode();
        JniUtils.setGradMode(false);
        try {
            body.run();
        } catch (CollectiveMismatchException e) {
            throw e; // All ranks throw it at the same point and can go on together.
        } catch (RuntimeException | Error e) {
            CollectiveException reason =
                    e instanceof CollectiveException collective
                            ? collective
                            : new CollectiveException(operation + " failed: " + e, e);
            queue.breakWith(reason);
            sync.fail(reason.getMessage());
            throw reason;
        } finally {
            JniUtils.setGradMode(gradients);
        }
    }

    @Override
    public synchronized void close() {
        if (closed) {
            return;
        }
        closed = true;
        sync.close();
        queue.close();
        sync.leave();
        manager.close();
        segment.close();
    }
}
