/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import java.util.OptionalLong;
import java.util.function.BiConsumer;
import java.util.function.BooleanSupplier;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pAllocator;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.Compute;
import org.djlx.fusedops.internal.Pipeline;
import org.djlx.fusedops.internal.Slots;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * Collectives that leave a GPU's multiprocessors to what computes beside them: copy engines move
 * the data, and a kernel runs only where there is something to add. The counterparts of PyTorch's
 * {@code torch.ops.symm_mem._low_contention_all_gather} and {@code _low_contention_reduce_scatter};
 * those pull, these push.
 *
 * <p>They are operations of the group like its own, on the current stream, and take a {@link Work}
 * to wait for. Where the group has no P2P buffers, or they are too small, the group's own
 * collective runs, on all ranks alike; {@link FusedOps#countUsage} tells. Arrays need not be
 * contiguous, but those that are not are copied. They have no gradient: an input that requires one
 * is refused while gradients are on ({@link
 * org.djlx.collectives.gradient.DifferentiableCollectives} has the counterparts that have one).
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
        OperandChecks arguments = new OperandChecks(ALL_GATHER.toString());
        arguments.checkNotNull("the group", group);
        checkNotRecorded(arguments, input, "allGather");
        TensorInfo in = group.checkAllGather(output, input);
        OptionalLong offset = heapOffset(group, output);
        FallbackReason reason =
                fallbackReason(
                        group, () -> offset.isPresent() || fits(group, in.count(), in.type()));
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
        long byteSize = in.byteSize();
        return execute(
                group,
                ALL_GATHER,
                agreed,
                output,
                input,
                (operation, arrays) -> {
                    Pipeline schedule = GroupPlans.of(group).schedule(group);
                    long shard = arrays.inputAddress();
                    if (offset.isPresent()) {
                        long place = offset.getAsLong();
                        schedule.gatherInPlace(operation, place, shard, byteSize, arrays.all());
                        return;
                    }
                    long whole = arrays.outputAddress();
                    schedule.gatherAndConsume(
                            operation,
                            new Slots(group.p2pBuffers().orElseThrow(), byteSize),
                            shard,
                            byteSize,
                            (stream, rank, part) -> {
                                long place = whole + rank * byteSize;
                                if (place != shard || part != shard) {
                                    stream.copy(place, part, byteSize);
                                }
                            },
                            arrays.all());
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
        OperandChecks arguments = new OperandChecks(REDUCE_SCATTER.toString());
        arguments.checkNotNull("the group", group);
        arguments.checkSum(op);
        checkNotRecorded(arguments, input, "reduceScatter");
        TensorInfo out = group.checkReduceScatter(output, input, op);
        arguments.checkFloating("output", out.type());
        FallbackReason reason = fallbackReason(group, () -> fits(group, out.count(), out.type()));
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
                (operation, arrays) -> {
                    Compute compute = GroupPlans.of(group).compute();
                    compute.begin();
                    Compute.Reduction reduction =
                            compute.reduction(
                                    out.type(), out.count(), group.worldSize(), op == ReduceOp.AVG);
                    GroupPlans.of(group)
                            .schedule(group)
                            .scatterAndReduce(
                                    operation,
                                    new Slots(group.p2pBuffers().orElseThrow(), out.byteSize()),
                                    arrays.inputAddress(),
                                    out.byteSize(),
                                    (first, distance) ->
                                            reduction.run(arrays.outputAddress(), first, distance),
                                    arrays.all());
                });
    }

    /** Refuses an input whose gradient would be lost, as the output is the caller's array. */
    private static void checkNotRecorded(
            OperandChecks arguments, NDArray input, String differentiable) {
        if (input != null && NoGradient.isRecorded(input)) {
            throw arguments.wrong(
                    "the input requires a gradient, which would be lost: call"
                            + " DifferentiableCollectives.%s, or with gradients off, or pass"
                            + " input.stopGradient()",
                    differentiable);
        }
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
        if (FusedOps.isForced(Path.NCCL)) {
            return FallbackReason.FORCED;
        }
        if (!group.isP2pAvailable()) {
            return FallbackReason.NO_P2P_BUFFERS;
        }
        return fits.getAsBoolean() ? null : FallbackReason.BUFFER_TOO_SMALL;
    }

    private static boolean fits(ProcessGroup group, long count, ScalarType type) {
        return Slots.fit(group.p2pBuffers().orElseThrow(), group.worldSize(), count, type);
    }

    /** Both contiguous. */
    private record Arrays(NDArray output, NDArray input) {

        long outputAddress() {
            return Torch.dataPointer(output);
        }

        long inputAddress() {
            return Torch.dataPointer(input);
        }

        NDArray[] all() {
            return new NDArray[] {output, input};
        }
    }

    private static Work execute(
            ProcessGroup group,
            OpType type,
            Agreed agreed,
            NDArray output,
            NDArray input,
            BiConsumer<Operation, Arrays> body) {
        OperationScope scope = GroupPlans.of(group).scope();
        boolean issued = false;
        try {
            // The caller may close his before the operation has run.
            NDArray out = scope.alias(output);
            NDArray in = scope.alias(input);
            Work work =
                    group.execute(
                            type,
                            agreed,
                            operation ->
                                    NoGradient.run(() -> run(operation, out, in, scope, body)));
            issued = true;
            scope.closeAfter(work);
            return work;
        } finally {
            if (!issued) {
                scope.close();
            }
        }
    }

    private static void run(
            Operation operation,
            NDArray out,
            NDArray in,
            OperationScope scope,
            BiConsumer<Operation, Arrays> body) {
        ScalarType type = Torch.scalarType(out);
        boolean strided = !Torch.isContiguous(out);
        NDArray straight = strided ? scope.empty(out.getShape(), type) : out;
        body.accept(operation, new Arrays(straight, scope.contiguous(in, type)));
        if (strided) {
            Torch.copy(out, straight);
        }
    }
}
