/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
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
 * The plan of {@link FusedOps#allGatherMatmul} or {@link FusedOps#allGatherGated}.
 *
 * <p>With the gather dimension moved to the front, the gathered A is the ranks' shards one after
 * the other, and so is each product: the rows that a shard yields depend on no other shard.
 */
final class AllGatherMatmulPlan implements FusedPlan {

    static final OpType TYPE = new OpType("allGatherMatmul");

    private final GroupPlans plans;
    private final boolean returnGathered;
    private boolean gated; // whether it has the one launch that it was made for
    private final ScalarType type;
    private final int gatherDim;
    private final int lastDim;
    private final int worldSize;
    private final Shape gatheredShape;
    private final long[] columns; // of each B
    private final FallbackReason reason; // null if it is pipelined
    private final Choice choice;
    private final boolean otherwiseRecorded;

    // Of the pipelined path.
    private Compute compute;
    private Pipeline schedule;
    private Slots slots;
    private Agreed agreed;
    private boolean direct; // the shard is pushed as it is, not copied before
    private boolean[] directB;
    private long shardBytes;
    private Shape frontShape; // of the gathered A with the gather dimension in front
    private Shape[] outShapes;
    private long[] outBytes; // of a shard's rows
    private Product[] products;
    private FusedMatmul.Gather persistent; // null if it is more than one launch
    private GatheredExchange exchange; // what gathers before one matmul; null if a schedule does
    private boolean productsLoaded; // of the gathered path

    AllGatherMatmulPlan(
            ProcessGroup group,
            NDArray aShard,
            List<NDArray> bs,
            TensorInfo[] infos,
            int gatherDim,
            boolean returnGathered,
            boolean gated,
            boolean recorded) {
        OperandChecks checks = new OperandChecks(TYPE.toString());
        this.plans = GroupPlans.of(group);
        this.worldSize = group.worldSize();
        this.returnGathered = returnGathered;
        this.type = checks.checkA("aShard", aShard, infos[0], group.device());
        Shape shape = new Shape(infos[0].sizes());
        this.lastDim = shape.dimension() - 1;
        this.gatherDim = checks.dimension("gatherDim", gatherDim, shape.dimension());
        this.gatheredShape =
                Axes.with(shape, this.gatherDim, shape.get(this.gatherDim) * worldSize);
        columns = new long[bs.size()];
        for (int i = 0; i < bs.size(); i++) {
            String role = bs.size() == 1 ? "B" : "B number " + i;
            long inner = gatheredShape.get(lastDim);
            checks.checkB(role, bs.get(i), infos[1 + i], aShard, type, inner);
            columns[i] = infos[1 + i].sizes()[1];
        }
        FallbackReason impossible = fallbackReason(group, infos[0].count());
        if (impossible != null) {
            choice = new Choice(Path.NCCL, impossible.toString());
            otherwiseRecorded = false;
            reason = impossible;
            return;
        }
        compute = plans.compute();
        Workload work =
                new Workload(
                        FusedOperator.ALL_GATHER_MATMUL,
                        type,
                        worldSize,
                        Axes.rows(shape),
                        Arrays.stream(columns).boxed().toList(),
                        shape.get(lastDim));
        PathChooser chooser = new PathChooser(group, compute, work, each -> possible(group, each));
        choice = chooser.choose(recorded);
        otherwiseRecorded = chooser.choose(!recorded).path() != choice.path();
        reason = choice.path() == Path.NCCL ? FallbackReason.NCCL_IS_FASTER : null;
        if (gated) {
            this.gated =
                    choice.path() == Path.FUSED
                            && compute.persistent()
                                    .orElseThrow()
                                    .gates(
                                            group.p2pBuffers().orElseThrow(),
                                            work,
                                            Axes.layout(infos[1]),
                                            infos[1].address());
        }
        if (reason == null && gated == this.gated) {
            prepare(group, infos, shape, work);
        }
    }

    /**
     * The paths that push. Ranks may differ in whether it is one launch or scheduled: both push the
     * same and signal alike.
     */
    private Set<Path> possible(ProcessGroup group, Workload work) {
        P2pBuffers buffers = group.p2pBuffers().orElseThrow();
        Set<Path> possible = EnumSet.of(Path.PIPELINED);
        boolean whole =
                group.device().isGpu()
                        ? compute.canExchange(buffers, work.type(), work.partBytes())
                        : Pipeline.isWhole(work.partBytes());
        if (whole) {
            possible.add(Path.GATHERED);
        }
        if (compute.persistent().filter(launch -> launch.gathers(buffers, work)).isPresent()) {
            possible.add(Path.FUSED);
        }
        return possible;
    }

    private FallbackReason fallbackReason(ProcessGroup group, long count) {
        if (FusedOps.isForced(Path.NCCL)) {
            return FallbackReason.FORCED;
        }
        if (gatherDim == lastDim) {
            return FallbackReason.GATHER_ALONG_LAST_DIMENSION;
        }
        if (!group.isP2pAvailable()) {
            return FallbackReason.NO_P2P_BUFFERS;
        }
        return Slots.fit(group.p2pBuffers().orElseThrow(), worldSize, count, type)
                ? null
                : FallbackReason.BUFFER_TOO_SMALL;
    }

    private void prepare(ProcessGroup group, TensorInfo[] infos, Shape shape, Workload work) {
        schedule = plans.schedule(group);
        shardBytes = infos[0].byteSize();
        slots = new Slots(group.p2pBuffers().orElseThrow(), shardBytes);
        agreed = new Agreed(type, infos[0].sizes(), null, gatherDim);
        direct = gatherDim == 0 && infos[0].isContiguous();
        frontShape = Axes.move(gatheredShape, gatherDim, 0);
        long inner = shape.get(lastDim);
        long rows = Axes.rows(shape);
        int count = infos.length - 1;
        outShapes = new Shape[count];
        MatrixLayout[] bs = new MatrixLayout[count];
        for (int i = 0; i < count; i++) {
            bs[i] = Axes.layout(infos[1 + i]);
            outShapes[i] = Axes.with(frontShape, lastDim, gated ? columns[i] / 2 : columns[i]);
        }
        if (choice.path() == Path.FUSED) {
            preparePersistent(compute.persistent().orElseThrow(), infos, work, bs);
        } else {
            prepareSchedule(infos[0].address(), rows, inner, bs);
        }
    }

    private void preparePersistent(
            FusedMatmul oneLaunch, TensorInfo[] infos, Workload work, MatrixLayout[] layouts) {
        long inner = work.inner();
        MatrixLayout contiguous = MatrixLayout.contiguous(work.rows(), inner);
        direct &= FusedMatmul.isUsable(contiguous, infos[0].address());
        long[] addresses = new long[layouts.length];
        for (int i = 0; i < layouts.length; i++) {
            addresses[i] = infos[1 + i].address();
        }
        directB = FusedMatmul.usable(layouts, addresses);
        for (int i = 0; i < layouts.length; i++) {
            layouts[i] = directB[i] ? layouts[i] : MatrixLayout.contiguous(inner, columns[i]);
        }
        persistent = oneLaunch.gather(slots, work, gated, layouts);
    }

    private void prepareSchedule(long shardAddress, long rows, long inner, MatrixLayout[] layouts) {
        long rowsAtOnce = rows;
        if (choice.path() == Path.GATHERED) {
            boolean byKernels = compute.canExchange(slots.buffers(), type, shardBytes);
            exchange = byKernels ? compute.exchange() : null;
            direct &= exchange == null || GatheredExchange.isUsable(shardAddress);
            rowsAtOnce = worldSize * rows;
        }
        directB = new boolean[layouts.length];
        outBytes = new long[layouts.length];
        products = new Product[layouts.length];
        for (int i = 0; i < layouts.length; i++) {
            directB[i] = Axes.isUsable(layouts[i]);
            outBytes[i] = rows * columns[i] * type.itemSize();
            products[i] =
                    compute.product(
                            type,
                            MatrixLayout.contiguous(rowsAtOnce, columns[i]),
                            MatrixLayout.contiguous(rowsAtOnce, inner),
                            directB[i] ? layouts[i] : MatrixLayout.contiguous(inner, columns[i]));
        }
    }

    /** Tells whether the plan multiplies values by the activation of their gates. */
    boolean isGated() {
        return gated;
    }

    /** What a call has enqueued or issued, whose results are there when the work has ended. */
    record Issued(GatheredMatmul result, Work work) {}

    Issued run(ProcessGroup group, NDArray aShard, List<NDArray> bs, TensorInfo[] infos) {
        UsageCounter.count(reason, choice);
        return reason == null
                ? pipelined(group, aShard, bs, infos)
                : new Issued(NoGradient.get(() -> plain(group, aShard, bs)), null);
    }

    private Issued pipelined(
            ProcessGroup group, NDArray aShard, List<NDArray> bs, TensorInfo[] infos) {
        NDManager manager = aShard.getManager();
        OperationScope scope = plans.scope();
        List<NDArray> made = new ArrayList<>(1 + outShapes.length);
        boolean done = false;
        try {
            NDArray shard = direct ? aShard : scope.front(aShard, gatherDim, type);
            long shardAddress = direct ? infos[0].address() : Torch.dataPointer(shard);
            NDArray[] used = new NDArray[2 + 2 * outShapes.length];
            long[] right = new long[outShapes.length];
            long[] outs = new long[outShapes.length];
            for (int i = 0; i < outShapes.length; i++) {
                NDArray b = directB[i] ? bs.get(i) : scope.copy(bs.get(i), type);
                right[i] = directB[i] ? infos[1 + i].address() : Torch.dataPointer(b);
                NDArray out = Torch.empty(manager, outShapes[i], type);
                made.add(out);
                outs[i] = Torch.dataPointer(out);
                used[2 * i] = b;
                used[2 * i + 1] = out;
            }
            NDArray gathered = shard;
            if (returnGathered) {
                gathered = Torch.empty(manager, frontShape, type);
                made.add(gathered);
            } else if (exchange != null) {
                gathered = scope.empty(frontShape, type);
            }
            long whole = gathered == shard ? 0 : Torch.dataPointer(gathered);
            used[used.length - 2] = shard;
            used[used.length - 1] = gathered;
            scope.hold(used);
            Work work =
                    group.execute(
                            TYPE,
                            agreed,
                            operation -> {
                                if (persistent != null) {
                                    persistent.run(
                                            operation, shardAddress, right, outs, whole, used);
                                    return;
                                }
                                compute.begin();
                                if (exchange != null) {
                                    operation.setAlgorithm("gathered");
                                    loadProducts(outs, whole, right);
                                    exchange.gather(
                                            operation,
                                            slots.buffers(),
                                            shardAddress,
                                            shardBytes,
                                            whole,
                                            used);
                                    multiply(outs, whole, right, 0);
                                    return;
                                }
                                if (choice.path() == Path.GATHERED) {
                                    schedule.gatherThenConsume(
                                            operation,
                                            slots,
                                            shardAddress,
                                            shardBytes,
                                            (stream, shards) -> {
                                                multiply(outs, shards, right, 0);
                                                if (returnGathered) {
                                                    long size = worldSize * shardBytes;
                                                    stream.copy(whole, shards, size);
                                                }
                                            },
                                            used);
                                    return;
                                }
                                schedule.gatherAndConsume(
                                        operation,
                                        slots,
                                        shardAddress,
                                        shardBytes,
                                        (stream, rank, part) -> {
                                            multiply(outs, part, right, rank);
                                            if (returnGathered) {
                                                stream.copy(
                                                        whole + rank * shardBytes,
                                                        part,
                                                        shardBytes);
                                            }
                                        },
                                        used);
                            });
            done = true;
            scope.closeAfter(work);
            List<NDArray> outputs = new ArrayList<>(outShapes.length);
            for (int i = 0; i < outShapes.length; i++) {
                outputs.add(Axes.restore(made.get(i), gatherDim));
            }
            return new Issued(
                    new GatheredMatmul(
                            returnGathered ? Axes.restore(gathered, gatherDim) : null, outputs),
                    work);
        } finally {
            if (!done) {
                made.forEach(NDArray::close);
                scope.close();
            }
        }
    }

    /**
     * Multiplies once before the first gather, whatever the memory holds. cuBLAS loads a kernel
     * with its first product; behind a gather, the driver would hold up the launches of ranks that
     * share this GPU until the load ends, and the load until the gather, which waits for them.
     */
    private void loadProducts(long[] outs, long whole, long[] right) {
        if (!productsLoaded && !compute.isRecorded()) {
            multiply(outs, whole, right, 0);
            productsLoaded = true;
        }
    }

    /** Multiplies rows of A, those of a rank or all, with each B. */
    private void multiply(long[] outs, long rows, long[] right, int rank) {
        for (int i = 0; i < products.length; i++) {
            products[i].run(outs[i] + rank * outBytes[i], rows, right[i]);
        }
    }

    private GatheredMatmul plain(ProcessGroup group, NDArray aShard, List<NDArray> bs) {
        NDManager manager = aShard.getManager();
        OperationScope scope = plans.scope();
        try {
            NDArray stacked = scope.empty(Axes.stacked(worldSize, aShard.getShape()), type);
            FusedOps.complete(group, group.allGatherIntoTensor(stacked, aShard));
            NDArray inOrder = scope.add(Axes.move(stacked, 0, gatherDim));
            NDArray gathered = scope.add(scope.contiguous(inOrder, type).reshape(gatheredShape));
            NDArray matrix = scope.add(Axes.matrix(gathered));
            List<NDArray> outputs = new ArrayList<>();
            for (int i = 0; i < bs.size(); i++) {
                Shape shape = new Shape(matrix.getShape().get(0), columns[i]);
                NDArray out = Torch.empty(manager, shape, type);
                Torch.mmOut(out, matrix, bs.get(i));
                Shape full = Axes.with(gatheredShape, lastDim, columns[i]);
                outputs.add(Axes.detached(out, o -> o.reshape(full)));
            }
            NDArray whole = returnGathered ? Torch.alias(manager, gathered) : null;
            return new GatheredMatmul(whole, outputs);
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
        if (products != null) {
            for (Product product : products) {
                product.close();
            }
        }
    }
}
