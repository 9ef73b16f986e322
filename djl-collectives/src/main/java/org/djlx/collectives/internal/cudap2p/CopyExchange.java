// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.internal.gpu.GpuResources;
import org.djlx.collectives.spi.Reductions;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;

/**
 * Collectives by copies through the P2P buffers. Copy engines move the data; kernels run only to
 * wait and to reduce. A collective runs in rounds; the invariants stand in {@code
 * docs/design/collectives.md}, Copies. In a half of the buffer each source rank has a window.
 *
 * <p>{@link P2pQueue} orders the collectives of a group; the lock of an object guards its events.
 */
final class CopyExchange implements Exchange {

    private static final long ALIGNMENT = 256;

    // Smaller pieces do not keep the links busy, and each costs a barrier.
    private static final long MIN_PIECE = 4 << 20;

    // Pieces of a part, if their size allows it. More overlap better, and cost the host calls:
    // docs/design/experiments/training.md, FULL_SHARD.
    private static final int PIECES = 2;

    private final P2pRegion region;
    private final SignalKernels signals;
    private final ExchangeKernels kernels;
    private final GpuResources resources;
    private final int rank;
    private final int ranks;
    private final long window; // bytes
    private final CudaStream side;
    private final CudaEvent begun; // the caller's stream has reached the collective
    private final CudaEvent arrived; // the pieces of a round
    private final CudaEvent taken; // the side stream has moved them out of the windows

    CopyExchange(
            P2pRegion region,
            SignalKernels signals,
            ExchangeKernels kernels,
            GpuResources resources,
            CudaStream side) {
        this.region = region;
        this.signals = signals;
        this.kernels = kernels;
        this.resources = resources;
        rank = region.rank();
        ranks = region.ranks();
        this.side = side;
        begun = CudaEvent.create(resources.cuda());
        arrived = CudaEvent.create(resources.cuda());
        taken = CudaEvent.create(resources.cuda());
        window = region.layout().bufferSize() / 2 / ranks / ALIGNMENT * ALIGNMENT;
    }

    /** Returns whether the buffers are large enough; the same on all ranks. */
    boolean isPossible() {
        return ranks > 1 && window > 0;
    }

    /** Moves the pieces of a round out of the windows. */
    private interface Round {

        /**
         * Enqueues copies or a reduction on the side stream: of {@code size} bytes of each part
         * after the {@code done} bytes of earlier rounds, in the half of the buffer at an offset.
         */
        void take(long half, long done, long size);
    }

    /** Enqueues the entry into the buffers, and lets the side stream follow. */
    private void begin(Run run) {
        signals.enter(run.stream());
        begun.record(run.stream());
        side.waitEvent(begun);
        signals.awaitEntered(run.stream(), run.timeout());
    }

    private void end(Run run) {
        taken.record(side);
        run.stream().waitEvent(taken);
    }

    /**
     * Sends one part to each peer, in rounds. All parts have the same size; address 0 sends
     * nothing.
     */
    private void exchange(Run run, long[] parts, long byteSize, Round round) {
        long piece = (byteSize + PIECES - 1) / PIECES;
        piece = (Math.max(MIN_PIECE, piece) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        piece = Math.min(window, piece);
        long half = 0;
        for (long done = 0; done < byteSize; done += piece) {
            long size = Math.min(piece, byteSize - done);
            for (int step = 1; step < ranks; step++) {
                int peer = (rank + step) % ranks;
                if (parts[peer] != 0) {
                    run.stream().copyAsync(address(peer, half, rank), parts[peer] + done, size);
                }
            }
            if (done > 0) {
                run.stream().waitEvent(taken); // Invariant 3: before the barrier, not the copies.
            }
            signals.meet(run.stream(), run.timeout());
            arrived.record(run.stream());
            side.waitEvent(arrived);
            round.take(half, done, size);
            taken.record(side);
            half = half == 0 ? ranks * window : 0;
        }
    }

    private long address(int on, long half, int source) {
        return region.address(on) + offset(half, source);
    }

    private long offset(long half, int source) {
        return region.layout().buffer() + half + source * window;
    }

    private long[] samePart(long address) {
        long[] parts = new long[ranks];
        Arrays.fill(parts, address);
        return parts;
    }

    @Override
    public synchronized void gather(
            Run run, long input, long[] outputs, long byteSize, long place) {
        begin(run);
        if (place >= 0) {
            copyOwn(input, outputs[rank], 0, byteSize);
            long target = region.layout().buffer() + place + rank * byteSize;
            for (int step = 1; step < ranks && byteSize > 0; step++) {
                int peer = (rank + step) % ranks;
                run.stream().copyAsync(region.address(peer) + target, input, byteSize);
            }
            signals.meet(run.stream(), run.timeout());
            end(run);
            return;
        }
        exchange(
                run,
                samePart(input),
                byteSize,
                (half, done, size) -> {
                    for (int step = 1; step < ranks; step++) {
                        int peer = (rank + step) % ranks;
                        side.copyAsync(outputs[peer] + done, address(rank, half, peer), size);
                    }
                    // By pieces: beside a matmul, a local copy of 64 MiB takes 10 times its time,
                    // and the windows wait for it.
                    copyOwn(input, outputs[rank], done, size);
                });
        end(run);
    }

    private void copyOwn(long input, long output, long done, long size) {
        if (output != input && size > 0) {
            side.copyAsync(output + done, input + done, size);
        }
    }

    @Override
    public synchronized void broadcast(Run run, long tensor, long byteSize, int root) {
        boolean sends = rank == root;
        begin(run);
        exchange(
                run,
                samePart(sends ? tensor : 0),
                byteSize,
                (half, done, size) -> {
                    if (!sends) {
                        side.copyAsync(tensor + done, address(rank, half, root), size);
                    }
                });
        end(run);
    }

    @Override
    public synchronized void reduceScatter(
            Run run, long[] inputs, long output, long count, ScalarType type, ReduceOp op) {
        begin(run);
        exchange(
                run,
                inputs,
                count * type.itemSize(),
                (half, done, size) -> {
                    if (kernels.canSum(type, op)) {
                        long[] sources = new long[ranks];
                        for (int source = 0; source < ranks; source++) {
                            sources[source] = address(rank, half, source);
                        }
                        sources[rank] = inputs[rank] + done;
                        kernels.sum(side, sources, output + done, size / type.itemSize(), type, op);
                        return;
                    }
                    side.copyAsync(address(rank, half, rank), inputs[rank] + done, size);
                    reduceWindows(half, size, type, op);
                    side.copyAsync(output + done, address(rank, half, 0), size);
                });
        end(run);
    }

    /**
     * All-reduces a tensor in place: each rank sends it whole to all others. 16-bit types are
     * summed as in {@link Reductions}.
     */
    void allReduce(Run run, long tensor, long count, ScalarType type, ReduceOp op) {
        reduceScatter(run, samePart(tensor), tensor, count, type, op);
    }

    /** Reduces the windows of a half in rank order, into the first. */
    private void reduceWindows(long half, long byteSize, ScalarType type, ReduceOp op) {
        CudaStreamGuard guard = Torch.cudaStreamGuard(resources.device(), side.handle());
        try (NDManager temporary = resources.manager().newSubManager()) {
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

    void barrier(Run run) {
        signals.meet(run.stream(), run.timeout());
    }

    /** Frees the events; no collective may be running. */
    void close() {
        begun.close();
        arrived.close();
        taken.close();
    }
}
