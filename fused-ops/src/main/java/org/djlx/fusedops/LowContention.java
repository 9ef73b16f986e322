// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.function.BiConsumer;
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
 * Collectives that leave a GPU's SMs to concurrent kernels: copy engines move the data, and a
 * kernel runs only to reduce. Like PyTorch's {@code torch.ops.symm_mem._low_contention_all_gather}
 * and {@code _low_contention_reduce_scatter}, but these methods push data and PyTorch's pull.
 *
 * <p>Rules:
 *
 * <ul>
 *   <li>Each collective is an operation of the group, on the current stream. The caller waits for
 *       the returned {@link Work}.
 *   <li>If the group has no P2P buffers, all ranks use the group's own collective; {@link
 *       FusedOps#countUsage} counts it as NCCL.
 *   <li>Arrays that are larger than the buffers are sent in rounds.
 *   <li>Arrays that are not contiguous are copied.
 *   <li>There is no gradient: with gradients on, an input that requires a gradient is refused.
 *       {@link org.djlx.collectives.gradient.DifferentiableCollectives} has collectives with
 *       gradients.
 * </ul>
 */
public final class LowContention {

    static final OpType ALL_GATHER = new OpType("lowContentionAllGather");
    static final OpType REDUCE_SCATTER = new OpType("lowContentionReduceScatter");
    private static final String ALGORITHM = Path.PIPELINED.toString();
    private static final int HEAP_UNIT = 16;

    private LowContention() {}

    /**
     * Gathers the arrays of all ranks into one array on every rank, in rank order. If the output
     * lies in the {@linkplain P2pAllocator P2P heap}, the other ranks write into it directly. The
     * outputs must then lie there on all ranks, at the same offset. Otherwise the other ranks write
     * into this rank's P2P buffer, and this rank copies the result from there.
     *
     * @param group the group
     * @param output receives the arrays; has world size times as many elements as the input
     * @param input this rank's array, of any element type; the same shape on all ranks. It may be
     *     this rank's part of the output. Otherwise input and output share no memory
     * @return the work
     * @throws IllegalArgumentException if an argument is invalid; nothing has been sent then
     * @see ProcessGroup#allGatherIntoTensor
     */
    public static Work allGather(ProcessGroup group, NDArray output, NDArray input) {
        OperandChecks arguments = new OperandChecks(ALL_GATHER.toString());
        arguments.checkNotNull("the group", group);
        checkNotRecorded(arguments, input, "allGather");
        TensorInfo in = group.checkAllGather(output, input);
        OptionalLong offset = heapOffset(group, output);
        if (fallsBack(ALL_GATHER, group, offset.isPresent() ? 0 : in.byteSize())) {
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
                    Pipeline pipeline = GroupPlans.of(group).pipeline(group);
                    long shard = arrays.inputAddress();
                    if (offset.isPresent()) {
                        long place = offset.getAsLong();
                        pipeline.gatherInPlace(operation, place, shard, byteSize, arrays.all());
                        return;
                    }
                    long out = arrays.outputAddress();
                    pipeline.gatherAndConsume(
                            operation,
                            new Slots(group.p2pBuffers().orElseThrow(), byteSize),
                            shard,
                            byteSize,
                            out,
                            (stream, rank, part) -> {
                                long place = out + rank * byteSize;
                                if (place != part) {
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
     * @param output receives this rank's part; the same shape on all ranks. It may be this rank's
     *     part of the input. Otherwise input and output share no memory
     * @param input the array to reduce, of float32, float64, float16 or bfloat16; has world size
     *     times as many elements as the output
     * @param op {@link ReduceOp#SUM} or {@link ReduceOp#AVG}. Reduces in rank order; sums 16-bit
     *     types in float32 and rounds once
     * @return the work
     * @throws IllegalArgumentException if an argument is invalid; nothing has been sent then
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
        if (fallsBack(REDUCE_SCATTER, group, out.byteSize())) {
            return group.reduceScatterTensor(output, input, op);
        }
        return execute(
                group,
                REDUCE_SCATTER,
                new Agreed(out.type(), out.sizes(), op, 0),
                output,
                input,
                (operation, arrays) -> reduceScatter(group, operation, out, op, arrays));
    }

    private static void reduceScatter(
            ProcessGroup group, Operation operation, TensorInfo out, ReduceOp op, Arrays arrays) {
        GroupPlans plans = GroupPlans.of(group);
        Compute compute = plans.compute();
        compute.begin();
        Compute.Reduction reduction =
                compute.reduction(out.type(), out.count(), group.worldSize(), op);
        Slots slots = new Slots(group.p2pBuffers().orElseThrow(), out.byteSize());
        OperationScope scope = plans.scope();
        try {
            NDArray received =
                    slots.hasRounds()
                            ? scope.empty(slots.receivedShape(), ScalarType.UINT8)
                            : arrays.input();
            plans.pipeline(group)
                    .scatterAndReduce(
                            operation,
                            slots,
                            arrays.inputAddress(),
                            out.byteSize(),
                            Torch.dataPointer(received),
                            (stream, first, distance) ->
                                    reduction.run(arrays.outputAddress(), first, distance),
                            arrays.output(),
                            arrays.input(),
                            received);
        } finally {
            scope.close();
        }
    }

    /**
     * Refuses an input that requires a gradient, which would be lost, because the output is the
     * caller's array.
     */
    private static void checkNotRecorded(
            OperandChecks arguments, NDArray input, String differentiable) {
        if (input != null && NoGradient.isRecorded(input)) {
            throw arguments.wrong(
                    "the input requires a gradient, which would be lost: call"
                            + " DifferentiableCollectives.%s, switch gradients off, or pass"
                            + " input.stopGradient()",
                    differentiable);
        }
    }

    /** Returns the offset of an output in the heap; empty if it is not in the heap. */
    private static OptionalLong heapOffset(ProcessGroup group, NDArray output) {
        if (!group.isP2pAvailable()) {
            return OptionalLong.empty();
        }
        OptionalLong offset = group.p2pBuffers().orElseThrow().allocator().offsetOf(output);
        return offset.isPresent() && offset.getAsLong() % HEAP_UNIT == 0
                ? offset
                : OptionalLong.empty();
    }

    /** Counts the call, and returns whether the group's own collective runs (the fallback). */
    static boolean fallsBack(OpType type, ProcessGroup group, long partBytes) {
        Optional<FallbackReason> reason = MatmulPlan.fallbackReason(type, group, partBytes);
        UsageCounter.count(type, Path.PIPELINED, reason.orElse(null));
        return reason.isPresent();
    }

    /** The arrays of an operation, both contiguous. */
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
            // The caller may close the arrays before the operation has run.
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
        operation.setAlgorithm(ALGORITHM);
        ScalarType type = Torch.scalarType(out);
        boolean strided = !Torch.isContiguous(out);
        NDArray straight = strided ? scope.empty(out.getShape(), type) : out;
        body.accept(operation, new Arrays(straight, scope.contiguous(in, type)));
        if (strided) {
            Torch.copy(out, straight);
        }
    }
}
