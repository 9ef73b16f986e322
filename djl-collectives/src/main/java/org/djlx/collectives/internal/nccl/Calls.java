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
        void enqueue(NcclCommunicator nccl, CudaStream stream);
    }

    private GpuCall call(Body body, List<DeviceTensor> in, List<DeviceTensor> out, long[] detail) {
        // The communicator is created before the first launch, but after this call.
        return new GpuCall(
                stream -> body.enqueue(connection.communicator(), stream), in, out, detail, true);
    }

    GpuCall allReduce(DeviceTensor io, ReduceOp op) {
        Body body =
                (nccl, stream) ->
                        withOp(
                                nccl,
                                io,
                                op,
                                (number, offset, count) -> {
                                    long address = io.address() + offset;
                                    nccl.allReduce(
                                            address, address, count, io.realType(), number, stream);
                                });
        return call(body, List.of(), List.of(io), NO_DETAIL);
    }

    GpuCall reduce(DeviceTensor io, int root, boolean isRoot, ReduceOp op) {
        Body body = (nccl, stream) -> reduce(nccl, stream, io, io, op, root);
        return inPlace(body, io, isRoot);
    }

    /** Creates a call on one tensor, which this rank either writes or only reads. */
    private GpuCall inPlace(Body body, DeviceTensor io, boolean isWritten) {
        List<DeviceTensor> tensor = List.of(io);
        return call(
                body, isWritten ? List.of() : tensor, isWritten ? tensor : List.of(), NO_DETAIL);
    }

    private void reduce(
            NcclCommunicator nccl,
            CudaStream stream,
            DeviceTensor in,
            DeviceTensor out,
            ReduceOp op,
            int root) {
        withOp(
                nccl,
                out,
                op,
                (number, offset, count) ->
                        nccl.reduce(
                                in.address() + offset,
                                out.address() + offset,
                                count,
                                out.realType(),
                                number,
                                root,
                                stream));
    }

    GpuCall broadcast(DeviceTensor io, int root, boolean isRoot) {
        Body body = (nccl, stream) -> broadcast(nccl, stream, io, io, root);
        return inPlace(body, io, !isRoot);
    }

    private static void broadcast(
            NcclCommunicator nccl, CudaStream stream, DeviceTensor in, DeviceTensor out, int root) {
        Unit unit = Unit.of(in.type());
        long count = in.count() * unit.factor();
        nccl.broadcast(in.address(), out.address(), count, unit.type(), root, stream);
    }

    GpuCall allGather(List<DeviceTensor> out, DeviceTensor in) {
        Unit unit = Unit.of(in.type());
        long count = in.count() * unit.factor();
        Body body =
                out.size() == 1
                        ? (nccl, stream) ->
                                nccl.allGather(
                                        in.address(),
                                        out.get(0).address(),
                                        count,
                                        unit.type(),
                                        stream)
                        : (nccl, stream) ->
                                NcclGroup.run(
                                        () -> {
                                            for (int root = 0; root < out.size(); root++) {
                                                broadcast(nccl, stream, in, out.get(root), root);
                                            }
                                        });
        return call(body, List.of(in), out, NO_DETAIL);
    }

    GpuCall reduceScatter(DeviceTensor out, List<DeviceTensor> in, ReduceOp op) {
        Body body =
                in.size() == 1
                        ? (nccl, stream) -> reduceScatter(nccl, stream, out, in.get(0), op)
                        : (nccl, stream) ->
                                NcclGroup.run(
                                        () -> {
                                            for (int root = 0; root < in.size(); root++) {
                                                reduce(nccl, stream, in.get(root), out, op, root);
                                            }
                                        });
        return call(body, in, List.of(out), NO_DETAIL);
    }

    private void reduceScatter(
            NcclCommunicator nccl,
            CudaStream stream,
            DeviceTensor out,
            DeviceTensor in,
            ReduceOp op) {
        withOp(
                nccl,
                out,
                op,
                (number, offset, count) ->
                        nccl.reduceScatter(
                                in.address() + offset,
                                out.address() + offset,
                                count,
                                out.realType(),
                                number,
                                stream));
    }

    GpuCall gather(List<DeviceTensor> out, DeviceTensor in, int root) {
        Body body =
                exchange(
                        (nccl, stream) -> {
                            send(nccl, stream, in.address(), in.count(), in.type(), root);
                            for (int peer = 0; peer < out.size(); peer++) {
                                long target = out.get(peer).address();
                                recv(nccl, stream, target, in.count(), in.type(), peer);
                            }
                        });
        return call(body, List.of(in), out, NO_DETAIL);
    }

    GpuCall scatter(DeviceTensor out, List<DeviceTensor> in, int root) {
        Body body =
                exchange(
                        (nccl, stream) -> {
                            for (int peer = 0; peer < in.size(); peer++) {
                                long source = in.get(peer).address();
                                send(nccl, stream, source, out.count(), out.type(), peer);
                            }
                            recv(nccl, stream, out.address(), out.count(), out.type(), root);
                        });
        return call(body, in, List.of(out), NO_DETAIL);
    }

    GpuCall allToAll(List<DeviceTensor> out, List<DeviceTensor> in) {
        Body body =
                exchange(
                        (nccl, stream) -> {
                            for (int peer = 0; peer < in.size(); peer++) {
                                DeviceTensor from = in.get(peer);
                                DeviceTensor to = out.get(peer);
                                send(nccl, stream, from.address(), from.count(), from.type(), peer);
                                recv(nccl, stream, to.address(), to.count(), to.type(), peer);
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
                exchange(
                        (nccl, stream) -> {
                            long source = in.address();
                            long target = out.address();
                            for (int peer = 0; peer < inCounts.length; peer++) {
                                send(nccl, stream, source, inCounts[peer], type, peer);
                                recv(nccl, stream, target, outCounts[peer], type, peer);
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
        Body body = (nccl, stream) -> send(nccl, stream, in.address(), in.count(), in.type(), peer);
        return call(body, List.of(in), List.of(), message(in, tag));
    }

    GpuCall recv(DeviceTensor out, int peer, int tag) {
        Body body =
                (nccl, stream) -> recv(nccl, stream, out.address(), out.count(), out.type(), peer);
        return call(body, List.of(), List.of(out), message(out, tag));
    }

    private static long[] message(DeviceTensor tensor, int tag) {
        return new long[] {tensor.type().code(), tensor.count(), tag};
    }

    /** Groups sends and receives into one operation. */
    private static Body exchange(Body body) {
        return (nccl, stream) -> NcclGroup.run(() -> body.enqueue(nccl, stream));
    }

    private static void send(
            NcclCommunicator nccl,
            CudaStream stream,
            long address,
            long count,
            ScalarType type,
            int peer) {
        Unit unit = Unit.of(type);
        nccl.send(address, count * unit.factor(), unit.type(), peer, stream);
    }

    private static void recv(
            NcclCommunicator nccl,
            CudaStream stream,
            long address,
            long count,
            ScalarType type,
            int peer) {
        Unit unit = Unit.of(type);
        nccl.recv(address, count * unit.factor(), unit.type(), peer, stream);
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
    private void withOp(
            NcclCommunicator nccl, DeviceTensor tensor, ReduceOp op, Reduction reduction) {
        if (op.kind() == ReduceOp.Kind.PREMUL_SUM) {
            // In one NCCL group: NCCL reads the factor before destroyOp, and launches only when the
            // group ends. A launched reduction could block destroyOp.
            NcclGroup.run(
                    () -> {
                        int number = nccl.premulSum(op.factor(), tensor.realType());
                        if (ranks == 1) {
                            enqueueInParts(reduction, number, tensor);
                        } else {
                            reduction.enqueue(number, 0, tensor.realCount());
                        }
                        nccl.destroyOp(number);
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
