// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.gpu.DeviceTensor;
import org.djlx.collectives.internal.gpu.GpuCall;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.nccl.NcclCommunicator;
import org.djlx.nativeops.nccl.NcclGroup;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Maps the operations of a process group to NCCL calls on one connection. An operation without an
 * NCCL call becomes a group of sends and receives.
 */
final class Calls {

    private static final long[] NO_DETAIL = {};

    private final NcclConnection connection;
    private final int ranks;

    /** Creates the calls of a connection of {@code ranks} ranks. */
    Calls(NcclConnection connection, int ranks) {
        this.connection = connection;
        this.ranks = ranks;
    }

    @FunctionalInterface
    private interface Body {
        void enqueue(Launch on);
    }

    /** The communicator and the stream of a launch. */
    private record Launch(NcclCommunicator nccl, CudaStream stream) {

        void broadcast(DeviceTensor in, DeviceTensor out, int root) {
            Unit unit = Unit.of(in.type());
            long count = in.count() * unit.factor();
            nccl.broadcast(in.address(), out.address(), count, unit.type(), root, stream);
        }

        void send(long address, long count, ScalarType type, int peer) {
            Unit unit = Unit.of(type);
            nccl.send(address, count * unit.factor(), unit.type(), peer, stream);
        }

        void recv(long address, long count, ScalarType type, int peer) {
            Unit unit = Unit.of(type);
            nccl.recv(address, count * unit.factor(), unit.type(), peer, stream);
        }
    }

    private GpuCall call(Body body, List<DeviceTensor> in, List<DeviceTensor> out, long[] detail) {
        // The communicator is created before the first launch, but after this call.
        return new GpuCall(
                stream -> body.enqueue(new Launch(connection.communicator(), stream)),
                in,
                out,
                detail,
                true);
    }

    GpuCall allReduce(DeviceTensor io, ReduceOp op) {
        Body body =
                on ->
                        withOp(
                                on,
                                io,
                                op,
                                (number, offset, count) -> {
                                    long address = io.address() + offset;
                                    on.nccl.allReduce(
                                            address,
                                            address,
                                            count,
                                            io.realType(),
                                            number,
                                            on.stream);
                                });
        return call(body, List.of(), List.of(io), NO_DETAIL);
    }

    GpuCall reduce(DeviceTensor io, int root, boolean isRoot, ReduceOp op) {
        return inPlace(on -> reduce(on, io, io, op, root), io, isRoot);
    }

    /** Creates a call on one tensor, which this rank either writes or only reads. */
    private GpuCall inPlace(Body body, DeviceTensor io, boolean isWritten) {
        List<DeviceTensor> tensor = List.of(io);
        return call(
                body, isWritten ? List.of() : tensor, isWritten ? tensor : List.of(), NO_DETAIL);
    }

    private void reduce(Launch on, DeviceTensor in, DeviceTensor out, ReduceOp op, int root) {
        withOp(
                on,
                out,
                op,
                (number, offset, count) ->
                        on.nccl.reduce(
                                in.address() + offset,
                                out.address() + offset,
                                count,
                                out.realType(),
                                number,
                                root,
                                on.stream));
    }

    GpuCall broadcast(DeviceTensor io, int root, boolean isRoot) {
        return inPlace(on -> on.broadcast(io, io, root), io, !isRoot);
    }

    GpuCall allGather(List<DeviceTensor> out, DeviceTensor in) {
        Unit unit = Unit.of(in.type());
        long count = in.count() * unit.factor();
        Body body =
                out.size() == 1
                        ? on ->
                                on.nccl.allGather(
                                        in.address(),
                                        out.get(0).address(),
                                        count,
                                        unit.type(),
                                        on.stream)
                        : grouped(
                                on -> {
                                    for (int root = 0; root < out.size(); root++) {
                                        on.broadcast(in, out.get(root), root);
                                    }
                                });
        return call(body, List.of(in), out, NO_DETAIL);
    }

    GpuCall reduceScatter(DeviceTensor out, List<DeviceTensor> in, ReduceOp op) {
        Body body =
                in.size() == 1
                        ? on -> reduceScatter(on, out, in.get(0), op)
                        : grouped(
                                on -> {
                                    for (int root = 0; root < in.size(); root++) {
                                        reduce(on, in.get(root), out, op, root);
                                    }
                                });
        return call(body, in, List.of(out), NO_DETAIL);
    }

    private void reduceScatter(Launch on, DeviceTensor out, DeviceTensor in, ReduceOp op) {
        withOp(
                on,
                out,
                op,
                (number, offset, count) ->
                        on.nccl.reduceScatter(
                                in.address() + offset,
                                out.address() + offset,
                                count,
                                out.realType(),
                                number,
                                on.stream));
    }

    GpuCall gather(List<DeviceTensor> out, DeviceTensor in, int root) {
        Body body =
                grouped(
                        on -> {
                            on.send(in.address(), in.count(), in.type(), root);
                            for (int peer = 0; peer < out.size(); peer++) {
                                long target = out.get(peer).address();
                                on.recv(target, in.count(), in.type(), peer);
                            }
                        });
        return call(body, List.of(in), out, NO_DETAIL);
    }

    GpuCall scatter(DeviceTensor out, List<DeviceTensor> in, int root) {
        Body body =
                grouped(
                        on -> {
                            for (int peer = 0; peer < in.size(); peer++) {
                                long source = in.get(peer).address();
                                on.send(source, out.count(), out.type(), peer);
                            }
                            on.recv(out.address(), out.count(), out.type(), root);
                        });
        return call(body, in, List.of(out), NO_DETAIL);
    }

