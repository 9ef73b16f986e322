/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.nccl;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.djlx.collectives.Backend;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.GroupContext;
import org.djlx.collectives.OpType;
import org.djlx.collectives.Operation;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Support;
import org.djlx.collectives.Work;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaEvent;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.CudaStreamGuard;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.NcclCommunicator;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * Collectives between GPUs by NCCL, for one rank.
 *
 * <p>Operations run on a stream of the group, after what the caller has enqueued on its current
 * stream. NCCL itself does not notice calls that do not fit together.
 */
public final class NcclBackend extends Backend {

    static final String NAME = "nccl";

    private static final Set<ScalarType> ALL = EnumSet.allOf(ScalarType.class);
    private static final Set<ScalarType> REDUCIBLE =
            EnumSet.of(
                    ScalarType.FLOAT64,
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16,
                    ScalarType.INT64,
                    ScalarType.INT32,
                    ScalarType.INT8,
                    ScalarType.UINT8,
                    ScalarType.BOOL);
    private static final Set<ReduceOp.Kind> REDUCTIONS =
            EnumSet.of(
                    ReduceOp.Kind.SUM,
                    ReduceOp.Kind.AVG,
                    ReduceOp.Kind.PRODUCT,
                    ReduceOp.Kind.MIN,
                    ReduceOp.Kind.MAX,
                    ReduceOp.Kind.PREMUL_SUM);

    static final Support SUPPORT =
            Support.builder()
                    .addPlain(OpType.BARRIER)
                    .addMoves(
                            ALL,
                            OpType.BROADCAST,
                            OpType.ALL_GATHER,
                            OpType.ALL_GATHER_INTO_TENSOR,
                            OpType.GATHER,
                            OpType.SCATTER,
                            OpType.ALL_TO_ALL,
                            OpType.ALL_TO_ALL_SINGLE)
                    .addReductions(
                            REDUCIBLE,
                            REDUCTIONS,
                            OpType.ALL_REDUCE,
                            OpType.REDUCE,
                            OpType.REDUCE_SCATTER,
                            OpType.REDUCE_SCATTER_TENSOR)
                    .build();

    private final GroupContext context;
    private final NcclOptions options;
    private final Device device;
    private final CudaDevice cuda;
    private final CudaStream stream;
    private final NDManager manager;
    private final Watchdog watchdog;
    private final CudaEvent lastOnCurrent; // behind the last operation of onCurrentStream
    private long lastCurrent = -1; // its stream
    private Consumer<CollectiveException> onAbort = reason -> {};
    private NcclCommunicator communicator;
    private volatile CollectiveException broken;
    private boolean closed;

    private NcclBackend(GroupContext context, NcclOptions options, Device device) {
        this.context = context;
        this.options = options;
        this.device = device;
        cuda = CudaDevice.open(device);
        stream =
                options.isHighPriorityStream()
                        ? CudaStream.create(cuda, cuda.highestStreamPriority())
                        : CudaStream.create(cuda);
        lastOnCurrent = CudaEvent.create(cuda);
        manager = NDManager.newBaseManager(device, "PyTorch");
        manager.setName(NAME + "-" + context.name() + "-" + context.rank());
        watchdog =
                new Watchdog(
                        "nccl-" + context.name() + "-rank-" + context.rank(),
                        this::asyncError,
                        this::abort);
    }

    /**
     * Creates the backend.
     *
     * @param context the group and the rank
     * @param options the options
     * @return the backend
     */
    public static NcclBackend create(GroupContext context, NcclOptions options) {
        NativeLibrary.NCCL.ensureAvailability();
        Device given = options.device(context).orElse(null);
        Device device = given == null ? defaultDevice(context.rank()) : given;
        NcclBackend backend = new NcclBackend(context, options, device);
        if (given != null) {
            try {
                backend.communicator();
            } catch (RuntimeException e) {
                backend.close();
                throw e;
            }
        }
        return backend;
    }

    private static Device defaultDevice(int rank) {
        String localRank = System.getenv("LOCAL_RANK");
        int index = localRank == null ? rank : Integer.parseInt(localRank);
        return Device.gpu(index % Math.max(1, CudaDevice.count()));
    }

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public Support support() {
        return SUPPORT;
    }

    @Override
    public Device device() {
        return device;
    }

    private synchronized NcclCommunicator communicator() {
        if (communicator == null) {
            byte[] id = context.rank() == 0 ? NcclCommunicator.uniqueId() : new byte[0];
            List<byte[]> ids = context.exchange("nccl", id);
            communicator =
                    NcclCommunicator.create(
                            cuda,
                            ids.get(0),
                            context.rank(),
                            context.worldSize(),
                            options.config(),
                            options.timeout());
        }
        return communicator;
    }

