/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.Optional;
import org.djlx.collectives.OpType;
import org.djlx.collectives.Operation.Agreed;
import org.djlx.collectives.P2pBuffers;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.RmsNormKernels;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.NoGradient;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.TensorInfo;
import org.djlx.nativeops.Torch;

/**
 * A call of {@link FusedOps#allReduceRmsNorm}: one launch of a kernel, or an all-reduce and a
 * kernel, or an all-reduce and libtorch, all to the same bits but for the order in which squares
 * are added.
 */
final class AllReduceRmsNorm {

    static final OpType TYPE = new OpType("allReduceRmsNorm");

    private final ProcessGroup group;
    private final GroupPlans plans;
    private final NDArray partial;
    private final NDArray residual;
    private final NDArray weight;
    private final float epsilon;
    private final ScalarType type;
    private final Shape shape;
    private final long hidden;
    private final long rows;
    private final RmsNormKernels kernels; // null if there are none

    AllReduceRmsNorm(
            NDArray partial, NDArray residual, NDArray weight, float epsilon, ProcessGroup group) {
        OperandChecks checks = new OperandChecks(TYPE.toString());
        checks.checkNotNull("the group", group);
        TensorInfo info = checks.operand("partial", partial);
        TensorInfo residualInfo = checks.operand("residual", residual);
        TensorInfo weightInfo = checks.operand("weight", weight);
        if (checks.recording() != null) {
            throw checks.wrong(
                    "it has no gradient, which an input requires: call"
                            + " DifferentiableCollectives.allReduce, and add and normalise behind");
        }
        type = checks.checkRows("partial", partial, info, group.device());
        shape = new Shape(info.sizes());
        hidden = shape.getLastDimension();
        rows = shape.size() / hidden;
        checks.checkLike("residual", residual, residualInfo, shape, partial, type);
        checks.checkLike("weight", weight, weightInfo, new Shape(hidden), partial, type);
        if (!(epsilon >= 0 && epsilon < Float.POSITIVE_INFINITY)) {
            throw checks.wrong("epsilon is %s, but must be a finite number from 0 on", epsilon);
        }
        this.group = group;
        this.partial = partial;
        this.residual = residual;
        this.weight = weight;
        this.epsilon = epsilon;
        plans = GroupPlans.of(group);
        kernels = kernels(type, rows, hidden, group).orElse(null);
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

    static boolean isOneLaunch(ScalarType type, long rows, long hidden, ProcessGroup group) {
        OperandChecks checks = new OperandChecks("isOneLaunch");
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
        if (FusedOps.isForced(Path.PLAIN)) {
            return FallbackReason.FORCED;
        }
        Optional<P2pBuffers> buffers = group.p2pBuffers();
        if (buffers.flatMap(P2pBuffers::oneShotSlots).isEmpty()) {
            return FallbackReason.NO_P2P_BUFFERS;
        }
        boolean fits = kernels != null && kernels.exchanges(buffers.get(), type, rows, hidden);
        return fits ? null : FallbackReason.BUFFER_TOO_SMALL;
    }

    NormedResidual run() {
        NDArray sum = Torch.empty(partial.getManager(), shape, type);
        NDArray norm = null;
        boolean done = false;
        try {
            norm = Torch.empty(partial.getManager(), shape, type);
            NormedResidual outputs = new NormedResidual(sum, norm);
            run(outputs);
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

    /** Checks where the results are to go, and writes them there. */
    void runInto(NormedResidual outputs) {
        OperandChecks checks = new OperandChecks(TYPE.toString());
        checks.checkNotNull("outputs", outputs);
        long sum = checkOutput(checks, "new residual", outputs.residual());
        long norm = checkOutput(checks, "norm", outputs.norm());
        if (rows > 0 && sum == norm) {
            throw checks.wrong("the new residual and the norm go to the same array");
        }
        run(outputs);
    }

    private long checkOutput(OperandChecks checks, String role, NDArray output) {
        checks.checkLike(role, output, checks.operand(role, output), shape, partial, type);
        if (!Torch.isContiguous(output)) {
            throw checks.wrong("%s must be contiguous", role);
        }
        return Torch.dataPointer(output);
    }

    private void run(NormedResidual outputs) {
        FallbackReason reason = fallbackReason(kernels, type, rows, hidden, group);
        UsageCounter.count(reason);
        OperationScope scope = plans.scope();
        try {
            if (reason == null) {
                oneLaunch(scope, outputs.residual(), outputs.norm());
            } else {
                plain(scope, outputs.residual(), outputs.norm());
            }
        } finally {
            scope.close();
        }
    }

    private void oneLaunch(OperationScope scope, NDArray sum, NDArray norm) {
        NDArray[] used = {
            sum,
            norm,
            scope.contiguous(partial, type),
            scope.contiguous(residual, type),
            scope.contiguous(weight, type)
        };
        RmsNormKernels.Rows of = of(used);
        P2pBuffers buffers = group.p2pBuffers().orElseThrow();
        Agreed agreed = new Agreed(type, shape.getShape(), ReduceOp.SUM, 0);
        Work work;
        synchronized (plans) {
            work =
                    group.execute(
                            TYPE,
                            agreed,
                            operation -> kernels.exchange(operation, buffers, of, epsilon, used));
        }
        FusedOps.complete(group, work);
    }

    private RmsNormKernels.Rows of(NDArray... used) {
        return new RmsNormKernels.Rows(
                Torch.dataPointer(used[0]),
                Torch.dataPointer(used[1]),
                Torch.dataPointer(used[2]),
                Torch.dataPointer(used[3]),
                Torch.dataPointer(used[4]),
                type,
                rows,
                hidden);
    }

    private void plain(OperationScope scope, NDArray sum, NDArray norm) {
        if (Torch.dataPointer(sum) != Torch.dataPointer(partial)) {
            NoGradient.run(() -> Torch.copy(sum, partial));
        }
        if (group.worldSize() > 1) { // Otherwise it could not go into a graph, by NCCL.
            FusedOps.complete(group, group.allReduce(sum, ReduceOp.SUM));
        }
        if (rows == 0) {
            return;
        }
        if (kernels == null) {
            NoGradient.run(() -> byLibtorch(scope, sum, norm));
            return;
        }
        NDArray[] used = {
            sum, norm, sum, scope.contiguous(residual, type), scope.contiguous(weight, type)
        };
        synchronized (plans) {
            kernels.add(of(used), epsilon, used);
        }
    }

    /** In float32, rounded where the kernel rounds. */
    private void byLibtorch(OperationScope scope, NDArray sum, NDArray norm) {
        NDArray wide = scope.add(Torch.cast(residual, ScalarType.FLOAT32));
        wide.addi(scope.add(Torch.cast(sum, ScalarType.FLOAT32)));
        Torch.copy(sum, wide);
        Torch.copy(wide, sum);
        int[] last = {shape.dimension() - 1};
        NDArray mean = scope.add(scope.add(wide.square()).mean(last, true));
        wide.muli(scope.add(mean.addi(epsilon).sqrt()).powi(-1));
        wide.muli(scope.add(Torch.cast(weight, ScalarType.FLOAT32)));
        Torch.copy(norm, wide);
    }
}
