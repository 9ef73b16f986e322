// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.cudap2p.Exchange.Run;
import org.djlx.collectives.internal.gpu.DeviceTensor;
import org.djlx.collectives.internal.gpu.GpuCall;
import org.djlx.collectives.internal.gpu.GpuGroup;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * All-gather, reduce-scatter, all-to-all and broadcast by {@link ExchangeKernels} or {@link
 * CopyExchange}. A collective runs on the caller's current stream if that is being captured into a
 * graph, or if the caller lets it wait immediately; otherwise on the group's stream, beside
 * computation, and then a large one uses few SMs.
 */
final class P2pCollectives {

    // Up to this size per rank, kernels move the data even if copy engines are asked for: a kernel
    // has finished before a copy would have started.
    private static final long MAX_KERNEL_BYTES = 1 << 20;

    private final ExchangeKernels kernels;
    private final CopyExchange copies; // null if the buffers are too small
    private final boolean alwaysCopies; // copy engines run the collectives of all callers
    private final P2pQueue queue;
    private final GpuGroup group;
    private final CurrentStreams currentStreams;
    private final int rank;
    private final int ranks;

    P2pCollectives(
            ExchangeKernels kernels,
            CopyExchange copies,
            boolean alwaysCopies,
            P2pQueue queue,
            GpuGroup group,
            CurrentStreams currentStreams,
            P2pRegion region) {
        this.kernels = kernels;
        this.copies = copies.isPossible() ? copies : null;
        this.alwaysCopies = alwaysCopies;
        this.queue = queue;
        this.group = group;
        this.currentStreams = currentStreams;
        rank = region.rank();
        ranks = region.ranks();
    }

    private boolean isForCopies(Operation operation) {
        return copies != null && (alwaysCopies || operation.isForCopyEngines());
    }

    /** Returns whether an all-gather or a broadcast runs here; the same on all ranks. */
    boolean isPossible(Operation operation) {
        return kernels.isPossible() || isForCopies(operation);
    }

    /**
     * Returns whether a reduction runs here; the same on all ranks. Only kernels reduce in CUDA
     * graphs.
     */
    boolean isPossible(Operation operation, ReduceOp op) {
        ScalarType type = operation.tensor().type().real();
        return kernels.canReduceScatter(type, op)
                || isForCopies(operation)
                        && (kernels.canSum(type, op) || !currentStreams.get().isCapturing());
    }

    /** Returns whether an all-to-all runs here; the same on all ranks. */
    boolean canExchange() {
        return kernels.isPossible();
    }

    /** Returns whether barriers, and all-reduces without a kernel, run here. */
    boolean hasCopies() {
        return copies != null && alwaysCopies;
    }

    /** Chooses kernels or copy engines for a collective that {@linkplain #isPossible runs here}. */
    private Exchange choose(Operation operation, boolean kernelsCan) {
        boolean large = operation.byteSize() > MAX_KERNEL_BYTES;
        boolean copy = isForCopies(operation) && (large || !kernelsCan);
        operation.setAlgorithm(copy ? "copies" : "exchange");
        return copy ? copies : kernels;
    }

    private interface Launch {
        void enqueue(Run run);
    }

    /** Tensors that a collective reads or writes, and their arrays. */
    private record Tensors(List<NDArray> arrays, List<DeviceTensor> tensors) {

        private static final Tensors NONE = new Tensors(List.of(), List.of());

        DeviceTensor only() {
            return tensors.get(0);
        }

        void keepIn(CudaStream captured) {
            for (int i = 0; i < tensors.size(); i++) {
                tensors.get(i).keepIn(captured, arrays.get(i));
            }
        }

        void close() {
            tensors.forEach(DeviceTensor::close);
        }
    }

    /** A collective on the caller's current stream. */
    private record OnCurrent(
            GpuGroup group, Operation operation, Tensors in, Tensors out, Launch launch)
            implements P2pQueue.Body {

        @Override
        public void enqueue(CudaStream stream, boolean captured) {
            group.resources().load(in.tensors, stream);
            launch.enqueue(new Run(stream, operation.timeout(), false));
            group.resources().flush(out.tensors, stream);
            if (captured) {
                in.keepIn(stream);
                out.keepIn(stream);
            }
        }

        @Override
        public void release() {
            in.close();
            out.close();
        }
    }

    /** Runs a collective on the caller's current stream or on the group's stream. */
    private Work run(
            Operation operation, Tensors in, Tensors out, List<NDArray> result, Launch launch) {
        try (CurrentStreams.Scope scope = currentStreams.hold()) {
            CudaStream current = scope.stream();
            boolean onCurrent =
                    current.isCapturing()
                            || operation.isInOrder() && group.collectives().isLaunched();
            if (!onCurrent) {
                GpuCall.Body body =
                        stream -> launch.enqueue(new Run(stream, operation.timeout(), true));
                GpuCall call = new GpuCall(body, in.tensors, out.tensors, new long[0], false);
                return group.issue(operation, call, result);
            }
            Work work =
                    queue.run(
                            operation,
                            current,
                            new OnCurrent(group, operation, in, out, launch),
                            result);
            if (work instanceof StreamWork streamWork) {
                streamWork.setOrdered();
            }
            return work;
        }
    }