    GpuCall allToAll(List<DeviceTensor> out, List<DeviceTensor> in) {
        Body body =
                grouped(
                        on -> {
                            for (int peer = 0; peer < in.size(); peer++) {
                                DeviceTensor from = in.get(peer);
                                DeviceTensor to = out.get(peer);
                                on.send(from.address(), from.count(), from.type(), peer);
                                on.recv(to.address(), to.count(), to.type(), peer);
                            }
                        });
        int n = in.size();
        long[] sizes = new long[2 * n];
        for (int peer = 0; peer < n; peer++) {
            sizes[peer] = in.get(peer).byteSize();
            sizes[n + peer] = out.get(peer).byteSize();
        }
        return call(body, in, out, sizes);
    }

    GpuCall allToAllSingle(DeviceTensor out, DeviceTensor in, long[] outCounts, long[] inCounts) {
        ScalarType type = in.type();
        Body body =
                grouped(
                        on -> {
                            long source = in.address();
                            long target = out.address();
                            for (int peer = 0; peer < inCounts.length; peer++) {
                                on.send(source, inCounts[peer], type, peer);
                                on.recv(target, outCounts[peer], type, peer);
                                source += inCounts[peer] * type.itemSize();
                                target += outCounts[peer] * type.itemSize();
                            }
                        });
        int n = inCounts.length;
        long[] sizes = new long[2 * n];
        for (int peer = 0; peer < n; peer++) {
            sizes[peer] = inCounts[peer] * type.itemSize();
            sizes[n + peer] = outCounts[peer] * type.itemSize();
        }
        return call(body, List.of(in), List.of(out), sizes);
    }

    GpuCall send(DeviceTensor in, int peer, int tag) {
        Body body = on -> on.send(in.address(), in.count(), in.type(), peer);
        return call(body, List.of(in), List.of(), message(in, tag));
    }

    GpuCall recv(DeviceTensor out, int peer, int tag) {
        Body body = on -> on.recv(out.address(), out.count(), out.type(), peer);
        return call(body, List.of(), List.of(out), message(out, tag));
    }

    private static long[] message(DeviceTensor tensor, int tag) {
        return new long[] {tensor.type().code(), tensor.count(), tag};
    }

    /** Groups NCCL calls into one operation. */
    private static Body grouped(Body body) {
        return on -> NcclGroup.run(() -> body.enqueue(on));
    }

    /**
     * The element type with which NCCL copies tensors of a type, and how many elements of it make
     * up one element: bytes if NCCL does not support the type.
     */
    private record Unit(ScalarType type, long factor) {

        static Unit of(ScalarType type) {
            return NcclCommunicator.reducibleTypes().contains(type)
                    ? new Unit(type, 1)
                    : new Unit(ScalarType.UINT8, type.itemSize());
        }
    }

    private interface Reduction {
        /** Reduces {@code count} elements from an offset in bytes, by NCCL's number of the op. */
        void enqueue(int number, long offset, long count);
    }

    /** Enqueues the reduction of a tensor. NCCL reduces booleans as bytes of 0 or 1. */
    private void withOp(Launch on, DeviceTensor tensor, ReduceOp op, Reduction reduction) {
        if (op.kind() == ReduceOp.Kind.PREMUL_SUM) {
            // In one NCCL group: NCCL reads the factor before destroyOp, and launches only when the
            // group ends. A launched reduction could block destroyOp.
            NcclGroup.run(
                    () -> {
                        int number = on.nccl.premulSum(op.factor(), tensor.realType());
                        if (ranks == 1) {
                            enqueueInParts(reduction, number, tensor);
                        } else {
                            reduction.enqueue(number, 0, tensor.realCount());
                        }
                        on.nccl.destroyOp(number);
                    });
            return;
        }
        boolean bool = tensor.type() == ScalarType.BOOL;
        NcclCommunicator.Op known =
                switch (op.kind()) {
                    case SUM -> bool ? NcclCommunicator.Op.MAX : NcclCommunicator.Op.SUM;
                    case PRODUCT -> bool ? NcclCommunicator.Op.MIN : NcclCommunicator.Op.PRODUCT;
                    // NCCL would multiply by 1, which needs enqueueInParts.
                    case AVG -> ranks == 1 ? NcclCommunicator.Op.SUM : NcclCommunicator.Op.AVG;
                    case MIN -> NcclCommunicator.Op.MIN;
                    case MAX -> NcclCommunicator.Op.MAX;
                    default -> throw new AssertionError(op);
                };
        reduction.enqueue(known.ordinal(), 0, tensor.realCount());
    }

    /**
     * Enqueues a premultiplied sum of a single rank in up to three parts. NCCL's kernel
     * (oneRankReduce, as of 2.28) launches a thread block for each 16 KiB, at most 32, and skips
     * the elements that remain after an even division among them. Therefore the first part is a
     * multiple of 32 times 16 KiB, the second a multiple of 16 KiB, and the third, which is
     * smaller, has one thread block.
     */
    private static void enqueueInParts(Reduction reduction, int number, DeviceTensor tensor) {
        long itemSize = tensor.realType().itemSize();
        long block = (16 << 10) / itemSize;
        long count = tensor.realCount();
        long from = 0;
        for (long multiple : new long[] {32 * block, block, 1}) {
            long to = count - count % multiple;
            if (to > from) {
                reduction.enqueue(number, from * itemSize, to - from);
            }
            from = to;
        }
    }
}
