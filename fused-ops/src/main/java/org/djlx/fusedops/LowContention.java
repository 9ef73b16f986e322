/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import java.util.function.BiConsumer;
import java.util.function.BooleanSupplier;
import org.djlx.collectives.OpType;
import org.djlx.collectives.Operation.Agreed;
import org.djlx.collectives.P2pAllocator;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.fusedops.internal.Pipeline;
import org.djlx.nativeops.NoGradient;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.TensorInfo;
import org.djlx.nativeops.Torch;

/**
 * Collectives that leave a GPU's multiprocessors to what computes beside them: copy engines move
 * the data, and a kernel runs only where there is something to add. The counterparts of PyTorch's
 * {@code torch.ops.symm_mem._low_contention_all_gather} and {@code _low_contention_reduce_scatter};
 * those pull, these push.
 *
 * <p>They are operations of the group like its own, on the current stream, and take a {@link Work}
 * to wait for. Where the group has no P2P buffers, or they are too small, the group's own
 * collective runs, on all ranks alike; {@link FusedOps#countUsage} tells. Arrays need not be
 * contiguous, but those that are not are copied.
 */
public final class LowContention {

    private static final OpType ALL_GATHER = new OpType("lowContentionAllGather");
    private static final OpType REDUCE_SCATTER = new OpType("lowContentionReduceScatter");
    private static final int HEAP_UNIT = 16;

    private LowContention() {}

    /**
     * Gathers the arrays of all ranks into one array on every rank, in rank order. If the output
     * lies in the {@linkplain P2pAllocator P2P heap}, which then must be so on all ranks and at the
     * same offset, the others write into it directly; otherwise into this rank's buffer, from where
     * it is copied.
     *
     * @param group the group
     * @param output where the arrays go; world size times as many elements as the input
     * @param input this rank's array, of any element type; the same shape on all ranks. It may be
     *     this rank's part of the output, and shares no other memory with it
     * @return the work
     * @throws IllegalArgumentException if an argument is wrong; before anything is sent
     * @see ProcessGroup#allGatherIntoTensor
     */
    public static Work allGather(ProcessGroup group, NDArray output, NDArray input) {
        new Arguments(ALL_GATHER.toString()).checkNotNull("the group", group);
        TensorInfo in = group.checkAllGather(output, input);
        Shape shape = new Shape(in.count());
        OptionalLong offset = heapOffset(group, output);
        FallbackReason reason =
                fallbackReason(
                        group, () -> offset.isPresent() || Pipeline.fits(group, shape, in.type()));
        UsageCounter.count(reason);
        if (reason != null) {
            return group.allGatherIntoTensor(output, input);
        }
        Agreed agreed =
                new Agreed(
                        in.type(),
                        in.sizes(),
                        null,
                        (int) offset.stream().map(o -> o / HEAP_UNIT + 1).findAny().orElse(0));
        return execute(
                group,
                ALL_GATHER,
                agreed,
                output,
                input,
                (arrays, pipeline) -> {
                    NDArray shard = arrays.input().reshape(shape);
                    if (offset.isPresent()) {
                        pipeline.gatherInPlace(arrays.output(), shard, in.type());
                    } else {
                        NDArray blocks = arrays.output().reshape(group.worldSize(), in.count());
                        long place = Torch.dataPointer(shard);
                        pipeline.gatherAndConsume(
                                shard,
                                in.type(),
                                (stream, rank, part) -> {
                                    NDArray block = blocks.get(rank);
                                    if (Torch.dataPointer(block) != place) {
                                        stream.copy(block, part);
                                    }
                                });
                    }
                });
    }

