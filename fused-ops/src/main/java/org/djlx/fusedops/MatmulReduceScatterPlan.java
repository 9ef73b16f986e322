/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.FusedOperator;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.cost.Workload;
import org.djlx.fusedops.internal.Compute;
import org.djlx.fusedops.internal.FusedMatmul;
import org.djlx.fusedops.internal.GatheredExchange;
import org.djlx.fusedops.internal.Pipeline;
import org.djlx.fusedops.internal.Product;
import org.djlx.fusedops.internal.Slots;
import org.djlx.nativeops.cuda.MatrixLayout;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * The plan of {@link FusedOps#matmulReduceScatter}.
 *
 * <p>With the scatter dimension moved to the front, the part for a rank is a block of A's rows
 * times B; or, if the product's last dimension is scattered, A times a block of B's columns.
 */
final class MatmulReduceScatterPlan implements FusedPlan {

    static final OpType TYPE = new OpType("matmulReduceScatter");

    private final GroupPlans plans;
    private final ReduceOp op;
    private final ScalarType type;
    private final int scatterDim;
    private final int lastDim;
    private final int worldSize;
    private final Shape product;
    private final FallbackReason reason; // null if it is pipelined
    private final Choice choice;
    private final boolean otherwiseRecorded;
    private final boolean columns; // blocks of B's columns, not of A's rows

    // Of the pipelined path.
    private Compute compute;
    private Pipeline schedule;
    private Slots slots;
    private Agreed agreed;
    private boolean directA;
    private boolean directB;
    private long blockBytes; // from one rank's block to the next
    private long partBytes;
    private Shape partShape; // of the result, with the scatter dimension in front
    private Shape stagingShape;
    private FusedMatmul.Scatter persistent; // null if it is more than one launch
    private Product multiply;
    private Compute.Reduction reduction;
    private GatheredExchange exchange; // what scatters behind one matmul; null if a schedule does

    MatmulReduceScatterPlan(
            ProcessGroup group,
            NDArray a,
            NDArray b,
            TensorInfo[] infos,
            ReduceOp op,
            int scatterDim,
            boolean recorded) {
        OperandChecks checks = new OperandChecks(TYPE.toString());
        this.plans = GroupPlans.of(group);
        this.worldSize = group.worldSize();
        this.type = checks.checkA("A", a, infos[0], group.device());
        Shape shape = new Shape(infos[0].sizes());
        this.lastDim = shape.dimension() - 1;
        checks.checkB("B", b, infos[1], a, type, shape.get(lastDim));
        checks.checkSum(op);
        this.op = op;
        this.scatterDim = checks.dimension("scatterDim", scatterDim, shape.dimension());
        this.product = Axes.with(shape, lastDim, infos[1].sizes()[1]);
        long size = product.get(this.scatterDim);
        if (size % worldSize != 0) {
            throw checks.wrong(
                    "dimension %d of the product %s is not divisible by the world size %d",
                    scatterDim, product, worldSize);
        }
        columns = this.scatterDim == lastDim;
        FallbackReason impossible = fallbackReason(group);
        if (impossible != null) {
            choice = new Choice(Path.NCCL, impossible.toString());
            otherwiseRecorded = false;
            reason = impossible;
            return;
        }
        compute = plans.compute();
        long rows = Axes.rows(shape);
        long width = product.get(lastDim);
        Workload work =
                new Workload(
                        FusedOperator.MATMUL_REDUCE_SCATTER,
                        type,
                        worldSize,
                        columns ? rows : rows / worldSize,
                        List.of(columns ? width / worldSize : width),
                        shape.get(lastDim));
        PathChooser chooser = new PathChooser(group, compute, work, each -> possible(group, each));
        choice = chooser.choose(recorded);
        otherwiseRecorded = chooser.choose(!recorded).path() != choice.path();
        reason = choice.path() == Path.NCCL ? FallbackReason.NCCL_IS_FASTER : null;
        if (reason == null) {
            prepare(group, infos, shape, work);
        }
    }

    /** The paths that push; the same on all ranks. */
    private Set<Path> possible(ProcessGroup group, Workload work) {
        P2pBuffers buffers = group.p2pBuffers().orElseThrow();
        Set<Path> possible = EnumSet.of(Path.PIPELINED);
        boolean whole =
                group.device().isGpu()
                        ? compute.canExchange(buffers, work.type(), work.partBytes())
                        : Pipeline.isWhole(work.partBytes());
        if (!columns && whole) {
            possible.add(Path.GATHERED);
        }
        if (!columns
                && compute.persistent()
                        .filter(launch -> launch.scatters(buffers, work, op))
                        .isPresent()) {
            possible.add(Path.FUSED);
        }
        return possible;
    }

    /** The shape of a rank's part of the product. */
    private Shape part() {
        return Axes.with(product, scatterDim, product.get(scatterDim) / worldSize);
    }

    private FallbackReason fallbackReason(ProcessGroup group) {
        if (FusedOps.isForced(Path.NCCL)) {
            return FallbackReason.FORCED;
        }
        if (!group.isP2pAvailable()) {
            return FallbackReason.NO_P2P_BUFFERS;
        }
        return Slots.fit(group.p2pBuffers().orElseThrow(), worldSize, part().size(), type)
                ? null
                : FallbackReason.BUFFER_TOO_SMALL;
    }

    private void prepare(ProcessGroup group, TensorInfo[] infos, Shape shape, Workload work) {
        schedule = plans.schedule(group);
        agreed = new Agreed(type, product.getShape(), op, scatterDim);
        long inner = shape.get(lastDim);
        long rows = Axes.rows(shape);
        MatrixLayout left = MatrixLayout.contiguous(rows, inner);
        MatrixLayout given = lastDim == 1 ? Axes.layout(infos[0]) : left;
        boolean inPlace = columns || scatterDim == 0;
        directA = inPlace && (infos[0].isContiguous() || lastDim == 1 && Axes.isUsable(given));
        left = directA ? given : left;
        MatrixLayout right = Axes.layout(infos[1]);
        directB = Axes.isUsable(right);
        right = directB ? right : MatrixLayout.contiguous(inner, product.get(lastDim));
        long partRows = work.rows();
        long partColumns = work.columns().get(0);
        blockBytes =
                (columns ? partColumns * right.columnStride() : partRows * left.rowStride())
                        * type.itemSize();
        partBytes = partRows * partColumns * type.itemSize();
        slots = new Slots(group.p2pBuffers().orElseThrow(), partBytes);
        partShape = Axes.move(part(), columns ? 0 : scatterDim, 0);
        if (choice.path() == Path.FUSED) {
            preparePersistent(compute.persistent().orElseThrow(), infos, work, left, right);
            return;
        }
        long rowsAtOnce = partRows;
        if (choice.path() == Path.GATHERED) {
            boolean byKernels = compute.canExchange(slots.buffers(), type, partBytes);
            exchange = byKernels ? compute.exchange() : null;
            rowsAtOnce = rows;
        }
        stagingShape = new Shape(rowsAtOnce * partColumns);
        multiply =
                compute.product(
                        type,
                        MatrixLayout.contiguous(rowsAtOnce, partColumns),
                        new MatrixLayout(rowsAtOnce, inner, left.rowStride(), left.columnStride()),
                        new MatrixLayout(
                                inner, partColumns, right.rowStride(), right.columnStride()));
        if (exchange == null) {
            long count = partRows * partColumns;
            reduction = compute.reduction(type, count, worldSize, op == ReduceOp.AVG);
        }
    }

    private void preparePersistent(
            FusedMatmul oneLaunch,
            TensorInfo[] infos,
            Workload work,
            MatrixLayout left,
            MatrixLayout right) {
        directA &= FusedMatmul.isUsable(left, infos[0].address());
        directB &=
                FusedMatmul.usable(new MatrixLayout[] {right}, new long[] {infos[1].address()})[0];
        long inner = left.columns();
        MatrixLayout a = directA ? left : FusedMatmul.layout(left.rows(), inner);
        MatrixLayout b = directB ? right : MatrixLayout.contiguous(inner, right.columns());
        boolean average = op == ReduceOp.AVG;
        persistent = oneLaunch.scatter(slots, work, a, b, average);
    }

    /** What a call has enqueued or issued, whose result is there when the work has ended. */
    record Issued(NDArray result, Work work) {}

    Issued run(ProcessGroup group, NDArray a, NDArray b, TensorInfo[] infos) {
        UsageCounter.count(reason, choice);
        return reason == null
                ? pipelined(group, a, b, infos)
                : new Issued(NoGradient.get(() -> plain(group, a, b)), null);
    }

    private Issued pipelined(ProcessGroup group, NDArray a, NDArray b, TensorInfo[] infos) {
        OperationScope scope = plans.scope();
        NDArray result = null;
        boolean done = false;
        try {
            NDArray left = directA ? a : left(scope, a);
            NDArray right = directB ? b : scope.copy(b, type);
            long leftAddress = directA ? infos[0].address() : Torch.dataPointer(left);
            long rightAddress = directB ? infos[1].address() : Torch.dataPointer(right);
            result = Torch.empty(a.getManager(), partShape, type);
            long resultAddress = Torch.dataPointer(result);
            long[] staging = new long[2];
            NDArray[] used = {left, right, result, result, result};
            for (int i = 0; i < stagings(); i++) {
                // A single one is for the first step, which has number 1.
                int turn = 1 - i;
                used[3 + i] = scope.add(Torch.empty(a.getManager(), stagingShape, type));
                staging[turn] = Torch.dataPointer(used[3 + i]);
            }
            scope.hold(left, right, result);
            Work work =
                    group.execute(
                            TYPE,
                            agreed,
                            operation -> {
                                if (persistent != null) {
                                    persistent.run(
                                            operation,
                                            leftAddress,
                                            rightAddress,
                                            resultAddress,
                                            used);
                                    return;
                                }
                                compute.begin();
                                if (worldSize == 1 && choice.path() == Path.PIPELINED) {
                                    operation.setAlgorithm("alone");
                                    multiply.run(resultAddress, leftAddress, rightAddress);
                                    keepAlive(operation, used);
                                    return;
                                }
                                if (exchange != null) {
                                    operation.setAlgorithm("scattered");
                                    multiply.run(staging[1], leftAddress, rightAddress);
                                    exchange.scatter(
                                            operation,
                                            slots.buffers(),
                                            type,
                                            staging[1],
                                            partBytes,
                                            resultAddress,
                                            op == ReduceOp.AVG,
                                            used);
                                    return;
                                }
                                Pipeline.SlotReducer reducer =
                                        (first, distance) ->
                                                reduction.run(resultAddress, first, distance);
                                if (choice.path() == Path.GATHERED) {
                                    multiply.run(staging[1], leftAddress, rightAddress);
                                    schedule.scatterAndReduce(
                                            operation, slots, staging[1], partBytes, reducer, used);
                                    return;
                                }
                                schedule.produceAndScatter(
                                        operation,
                                        slots,
                                        staging,
                                        partBytes,
                                        (rank, out) -> {
                                            long block = rank * blockBytes;
                                            multiply.run(
                                                    out,
                                                    columns ? leftAddress : leftAddress + block,
                                                    columns ? rightAddress + block : rightAddress);
                                        },
                                        reducer,
                                        used);
                            });
            done = true;
            scope.closeAfter(work);
            return new Issued(Axes.restore(result, columns ? 0 : scatterDim), work);
        } finally {
            if (!done) {
                if (result != null) {
                    result.close();
                }
                scope.close();
            }
        }
    }

    private void keepAlive(Operation operation, NDArray... used) {
        try (P2pStream current = slots.buffers().currentStream(operation)) {
            current.keepAlive(used);
        }
    }

    /** How many parts are kept until they have been pushed. */
    private int stagings() {
        if (persistent != null) {
            return 0;
        }
        return choice.path() == Path.GATHERED ? 1 : Math.min(2, worldSize - 1);
    }

    /** A copy of A with the scatter dimension in front, unless it is the last. */
    private NDArray left(OperationScope scope, NDArray a) {
        NDArray front = scope.front(a, columns ? 0 : scatterDim, type);
        if (persistent == null) {
            return front;
        }
        NDArray matrix = scope.add(Axes.matrix(front));
        NDArray wide = scope.empty(FusedMatmul.copyShape(matrix.getShape()), type);
        FusedMatmul.copy(wide, matrix, type);
        return wide;
    }

    private NDArray plain(ProcessGroup group, NDArray a, NDArray b) {
        OperationScope scope = plans.scope();
        try {
            NDArray matrix = scope.add(Axes.matrix(scope.contiguous(scope.alias(a), type)));
            Shape shape = new Shape(matrix.getShape().get(0), product.get(lastDim));
            NDArray whole = scope.empty(shape, type);
            Torch.mmOut(whole, matrix, b);
            NDArray reshaped = scope.add(whole.reshape(product));
            NDArray front = scope.add(Axes.move(reshaped, scatterDim, 0));
            NDArray result = Torch.empty(a.getManager(), Axes.move(part(), scatterDim, 0), type);
            FusedOps.complete(group, group.reduceScatterTensor(result, front, op));
            return Axes.restore(result, scatterDim);
        } finally {
            scope.close();
        }
    }

    @Override
    public boolean isOtherwiseRecorded() {
        return otherwiseRecorded;
    }

    @Override
    public void close() {
        if (multiply != null) {
            multiply.close();
        }
    }
}