    /**
     * Wraps tensors; those that are not read have all their elements written. {@code info} is null
     * if not known.
     */
    private Tensors tensors(List<NDArray> arrays, TensorInfo info, boolean read) {
        // A loop: until C2 has compiled it, a stream costs more than the native calls.
        List<DeviceTensor> tensors = new ArrayList<>(arrays.size());
        for (NDArray array : arrays) {
            tensors.add(
                    DeviceTensor.of(
                            group.resources().manager(),
                            array,
                            info != null ? info : Torch.info(array),
                            read));
        }
        return new Tensors(arrays, tensors);
    }

    /** Gathers into one array, or into one array per rank. */
    Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        Tensors in = tensors(List.of(input), operation.tensor(), true);
        Tensors out = tensors(outputs, operation.whole(), false);
        DeviceTensor own = in.only();
        long[] parts = parts(out.tensors, own.byteSize());
        Exchange by = choose(operation, kernels.isPossible());
        return run(
                operation,
                in,
                out,
                outputs,
                run -> by.gather(run, own.address(), parts, own.byteSize(), operation.place()));
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
        List<NDArray> tensors = List.of(tensor);
        Tensors own = tensors(tensors, operation.tensor(), sends);
        DeviceTensor io = own.only();
        Exchange by = choose(operation, kernels.isPossible());
        return run(
                operation,
                sends ? own : Tensors.NONE,
                sends ? Tensors.NONE : own,
                tensors,
                run -> by.broadcast(run, io.address(), io.byteSize(), root));
    }

    /** Reduce-scatters the parts of one array, or one array per rank. */
    Work reduceScatter(Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        List<NDArray> outputs = List.of(output);
        Tensors out = tensors(outputs, operation.tensor(), false);
        Tensors in = tensors(inputs, operation.whole(), true);
        DeviceTensor own = out.only();
        long[] parts = parts(in.tensors, own.byteSize());
        Exchange by = choose(operation, kernels.canReduceScatter(own.realType(), op));
        return run(
                operation,
                in,
                out,
                outputs,
                run ->
                        by.reduceScatter(
                                run, parts, own.address(), own.realCount(), own.realType(), op));
    }

    /** All-reduces a tensor by copies. */
    Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        List<NDArray> tensors = List.of(tensor);
        Tensors own = tensors(tensors, operation.tensor(), true);
        DeviceTensor io = own.only();
        operation.setAlgorithm("copies");
        return run(
                operation,
                Tensors.NONE,
                own,
                tensors,
                run -> copies.allReduce(run, io.address(), io.realCount(), io.realType(), op));
    }

    Work barrier(Operation operation) {
        operation.setAlgorithm("copies");
        return run(operation, Tensors.NONE, Tensors.NONE, List.of(), copies::barrier);
    }

    Work allToAll(Operation operation, List<NDArray> outputs, List<NDArray> inputs) {
        Tensors in = tensors(inputs, null, true);
        Tensors out = tensors(outputs, null, false);
        return exchange(
                operation,
                in,
                out,
                addresses(in.tensors),
                sizes(in.tensors),
                addresses(out.tensors),
                sizes(out.tensors));
    }

    private static long[] addresses(List<DeviceTensor> tensors) {
        return tensors.stream().mapToLong(DeviceTensor::address).toArray();
    }

    private static long[] sizes(List<DeviceTensor> tensors) {
        return tensors.stream().mapToLong(DeviceTensor::byteSize).toArray();
    }

    Work allToAllSingle(
            Operation operation,
            NDArray output,
            NDArray input,
            long[] outputCounts,
            long[] inputCounts) {
        Tensors in = tensors(List.of(input), null, true);
        Tensors out = tensors(List.of(output), null, false);
        long itemSize = in.only().type().itemSize();
        long[] inputSizes = Arrays.stream(inputCounts).map(count -> count * itemSize).toArray();
        long[] outputSizes = Arrays.stream(outputCounts).map(count -> count * itemSize).toArray();
        return exchange(
                operation,
                in,
                out,
                starts(in.only().address(), inputSizes),
                inputSizes,
                starts(out.only().address(), outputSizes),
                outputSizes);
    }

    private static long[] starts(long address, long[] sizes) {
        long[] starts = new long[sizes.length];
        long next = address;
        for (int i = 0; i < sizes.length; i++) {
            starts[i] = next;
            next += sizes[i];
        }
        return starts;
    }

    private Work exchange(
            Operation operation,
            Tensors in,
            Tensors out,
            long[] inputs,
            long[] inputSizes,
            long[] outputs,
            long[] outputSizes) {
        operation.setAlgorithm("exchange");
        return run(
                operation,
                in,
                out,
                out.arrays,
                run -> kernels.exchange(run, inputs, inputSizes, outputs, outputSizes));
    }
}
