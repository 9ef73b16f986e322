// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.gpu.DeviceTensor;
import org.djlx.collectives.internal.gpu.GpuCall;
import org.djlx.collectives.internal.gpu.GpuGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Reductions;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;

/**
 * Runs collectives as copies through the P2P buffers, on the group's stream. Copy engines move the
 * data; kernels run only to wait and to reduce. An operation runs in rounds:
 *
 * <pre>
 *   buffer of a rank:  | half 0: a window for each source rank | half 1: as half 0 |
 * </pre>
 *
 * <ol>
 *   <li>Before its first copy, an operation waits until the peers have finished their earlier
 *       operations, which may still use the buffers.
 *   <li>In a round, a rank copies a piece of its data into its windows on the peers, passes a
 *       barrier, and copies or reduces what it has received.
 *   <li>Rounds alternate between the halves. So a peer overwrites a half only after a barrier that
 *       follows the last read of that half.
 * </ol>
 */
final class CopyCollectives {

    private static final long ALIGNMENT = 256;

    private final P2pRegion region;
    private final SignalKernels signals;
    private final GpuGroup group;
    private final int rank;
    private final int ranks;
    private final long window;

    CopyCollectives(P2pRegion region, SignalKernels signals, GpuGroup group) {
        this.region = region;
        this.signals = signals;
        this.group = group;
        rank = region.rank();
        ranks = region.ranks();
        window = region.layout().bufferSize() / 2 / ranks / ALIGNMENT * ALIGNMENT;
    }

    /** Returns whether the buffers are large enough; the same on all ranks. */
    boolean isPossible() {
        return ranks > 1 && window > 0;
    }

    /** Copies or reduces the data that a round has received into one half's windows. */
    private interface Round {

        /**
         * Enqueues the copies or the reduction on the stream.
         *
         * @param half the offset of the half in the buffer
         * @param done the bytes of each part that earlier rounds have moved
         * @param size the bytes of each part in this round
         */
        void take(long half, long done, long size);
    }

    /**
     * Sends one part to each peer, in rounds. All parts have the same size.
     *
     * @param parts the address of the part for each rank; 0 to send nothing
     * @param byteSize the size of a part
     * @param round called after each round's barrier
     */
    private void exchange(
            CudaStream stream, Operation operation, long[] parts, long byteSize, Round round) {
        Duration timeout = operation.timeout();
        signals.enter(stream);
        signals.awaitEntered(stream, timeout);
        long half = 0;
        for (long done = 0; done < byteSize; done += window) {
            long size = Math.min(window, byteSize - done);
            for (int step = 1; step < ranks; step++) {
                int peer = (rank + step) % ranks;
                if (parts[peer] != 0) {
                    stream.copyAsync(address(peer, half, rank), parts[peer] + done, size);
                }
            }
            signals.meet(stream, timeout);
            round.take(half, done, size);
            half = half == 0 ? ranks * window : 0;
        }
    }

    private long address(int on, long half, int source) {
        return region.address(on) + offset(half, source);
    }

    private long offset(long half, int source) {
        return region.layout().buffer() + half + source * window;
    }

    private long[] toAll(long address) {
        long[] parts = new long[ranks];
        Arrays.fill(parts, address);
        return parts;
    }

    private DeviceTensor input(NDArray tensor) {
        return DeviceTensor.input(group.resources().manager(), tensor);
    }

    private DeviceTensor output(NDArray tensor) {
        return DeviceTensor.output(group.resources().manager(), tensor);
    }

    private Work issue(
            Operation operation,
            GpuCall.Body body,
            List<DeviceTensor> in,
            List<DeviceTensor> out,
            List<NDArray> result) {
        operation.setAlgorithm("copies");
        return group.issue(operation, new GpuCall(body, in, out, new long[0], false), result);
    }

