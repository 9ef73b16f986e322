// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.ndarray.NDArray;
import java.util.EnumSet;
import java.util.Set;
import java.util.function.Consumer;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.LowContention;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.cost.Workload;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The plan of a matmul that is fused with a collective: the path that its calls take.
 *
 * @param <R> the result of the operator
 */
public final class MatmulPlan<R> implements FusedPlan {

    private final MatmulPath<R> path;

    /** An operator with its checked sizes. */
    public interface Operator<R> {

        /** Returns the kind of operator. */
        OpType opType();

        /** Returns the element type of the products. */
        ScalarType typeOfProduct();

        /** Returns the sizes for the cost model. */
        Workload workload();

        /** Returns whether a rank's part consists of rows, as the paths FUSED and GATHERED need. */
        boolean isByRows();

        /** Returns whether the fused kernel can compute the operator. */
        boolean isFusable(FusedMatmul kernels, P2pBuffers buffers, Workload work);

        /** Prepares the path FUSED, PIPELINED or GATHERED. */
        MatmulPath<R> prepare(ProcessGroup group, Operands operands, Choice choice);

        /** Prepares the path NCCL. */
        MatmulPath<R> prepareFallback(GroupPlans plans, Choice choice, FallbackReason reason);
    }

    /** Chooses the path of an operator, and prepares it. */
    public MatmulPlan(Operator<R> operator, ProcessGroup group, Operands operands) {
        GroupPlans plans = GroupPlans.of(group);
        Workload work = operator.workload();
        FallbackReason reason =
                Fallbacks.reason(operator.opType(), group, work.partBytes()).orElse(null);
        if (reason != null) {
            Choice choice = new Choice(Path.NCCL, reason.toString());
            path = operator.prepareFallback(plans, choice, reason);
            return;
        }
        Compute compute = plans.compute();
        PathChooser chooser = chooser(operator, group, compute);
        Choice eager = chooser.choose(false);
        Choice recorded = chooser.choose(true);
        MatmulPath<R> eagerPath = prepare(operator, group, operands, eager);
        path =
                recorded.path() == eager.path()
                        ? eagerPath
                        : new GraphAwarePath<>(
                                compute,
                                eagerPath,
                                (ofCall, used) -> prepare(operator, ofCall, used, recorded));
    }

    private static PathChooser chooser(Operator<?> operator, ProcessGroup group, Compute compute) {
        return new PathChooser(
                group, compute, operator, each -> possible(operator, group, compute, each));
    }

    /**
     * Measures the paths of an operator, unless its sizes are measured or there is no choice. All
     * ranks call it in the same order. The caller does not hold the lock of the group's plans.
     *
     * @param closeResult frees the result of a call
     */
    public static <R> void measure(
            Operator<R> operator, ProcessGroup group, Operands operands, Consumer<R> closeResult) {
        GroupPlans plans = GroupPlans.of(group);
        Workload work = operator.workload();
        if (Fallbacks.reason(operator.opType(), group, work.partBytes()).isPresent()
                || plans.compute().isRecorded()) {
            return;
        }
        Set<Path> candidates = chooser(operator, group, plans.compute()).candidates();
        if (candidates.size() > 1) {
            PathMeasurement.Key key = PathMeasurement.Key.of(operator);
            var kept = plans.measured(key).orElseGet(PathMeasurement.Measured::new);
            Set<Path> own = possible(operator, group, plans.compute(), work);
            if (PathMeasurement.measure(
                    kept, operator, group, operands, candidates, own, closeResult)) {
                plans.keep(key, kept);
            }
        }
    }

    static <R> MatmulPath<R> prepare(
            Operator<R> operator, ProcessGroup group, Operands operands, Choice choice) {
        return choice.path() == Path.NCCL
                ? operator.prepareFallback(
                        GroupPlans.of(group), choice, FallbackReason.NCCL_IS_FASTER)
                : operator.prepare(group, operands, choice);
    }

    /**
     * Returns the paths over P2P buffers that are possible. For matmul + reduce-scatter they are
     * the same on all ranks. For all-gather + matmul, ranks may differ in FUSED, which is safe
     * because FUSED pushes and signals like PIPELINED.
     */
    private static Set<Path> possible(
            Operator<?> operator, ProcessGroup group, Compute compute, Workload work) {
        Set<Path> possible = EnumSet.of(Path.PIPELINED);
        if (operator.isByRows()) {
            P2pBuffers buffers = group.p2pBuffers().orElseThrow();
            boolean fit = Slots.fit(buffers, work.partBytes());
            boolean gathered =
                    group.device().isGpu()
                            ? GatheredExchange.isPossible(
                                    compute, buffers, operator.typeOfProduct(), work.partBytes())
                            : fit && Pipeline.isWithoutGaps(work.partBytes());
            if (gathered) {
                possible.add(Path.GATHERED);
            }
            if (fit
                    && FusedMatmul.of(compute)
                            .filter(kernels -> operator.isFusable(kernels, buffers, work))
                            .isPresent()) {
                possible.add(Path.FUSED);
            }
        }
        return possible;
    }

    /** Prepares a call before which the caller waits for other ranks on the GPU. */
    void load(Operands operands) {
        path.load(operands);
    }

    /** Issues a call, with operands that match the plan's key. */
    MatmulPath.Issued<R> run(ProcessGroup group, Operands operands) {
        return path.run(group, operands);
    }

    /**
     * Runs a call with its plan.
     *
     * @param rowScales an array into which the scales of A's rows are gathered, and which is then
     *     closed; null if there are none
     */
    @SuppressWarnings("try") // stream is not named in the body
    public static <R> R run(
            ProcessGroup group,
            GroupPlans plans,
            MatmulPlan<R> plan,
            Operands operands,
            NDArray rowScales,
            Consumer<R> closeResult) {
        try (NDArray scales = rowScales;
                CurrentStreams.Scope stream = plans.hold()) {
            Operands all = scales == null ? operands : operands.withRowScales(scales);
            if (scales != null) {
                synchronized (plans) {
                    plan.load(all);
                }
                // Not under the lock, which the group's thread takes for the all-gather.
                GroupPlans.complete(
                        group, LowContention.allGather(group, scales, operands.scales().get(0)));
            }
            MatmulPath.Issued<R> issued;
            synchronized (plans) {
                issued = plan.run(group, all);
            }
            try {
                if (issued.work().isPresent()) {
                    GroupPlans.complete(group, issued.work().get());
                }
                return issued.result();
            } catch (Throwable e) {
                closeResult.accept(issued.result());
                throw e;
            }
        }
    }

    @Override
    public void close() {
        path.close();
    }
}
