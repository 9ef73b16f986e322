/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.RmsNormKernels;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * The plan of {@link FusedOps#allReduceRmsNorm}: one launch of a kernel, or an all-reduce and a
 * kernel, or an all-reduce and libtorch, all to the same bits but for the order in which squares
 * are added.
 */
final class AllReduceRmsNormPlan implements FusedPlan {

    static final OpType TYPE = new OpType("allReduceRmsNorm");

    private static final int INPUTS = 3; // partial, residual, weight

    private final GroupPlans plans;
    private final ScalarType type;
    private final Shape shape;
    private final long hidden;
    private final long rows;
    private final boolean[] direct = new boolean[INPUTS]; // contiguous
    private final RmsNormKernels kernels; // null if there are none
    private final P2pBuffers buffers; // null if there are none
    private final FallbackReason reason; // null if it is one launch
    private final Agreed agreed;

    /**
     * A call.
     *
     * @param inputs partial, residual and weight
     * @param infos what libtorch says of them
     * @param epsilon what is added to the mean of squares
     * @param group the group
     */
    record Call(NDArray[] inputs, TensorInfo[] infos, float epsilon, ProcessGroup group) {}

    /** Checks the inputs of a call and prepares it. */
    AllReduceRmsNormPlan(Call call) {
        OperandChecks checks = new OperandChecks(TYPE.toString());
        ProcessGroup group = call.group();
        NDArray partial = call.inputs()[0];
        TensorInfo[] infos = call.infos();
        type = checks.checkRows("partial", partial, infos[0], group.device());
        shape = new Shape(infos[0].sizes());
        hidden = shape.getLastDimension();
        rows = shape.size() / hidden;
        checks.checkLike("residual", call.inputs()[1], infos[1], shape, partial, type);
        checks.checkLike("weight", call.inputs()[2], infos[2], new Shape(hidden), partial, type);
        for (int i = 0; i < INPUTS; i++) {
            direct[i] = infos[i].isContiguous();
        }
        plans = GroupPlans.of(group);
        kernels = kernels(type, rows, hidden, group).orElse(null);
        buffers = group.p2pBuffers().orElse(null);
        reason = fallbackReason(kernels, type, rows, hidden, group);
        agreed = new Agreed(type, shape.getShape(), ReduceOp.SUM, 0);
    }

    private static Optional<RmsNormKernels> kernels(
            ScalarType type, long rows, long hidden, ProcessGroup group) {
        return rows > 0 && group.device().isGpu() && NativeLibrary.NVRTC.isAvailable()
                ? GroupPlans.of(group)
                        .compute()
                        .rmsNorm()
                        .filter(norm -> norm.isSupported(type, hidden))
                : Optional.empty();
    }

    static boolean isFused(ScalarType type, long rows, long hidden, ProcessGroup group) {
        OperandChecks checks = new OperandChecks("isFused");
        checks.checkNotNull("the type", type);
        checks.checkNotNull("the group", group);
        if (rows < 1 || hidden < 1) {
            throw checks.wrong("%d rows of %d elements, but both must be at least 1", rows, hidden);
        }
        RmsNormKernels kernels = kernels(type, rows, hidden, group).orElse(null);
        return fallbackReason(kernels, type, rows, hidden, group) == null;
    }

    /** Why it is more than one launch; the same on all ranks. */
    private static FallbackReason fallbackReason(
            RmsNormKernels kernels, ScalarType type, long rows, long hidden, ProcessGroup group) {
        if (FusedOps.isForced(Path.NCCL)) {
            return FallbackReason.FORCED;
        }
        Optional<P2pBuffers> buffers = group.p2pBuffers();
        if (buffers.flatMap(P2pBuffers::oneShotSlots).isEmpty()) {
            return FallbackReason.NO_P2P_BUFFERS;
        }
        boolean fits = kernels != null && kernels.exchanges(buffers.get(), type, rows, hidden);
        return fits ? null : FallbackReason.BUFFER_TOO_SMALL;
    }

    /** Enqueues a call whose results are new arrays in the manager of the partial. */
    NormedResidual run(Call call) {
        NDManager manager = call.inputs()[0].getManager();
        NDArray sum = Torch.empty(manager, shape, type);
        NDArray norm = null;
        boolean done = false;
        try {
            norm = Torch.empty(manager, shape, type);
            NormedResidual outputs = new NormedResidual(sum, norm);
            run(call, outputs, Torch.dataPointer(sum), Torch.dataPointer(norm));
            done = true;
            return outputs;
        } finally {
            if (!done) {
                sum.close();
                if (norm != null) {
                    norm.close();
                }
            }
        }
    }

    /** Checks where the results are to go, and enqueues a call that writes them there. */
    void runInto(Call call, NormedResidual outputs) {
        OperandChecks checks = new OperandChecks(TYPE.toString());
        checks.checkNotNull("outputs", outputs);
        NDArray partial = call.inputs()[0];
        long sum = checkOutput(checks, "new residual", outputs.residual(), partial);
        long norm = checkOutput(checks, "norm", outputs.norm(), partial);
        if (rows > 0 && sum == norm) {
            throw checks.wrong("the new residual and the norm go to the same array");
        }
        run(call, outputs, sum, norm);
    }

    private long checkOutput(OperandChecks checks, String role, NDArray output, NDArray partial) {
        TensorInfo info = checks.operand(role, output);
        checks.checkLike(role, output, info, shape, partial, type);
        if (!info.isContiguous()) {
            throw checks.wrong("%s must be contiguous", role);
        }
        return info.address();
    }

    /** Enqueues a call that writes its results to these addresses of the outputs. */
    private void run(Call call, NormedResidual outputs, long sum, long norm) {
        UsageCounter.count(reason);
        OperationScope scope = plans.scope();
        try {
            if (reason == null) {
                oneLaunch(call, scope, outputs, sum, norm);
            } else {
                plain(call, scope, outputs, sum, norm);
            }
        } finally {
            scope.close();
        }
    }

    private void oneLaunch(
            Call call, OperationScope scope, NormedResidual outputs, long sum, long norm) {
        NDArray partial = contiguous(call, scope, 0);
        NDArray residual = contiguous(call, scope, 1);
        NDArray weight = contiguous(call, scope, 2);
        RmsNormKernels.Rows of =
                of(
                        sum,
                        norm,
                        address(call, partial, 0),
                        address(call, residual, 1),
                        address(call, weight, 2));
        NDArray[] used = {outputs.residual(), outputs.norm(), partial, residual, weight};
        Work work =
                call.group()
                        .execute(
                                TYPE,
                                agreed,
                                operation ->
                                        kernels.exchange(
                                                operation, buffers, of, call.epsilon(), used));
        FusedOps.complete(call.group(), work);
    }

    private NDArray contiguous(Call call, OperationScope scope, int input) {
        NDArray array = call.inputs()[input];
        return direct[input] ? array : scope.copy(array, type);
    }

    private long address(Call call, NDArray contiguous, int input) {
        return direct[input] ? call.infos()[input].address() : Torch.dataPointer(contiguous);
    }

    private RmsNormKernels.Rows of(long sum, long norm, long partial, long residual, long weight) {
        return new RmsNormKernels.Rows(sum, norm, partial, residual, weight, type, rows, hidden);
    }

    private void plain(
            Call call, OperationScope scope, NormedResidual outputs, long sum, long norm) {
        NDArray total = outputs.residual();
        NDArray partial = call.inputs()[0];
        long address = call.infos()[0].address();
        boolean alone = call.group().worldSize() == 1;
        boolean inPlace = sum == address || alone && kernels != null && direct[0];
        if (!inPlace) {
            NoGradient.run(() -> Torch.copy(total, partial));
        }
        if (!alone) { // Otherwise it could not go into a graph, by NCCL.
            call.group().allReduce(total, ReduceOp.SUM, false);
        }
        if (rows == 0) {
            return;
        }
        if (kernels == null) {
            NoGradient.run(() -> byLibtorch(call, scope, outputs));
            return;
        }
        long added = inPlace ? address : sum;
        NDArray residual = contiguous(call, scope, 1);
        NDArray weight = contiguous(call, scope, 2);
        kernels.add(
                of(sum, norm, added, address(call, residual, 1), address(call, weight, 2)),
                call.epsilon(),
                total,
                outputs.norm(),
                partial,
                residual,
                weight);
    }

    /** In float32, rounded where the kernel rounds. */
    private void byLibtorch(Call call, OperationScope scope, NormedResidual outputs) {
        NDArray sum = outputs.residual();
        NDArray wide = scope.add(Torch.cast(call.inputs()[1], ScalarType.FLOAT32));
        wide.addi(scope.add(Torch.cast(sum, ScalarType.FLOAT32)));
        Torch.copy(sum, wide);
        Torch.copy(wide, sum);
        int[] last = {shape.dimension() - 1};
        NDArray mean = scope.add(scope.add(wide.square()).mean(last, true));
        wide.muli(scope.add(mean.addi(call.epsilon()).sqrt()).powi(-1));
        wide.muli(scope.add(Torch.cast(call.inputs()[2], ScalarType.FLOAT32)));
        Torch.copy(outputs.norm(), wide);
    }

    /** The same kernels in a graph. */
    @Override
    public boolean isOtherwiseRecorded() {
        return false;
    }

    /** Holds nothing of its own. */
    @Override
    public void close() {}
}