    /** Gathers into one array, or into one array per rank. */
    Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        DeviceTensor in = input(input);
        List<DeviceTensor> out = outputs.stream().map(this::output).toList();
        long byteSize = in.byteSize();
        long[] places = parts(out, byteSize);
        GpuCall.Body body =
                stream -> {
                    if (places[rank] != in.address() && byteSize > 0) {
                        stream.copyAsync(places[rank], in.address(), byteSize);
                    }
                    exchange(
                            stream,
                            operation,
                            toAll(in.address()),
                            byteSize,
                            (half, done, size) -> {
                                for (int step = 1; step < ranks; step++) {
                                    int peer = (rank + step) % ranks;
                                    long place = places[peer] + done;
                                    stream.copyAsync(place, address(rank, half, peer), size);
                                }
                            });
                };
        return issue(operation, body, List.of(in), out, outputs);
    }

    /**
     * Returns the address of each rank's part: consecutive parts of one tensor, or one tensor per
     * rank.
     */
    private long[] parts(List<DeviceTensor> tensors, long byteSize) {
        long[] parts = new long[ranks];
        for (int i = 0; i < ranks; i++) {
            parts[i] =
                    tensors.size() == 1
                            ? tensors.get(0).address() + i * byteSize
                            : tensors.get(i).address();
        }
        return parts;
    }

    Work broadcast(Operation operation, NDArray tensor, int root) {
        boolean sends = rank == root;
        DeviceTensor io = sends ? input(tensor) : output(tensor);
        GpuCall.Body body =
                stream ->
                        exchange(
                                stream,
                                operation,
                                toAll(sends ? io.address() : 0),
                                io.byteSize(),
                                (half, done, size) -> {
                                    if (!sends) {
                                        long place = io.address() + done;
                                        stream.copyAsync(place, address(rank, half, root), size);
                                    }
                                });
        List<DeviceTensor> own = List.of(io);
        List<DeviceTensor> none = List.of();
        return issue(operation, body, sends ? own : none, sends ? none : own, List.of(tensor));
    }

    /** All-reduces a tensor. 16-bit types are summed as in {@link Reductions}. */
    Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        DeviceTensor io = input(tensor);
        GpuCall.Body body = stream -> reduce(stream, operation, toAll(io.address()), io, op);
        return issue(operation, body, List.of(), List.of(io), List.of(tensor));
    }

    /** Reduce-scatters the parts of one array, or one array per rank. */
    Work reduceScatter(Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        DeviceTensor out = output(output);
        List<DeviceTensor> in = inputs.stream().map(this::input).toList();
        long[] parts = parts(in, out.byteSize());
        GpuCall.Body body = stream -> reduce(stream, operation, parts, out, op);
        return issue(operation, body, in, List.of(out), List.of(output));
    }

    private void reduce(
            CudaStream stream, Operation operation, long[] parts, DeviceTensor out, ReduceOp op) {
        exchange(
                stream,
                operation,
                parts,
                out.byteSize(),
                (half, done, size) -> {
                    stream.copyAsync(address(rank, half, rank), parts[rank] + done, size);
                    reduceWindows(stream, half, size, out.type(), op);
                    stream.copyAsync(out.address() + done, address(rank, half, 0), size);
                });
    }

    /** Reduces the windows of a half in rank order, into the first. */
    private void reduceWindows(
            CudaStream stream, long half, long byteSize, ScalarType type, ReduceOp op) {
        CudaStreamGuard guard = Torch.cudaStreamGuard(group.resources().device(), stream.handle());
        try (NDManager temporary = group.resources().manager().newSubManager()) {
            Shape shape = new Shape(byteSize / type.itemSize());
            List<NDArray> windows = new ArrayList<>();
            for (int source = 0; source < ranks; source++) {
                long offset = offset(half, source);
                windows.add(Torch.view(temporary, region.memory(rank), offset, shape, type));
            }
            NoGradient.run(() -> reduce(windows, op));
        } finally {
            guard.close();
        }
    }

    /** Reduces arrays into the first. */
    private static void reduce(List<NDArray> windows, ReduceOp op) {
        NDArray result = windows.get(0);
        if (op.kind() != ReduceOp.Kind.PREMUL_SUM) {
            Reductions.reduce(result, windows, op);
            return;
        }
        boolean widen = Torch.scalarType(result).isReducedFloatingPoint();
        List<NDArray> products = new ArrayList<>();
        for (NDArray window : windows) {
            products.add(widen ? Torch.cast(window, ScalarType.FLOAT32) : window);
        }
        products.forEach(product -> TorchInPlace.mul(product, op.factor()));
        Reductions.reduce(products.get(0), products, ReduceOp.SUM);
        Torch.copy(result, products.get(0));
    }

    Work barrier(Operation operation) {
        GpuCall.Body body = stream -> signals.meet(stream, operation.timeout());
        return issue(operation, body, List.of(), List.of(), List.of());
    }
}
