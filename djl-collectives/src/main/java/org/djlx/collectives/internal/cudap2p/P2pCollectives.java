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

    /**
     * Runs a collective on the caller's current stream or on the group's stream; the arrays are
     * those of {@code in}, then of {@code out}.
     */
    private Work run(
            Operation operation,
            List<DeviceTensor> in,
            List<DeviceTensor> out,
            List<NDArray> arrays,
            List<NDArray> result,
            Launch launch) {
        try (CurrentStreams.Scope scope = currentStreams.hold()) {
            CudaStream current = scope.stream();
            boolean captured = current.isCapturing();
            boolean onCurrent =
                    captured || operation.isInOrder() && group.collectives().isLaunched();
            GpuCall.Body body =
                    stream -> launch.enqueue(new Run(stream, operation.timeout(), !onCurrent));
            if (!onCurrent) {
                return group.issue(
                        operation, new GpuCall(body, in, out, new long[0], false), result);
            }
            List<DeviceTensor> tensors = new ArrayList<>(in);
            tensors.addAll(out);
            Work work;
            try {
                work =
                        queue.run(
                                operation,
                                current,
                                (stream, recorded) -> {
                                    group.resources().load(in, stream);
                                    body.enqueue(stream);
                                    group.resources().flush(out, stream);
                                    for (int i = 0; recorded && i < tensors.size(); i++) {
                                        tensors.get(i).keepIn(stream, arrays.get(i));
                                    }
                                },
                                result);
            } catch (RuntimeException | Error e) {
                tensors.forEach(DeviceTensor::close);
                throw e;
            }
            if (work instanceof StreamWork streamWork) {
                streamWork.setOrdered();
            }
            // Keeps the memory until the end, as it may belong to another stream. Graphs keep
            // theirs.
            work.getFuture().whenComplete((done, failure) -> tensors.forEach(DeviceTensor::close));
            return work;
        }
    }

    private DeviceTensor input(NDArray tensor) {
        return DeviceTensor.input(group.resources().manager(), tensor);
    }

    private DeviceTensor output(NDArray tensor) {
        return DeviceTensor.output(group.resources().manager(), tensor);
    }

    private static List<NDArray> join(List<NDArray> first, List<NDArray> second) {
        List<NDArray> all = new ArrayList<>(first);
        all.addAll(second);
        return all;
    }

    /** Gathers into one array, or into one array per rank. */
    Work allGather(Operation operation, List<NDArray> outputs, NDArray input) {
        DeviceTensor in = input(input);
        List<DeviceTensor> out = outputs.stream().map(this::output).toList();
        long[] parts = parts(out, in.byteSize());
        Exchange by = choose(operation, kernels.isPossible());
        return run(
                operation,
                List.of(in),
                out,
                join(List.of(input), outputs),
                outputs,
                run -> by.gather(run, in.address(), parts, in.byteSize(), operation.place()));
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
        List<DeviceTensor> own = List.of(io);
        Exchange by = choose(operation, kernels.isPossible());
        return run(
                operation,
                sends ? own : List.of(),
                sends ? List.of() : own,
                List.of(tensor),
                List.of(tensor),
                run -> by.broadcast(run, io.address(), io.byteSize(), root));
    }

    /** Reduce-scatters the parts of one array, or one array per rank. */
    Work reduceScatter(Operation operation, NDArray output, List<NDArray> inputs, ReduceOp op) {
        DeviceTensor out = output(output);
        List<DeviceTensor> in = inputs.stream().map(this::input).toList();
        long[] parts = parts(in, out.byteSize());
        Exchange by = choose(operation, kernels.canReduceScatter(out.realType(), op));
        return run(
                operation,
                in,
                List.of(out),
                join(inputs, List.of(output)),
                List.of(output),
                run ->
                        by.reduceScatter(
                                run, parts, out.address(), out.realCount(), out.realType(), op));
    }

    /** All-reduces a tensor by copies. */
    Work allReduce(Operation operation, NDArray tensor, ReduceOp op) {
        DeviceTensor io = input(tensor);
        operation.setAlgorithm("copies");
        return run(
                operation,
                List.of(),
                List.of(io),
                List.of(tensor),
                List.of(tensor),
                run -> copies.allReduce(run, io.address(), io.realCount(), io.realType(), op));
    }

    Work barrier(Operation operation) {
        operation.setAlgorithm("copies");
        return run(operation, List.of(), List.of(), List.of(), List.of(), copies::barrier);
    }

    Work allToAll(Operation operation, List<NDArray> outputs, List<NDArray> inputs) {
        List<DeviceTensor> in = inputs.stream().map(this::input).toList();
        List<DeviceTensor> out = outputs.stream().map(this::output).toList();
        return exchange(
                operation,
                in,
                out,
                join(inputs, outputs),
                outputs,
                addresses(in),
                sizes(in),
                addresses(out),
                sizes(out));
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
        DeviceTensor in = input(input);
        DeviceTensor out = output(output);
        long itemSize = in.type().itemSize();
        long[] inputSizes = Arrays.stream(inputCounts).map(count -> count * itemSize).toArray();
        long[] outputSizes = Arrays.stream(outputCounts).map(count -> count * itemSize).toArray();
        return exchange(
                operation,
                List.of(in),
                List.of(out),
                List.of(input, output),
                List.of(output),
                starts(in.address(), inputSizes),
                inputSizes,
                starts(out.address(), outputSizes),
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
            List<DeviceTensor> in,
            List<DeviceTensor> out,
            List<NDArray> arrays,
            List<NDArray> result,
            long[] inputs,
            long[] inputSizes,
            long[] outputs,
            long[] outputSizes) {
        operation.setAlgorithm("exchange");
        return run(
                operation,
                in,
                out,
                arrays,
                result,
                run -> kernels.exchange(run, inputs, inputSizes, outputs, outputSizes));
    }
}
