// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.matmulallreduce;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.spi.OpType;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.path.Axes;
import org.djlx.fusedops.internal.path.Fallbacks;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.OperandChecks;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.fusedops.internal.path.Usage;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * The checked sizes of a matmul + all-reduce: one matmul, then the group's all-reduce of the
 * product. On GPUs, a product of many rows is computed in pieces of rows, and the all-reduce of a
 * piece overlaps the matmul of the next piece.
 *
 * <p>The number of pieces depends only on values that all ranks know: sizes, type and device type.
 * Several pieces count as {@link Path#PIPELINED}. One piece counts as {@link Path#NCCL}, even if
 * the group reduces with kernels of its own.
 */
public record MatmulAllReduce(ScalarType type, Shape product) {

    // On two H100s, smaller pieces cost more than they hide;
    // docs/design/experiments/fused-matmul.md.
    private static final long PIECE_ROWS = 2048;
    private static final int MAX_PIECES = 4;

    public static final OpType TYPE = new OpType("matmulAllReduce");

    public static MatmulAllReduce of(OperandChecks checks, ProcessGroup group, Operands operands) {
        NDArray a = operands.array(0);
        TensorInfo[] infos = operands.infos();
        ScalarType type = checks.checkA("A", a, infos[0], group.device());
        Shape left = a.getShape();
        int last = left.dimension() - 1;
        checks.checkB("B", operands.array(1), infos[1], a, type, left.get(last));
        return new MatmulAllReduce(type, Axes.with(left, last, infos[1].sizes()[1]));
    }

    /** Runs a call. Gradients are not recorded. */
    public NDArray run(ProcessGroup group, NDArray a, NDArray b) {
        boolean forced = Fallbacks.isForced(TYPE);
        int pieces = forced ? 1 : pieces(group);
        Usage.count(
                TYPE,
                pieces > 1 ? Path.PIPELINED : Path.NCCL,
                forced ? FallbackReason.FORCED : null);
        NDArray result = Torch.empty(a.getManager(), product, type);
        try {
            NoGradient.run(() -> compute(group, result, a, b, pieces));
            return result;
        } catch (Throwable e) {
            result.close();
            throw e;
        }
    }

    private void compute(ProcessGroup group, NDArray result, NDArray a, NDArray b, int pieces) {
        List<Work> works = new ArrayList<>(pieces);
        try (OperationScope scope = GroupPlans.of(group).scope()) {
            NDArray left = scope.add(Axes.matrix(scope.contiguous(scope.alias(a), type)));
            NDArray whole = scope.add(Axes.matrix(scope.alias(result)));
            long rows = Axes.rows(product);
            for (int i = 0; i < pieces; i++) {
                long begin = rows * i / pieces;
                long length = rows * (i + 1) / pieces - begin;
                NDArray piece = scope.add(Torch.narrow(whole, 0, begin, length));
                Torch.mmOut(piece, scope.add(Torch.narrow(left, 0, begin, length)), b);
                works.add(group.allReduce(piece, ReduceOp.SUM));
            }
            works.forEach(work -> GroupPlans.complete(group, work));
        }
    }

    private int pieces(ProcessGroup group) {
        if (!group.device().isGpu() || group.worldSize() == 1) {
            return 1;
        }
        return (int) Math.max(1, Math.min(MAX_PIECES, Axes.rows(product) / PIECE_ROWS));
    }
}