    private Optional<String> asyncError() {
        NcclCommunicator nccl;
        synchronized (this) {
            nccl = communicator;
        }
        return nccl == null ? Optional.empty() : nccl.asyncError();
    }

    /** NCCL's element type; what it does not know is moved as bytes. */
    private record Unit(ScalarType type, long factor) {

        static Unit of(ScalarType type) {
            return NcclCommunicator.reducibleTypes().contains(type)
                    ? new Unit(type, 1)
                    : new Unit(ScalarType.UINT8, type.itemSize());
        }
    }

    @Override
    public Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        DeviceTensor io = DeviceTensor.input(manager, tensor);
        return enqueue(
                operation,
                nccl ->
                        withOp(
                                nccl,
                                io.type(),
                                op,
                                number ->
                                        nccl.allReduce(
                                                io.address(),
                                                io.address(),
                                                io.count(),
                                                io.type(),
                                                number,
                                                stream)),
                List.of(),
                List.of(io),
                List.of(tensor));
    }

    @Override
    public Work reduce(Operation operation, NDArray tensor, int root, ReduceOp op) {
        DeviceTensor io = DeviceTensor.input(manager, tensor);
        boolean isRoot = context.rank() == root;
        return enqueue(
                operation,
                nccl ->
                        withOp(
                                nccl,
                                io.type(),
                                op,
                                number ->
                                        nccl.reduce(
                                                io.address(),
                                                io.address(),
                                                io.count(),
                                                io.type(),
                                                number,
                                                root,
                                                stream)),
                isRoot ? List.of() : List.of(io),
                isRoot ? List.of(io) : List.of(),
                List.of(tensor));
    }

    @Override
    public Work broadcast(Operation operation, NDArray tensor, int root) {
        DeviceTensor io = DeviceTensor.input(manager, tensor);
        Unit unit = Unit.of(io.type());
        return enqueue(
                operation,
                nccl ->
                        nccl.broadcast(
                                io.address(),
                                io.address(),
                                io.count() * unit.factor(),
                                unit.type(),
                                root,
                                stream),
                List.of(),
                List.of(io),
                List.of(tensor));
    }

    @Override
    public Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        DeviceTensor in = DeviceTensor.input(manager, input);
        List<DeviceTensor> out = tensors(outputs, false);
        Unit unit = Unit.of(in.type());
        long count = in.count() * unit.factor();
        Consumer<NcclCommunicator> body;
        if (out.size() == 1) {
            long result = out.get(0).address();
            body = nccl -> nccl.allGather(in.address(), result, count, unit.type(), stream);
        } else {
            body =
                    nccl ->
                            nccl.group(
                                    () -> {
                                        for (int root = 0; root < out.size(); root++) {
                                            nccl.broadcast(
                                                    in.address(),
                                                    out.get(root).address(),
                                                    count,
                                                    unit.type(),
                                                    root,
                                                    stream);
                                        }
                                    });
        }
        return enqueue(operation, body, List.of(in), out, outputs);
    }

    @Override
    public Work reduceScatter(
            Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        DeviceTensor out = DeviceTensor.output(manager, output);
        List<DeviceTensor> in = tensors(inputs, true);
        Consumer<NcclCommunicator> body;
        if (in.size() == 1) {
            long source = in.get(0).address();
            body =
                    nccl ->
                            withOp(
                                    nccl,
                                    out.type(),
                                    op,
                                    number ->
                                            nccl.reduceScatter(
                                                    source,
                                                    out.address(),
                                                    out.count(),
                                                    out.type(),
                                                    number,
                                                    stream));
        } else {
            body =
                    nccl ->
                            withOp(
                                    nccl,
                                    out.type(),
                                    op,
                                    number ->
                                            nccl.group(
                                                    () -> {
                                                        for (int root = 0;
                                                                root < in.size();
                                                                root++) {
                                                            nccl.reduce(
                                                                    in.get(root).address(),
                                                                    out.address(),
                                                                    out.count(),
                                                                    out.type(),
                                                                    number,
                                                                    root,
                                                                    stream);
                                                        }
                                                    }));
        }
        return enqueue(operation, body, in, List.of(out), List.of(output));
    }

    @Override
    public Work gather(Operation operation, List<NDArray> outputs, NDArray input, int root) {
        DeviceTensor in = DeviceTensor.input(manager, input);
        boolean isRoot = context.rank() == root;
        List<DeviceTensor> out = isRoot ? tensors(outputs, false) : List.of();
        return exchange(
                operation,
                nccl -> {
                    send(nccl, in.address(), in.count(), in.type(), root);
                    for (int peer = 0; peer < out.size(); peer++) {
                        recv(nccl, out.get(peer).address(), in.count(), in.type(), peer);
                    }
                },
                List.of(in),
                out,
                isRoot ? outputs : List.of());
    }

    @Override
    public Work scatter(Operation operation, NDArray output, List<NDArray> inputs, int root) {
        DeviceTensor out = DeviceTensor.output(manager, output);
        List<DeviceTensor> in = context.rank() == root ? tensors(inputs, true) : List.of();
        return exchange(
                operation,
                nccl -> {
                    for (int peer = 0; peer < in.size(); peer++) {
                        send(nccl, in.get(peer).address(), out.count(), out.type(), peer);
                    }
                    recv(nccl, out.address(), out.count(), out.type(), root);
                },
                in,
                List.of(out),
                List.of(output));
    }

    @Override
    public Work allToAll(Operation operation, List<NDArray> outputs, List<NDArray> inputs) {
        List<DeviceTensor> out = tensors(outputs, false);
        List<DeviceTensor> in = tensors(inputs, true);
        return exchange(
                operation,
                nccl -> {
                    for (int peer = 0; peer < in.size(); peer++) {
                        DeviceTensor source = in.get(peer);
                        DeviceTensor target = out.get(peer);
                        send(nccl, source.address(), source.count(), source.type(), peer);
                        recv(nccl, target.address(), target.count(), target.type(), peer);
                    }
                },
                in,
                out,
                outputs);
    }

    @Override
    public Work allToAllSingle(
            Operation operation,
            NDArray output,
            NDArray input,
            long[] outputCounts,
            long[] inputCounts) {
        DeviceTensor out = DeviceTensor.output(manager, output);
        DeviceTensor in = DeviceTensor.input(manager, input);
        return exchange(
                operation,
                nccl -> {
                    long source = in.address();
                    long target = out.address();
                    for (int peer = 0; peer < inputCounts.length; peer++) {
                        send(nccl, source, inputCounts[peer], in.type(), peer);
                        recv(nccl, target, outputCounts[peer], out.type(), peer);
                        source += inputCounts[peer] * in.type().itemSize();
                        target += outputCounts[peer] * out.type().itemSize();
                    }
                },
                List.of(in),
                List.of(out),
                List.of(output));
    }

    @Override
    public Work barrier(Operation operation) {
        NDArray word = Torch.empty(manager, new Shape(1), ScalarType.INT32);
        try {
            Work work = allReduce(operation, word, ReduceOp.MAX);
            return work;
        } finally {
            word.close();
        }
    }

    private List<DeviceTensor> tensors(List<NDArray> arrays, boolean input) {
        List<DeviceTensor> tensors = new ArrayList<>();
        for (NDArray array : arrays) {
            tensors.add(
                    input
                            ? DeviceTensor.input(manager, array)
                            : DeviceTensor.output(manager, array));
        }
        return tensors;
    }

    private void send(NcclCommunicator nccl, long address, long count, ScalarType type, int peer) {
        Unit unit = Unit.of(type);
        nccl.send(address, count * unit.factor(), unit.type(), peer, stream);
    }

    private void recv(NcclCommunicator nccl, long address, long count, ScalarType type, int peer) {
        Unit unit = Unit.of(type);
        nccl.recv(address, count * unit.factor(), unit.type(), peer, stream);
    }

    /** Gives NCCL's number of a reduce op to some code. */
    private static void withOp(
            NcclCommunicator nccl, ScalarType type, ReduceOp op, Consumer<Integer> body) {
        boolean bool = type == ScalarType.BOOL;
        switch (op.kind()) {
            case SUM ->
                    body.accept(number(bool ? NcclCommunicator.Op.MAX : NcclCommunicator.Op.SUM));
            case PRODUCT ->
                    body.accept(
                            number(bool ? NcclCommunicator.Op.MIN : NcclCommunicator.Op.PRODUCT));
            case AVG -> body.accept(number(NcclCommunicator.Op.AVG));
            case MIN -> body.accept(number(NcclCommunicator.Op.MIN));
            case MAX -> body.accept(number(NcclCommunicator.Op.MAX));
            case PREMUL_SUM -> {
                int number = nccl.premulSum(op.factor(), type);
                body.accept(number);
                nccl.destroyOp(number);
            }
            default -> throw new AssertionError(op);
        }
    }

    private static int number(NcclCommunicator.Op op) {
        return op.ordinal();
    }

    /** Runs sends and receives as one operation. */
    private Work exchange(
            Operation operation,
            Consumer<NcclCommunicator> body,
            List<DeviceTensor> in,
            List<DeviceTensor> out,
            List<NDArray> result) {
        return enqueue(operation, nccl -> nccl.group(() -> body.accept(nccl)), in, out, result);
    }

    private Work enqueue(
            Operation operation,
            Consumer<NcclCommunicator> body,
            List<DeviceTensor> in,
            List<DeviceTensor> out,
            List<NDArray> result) {
        Runnable cleanup =
                () -> {
                    in.forEach(DeviceTensor::close);
                    out.forEach(DeviceTensor::close);
                };
        try {
            checkUsable(operation);
            NcclCommunicator nccl = communicator();
            operation.started();
            CudaStream current = CudaStream.wrap(cuda, Torch.currentCudaStream(device));
            try (CudaEvent ready = CudaEvent.create(cuda)) {
                ready.record(current);
                stream.waitEvent(ready);
            }
            body.accept(nccl);
            flush(out);
            CudaEvent end = CudaEvent.create(cuda);
            end.record(stream);
            NcclWork work = new NcclWork(operation, end, cleanup, result, current, () -> null);
            watchdog.add(work);
            return work;
        } catch (RuntimeException e) {
            cleanup.run();
            throw e;
        }
    }

    /**
     * Returns the GPU.
     *
     * @return this rank's GPU
     */
    public CudaDevice cudaDevice() {
        return cuda;
    }

    /**
     * Returns the stream on which NCCL runs.
     *
     * @return the stream
     */
    public CudaStream stream() {
        return stream;
    }

    /**
     * Sets what else is to be ended when the group breaks or is destroyed.
     *
     * @param action called once, with the reason, on any thread
     */
    public void onAbort(Consumer<CollectiveException> action) {
        onAbort = action;
    }

    /**
     * Runs an operation of another kind than NCCL's on the caller's current stream. Such operations
     * run in the order of the calls, whatever the streams.
     *
     * @param operation the operation
     * @param body enqueues it on the stream that it is given
     * @param result its outputs
     * @param check tells, once it has ended, why it failed; null if it did not
     * @return the work
     */
    public Work onCurrentStream(
            Operation operation,
            Consumer<CudaStream> body,
            List<NDArray> result,
            Supplier<CollectiveException> check) {
        checkUsable(operation);
        operation.started();
        CudaStream current = CudaStream.wrap(cuda, Torch.currentCudaStream(device));
        if (lastCurrent != -1 && lastCurrent != current.handle()) {
            current.waitEvent(lastOnCurrent);
        }
        try {
            body.accept(current);
        } catch (CollectiveMismatchException e) {
            return NcclWork.failed(operation, e, result);
        } catch (RuntimeException e) {
            CollectiveException reason =
                    e instanceof CollectiveException collective
                            ? collective
                            : new CollectiveException(operation + " failed: " + e, e);
            watchdog.failAll(reason);
            return NcclWork.failed(operation, reason, result);
        }
        lastOnCurrent.record(current);
        lastCurrent = current.handle();
        CudaEvent end = CudaEvent.create(cuda);
        end.record(current);
        List<NDArray> held = result.stream().map(array -> Torch.alias(manager, array)).toList();
        NcclWork work =
                new NcclWork(
                        operation,
                        end,
                        () -> held.forEach(NDArray::close),
                        result,
                        current,
                        () -> {
                            CollectiveException failure = check.get();
                            broken = failure == null ? broken : failure;
                            return failure;
                        });
        watchdog.add(work);
        return work;
    }

    /** Brings results into tensors that are not contiguous, behind the operation. */
    private void flush(List<DeviceTensor> tensors) {
        CudaStreamGuard guard = Torch.cudaStreamGuard(device, stream.handle());
        try {
            tensors.forEach(DeviceTensor::flush);
        } finally {
            guard.close();
        }
    }

    private void checkUsable(Operation operation) {
        if (broken != null) {
            throw new CollectiveException(
                    operation
                            + " cannot run: the group is broken since an earlier operation failed ("
                            + broken.getMessage()
                            + "); destroy it and create a new one",
                    broken);
        }
    }

    private void abort(CollectiveException reason) {
        broken = reason;
        onAbort.accept(reason);
        NcclCommunicator nccl;
        synchronized (this) {
            nccl = communicator;
        }
        if (nccl != null) {
            nccl.abort();
        }
    }

    @Override
    public void close() {
        close(() -> {});
    }

    /**
     * Closes the backend.
     *
     * @param free frees what others have added, once nothing runs any more
     */
    public void close(Runnable free) {
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
        }
        watchdog.failAll(
                new CollectiveException("this rank destroyed the group '" + context.name() + "'"));
        watchdog.close();
        cuda.synchronize();
        free.run();
        lastOnCurrent.close();
        stream.close();
        manager.close();
        cuda.close();
    }
}