    /**
     * Reduces an array over all ranks and scatters the result along its first dimension, in rank
     * order.
     *
     * @param group the group
     * @param output where this rank's part goes; the same shape on all ranks. It may be this rank's
     *     part of the input, and shares no other memory with it
     * @param input the whole array, of float32, float64, float16 or bfloat16; world size times as
     *     many elements as the output
     * @param op {@link ReduceOp#SUM} or {@link ReduceOp#AVG}; in rank order, 16-bit types in
     *     float32 and rounded once
     * @return the work
     * @throws IllegalArgumentException if an argument is wrong; before anything is sent
     * @see ProcessGroup#reduceScatterTensor
     */
    public static Work reduceScatter(
            ProcessGroup group, NDArray output, NDArray input, ReduceOp op) {
        Arguments arguments = new Arguments(REDUCE_SCATTER.toString());
        arguments.checkNotNull("the group", group);
        arguments.checkSum(op);
        TensorInfo out = group.checkReduceScatter(output, input, op);
        arguments.checkFloating("output", out.type());
        Shape shape = new Shape(out.count());
        FallbackReason reason =
                fallbackReason(group, () -> Pipeline.fits(group, shape, out.type()));
        UsageCounter.count(reason);
        if (reason != null) {
            return group.reduceScatterTensor(output, input, op);
        }
        return execute(
                group,
                REDUCE_SCATTER,
                new Agreed(out.type(), out.sizes(), op, 0),
                output,
                input,
                (arrays, pipeline) -> {
                    NDArray blocks = arrays.input().reshape(group.worldSize(), out.count());
                    List<NDArray> parts = new ArrayList<>();
                    for (int rank = 0; rank < group.worldSize(); rank++) {
                        parts.add(blocks.get(rank));
                    }
                    pipeline.scatterAndReduce(
                            arrays.output().reshape(shape), parts, out.type(), op);
                });
    }

    /** Where all of an output is in the heap; empty if it is elsewhere. */
    private static OptionalLong heapOffset(ProcessGroup group, NDArray output) {
        if (!group.isP2pAvailable()) {
            return OptionalLong.empty();
        }
        OptionalLong offset = group.p2pBuffers().orElseThrow().allocator().offsetOf(output);
        return offset.isPresent() && offset.getAsLong() % HEAP_UNIT == 0
                ? offset
                : OptionalLong.empty();
    }

    private static FallbackReason fallbackReason(ProcessGroup group, BooleanSupplier fits) {
        if (FusedOps.isFallbackForced()) {
            return FallbackReason.FORCED;
        }
        if (!group.isP2pAvailable()) {
            return FallbackReason.NO_P2P_BUFFERS;
        }
        return fits.getAsBoolean() ? null : FallbackReason.BUFFER_TOO_SMALL;
    }

    /** Both contiguous. */
    private record Arrays(NDArray output, NDArray input) {}

    private static Work execute(
            ProcessGroup group,
            OpType type,
            Agreed agreed,
            NDArray output,
            NDArray input,
            BiConsumer<Arrays, Pipeline> body) {
        NDManager temporary = NDManager.newBaseManager(group.device(), "PyTorch");
        boolean issued = false;
        try {
            // The caller may close his before the operation has run.
            NDArray out = Torch.alias(temporary, output);
            NDArray in = Torch.alias(temporary, input);
            Work work =
                    group.execute(
                            type,
                            agreed,
                            operation ->
                                    NoGradient.run(
                                            () ->
                                                    run(
                                                            out,
                                                            in,
                                                            new Pipeline(
                                                                    group, operation, temporary),
                                                            temporary,
                                                            body)));
            issued = true;
            work.getFuture().whenComplete((result, failure) -> temporary.close());
            return work;
        } finally {
            if (!issued) {
                temporary.close();
            }
        }
    }

    private static void run(
            NDArray out,
            NDArray in,
            Pipeline pipeline,
            NDManager temporary,
            BiConsumer<Arrays, Pipeline> body) {
        ScalarType type = Torch.scalarType(out);
        boolean strided = !Torch.isContiguous(out);
        NDArray straight = strided ? Torch.empty(temporary, out.getShape(), type) : out;
        body.accept(new Arrays(straight, Axes.contiguous(temporary, in, type)), pipeline);
        if (strided) {
            Torch.copy(out, straight);
        }
    }
}
