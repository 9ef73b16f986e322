// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops;

import java.util.EnumSet;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.cost.Workload;
import org.djlx.fusedops.internal.Compute;
import org.djlx.fusedops.internal.FusedMatmul;
import org.djlx.fusedops.internal.Pipeline;
import org.djlx.fusedops.internal.Slots;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The plan of a matmul that is fused with a collective: the path that its calls take.
 *
 * @param <R> the result of the operator
 */
final class MatmulPlan<R> implements FusedPlan {

    private final MatmulPath<R> path;

    /** An operator with its checked sizes. */
    interface Operator<R> {

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
    MatmulPlan(Operator<R> operator, ProcessGroup group, Operands operands) {
        GroupPlans plans = GroupPlans.of(group);
        Workload work = operator.workload();
        FallbackReason reason =
                fallbackReason(operator.opType(), group, work.partBytes()).orElse(null);
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
    static <R> void measure(
            Operator<R> operator, ProcessGroup group, Operands operands, Consumer<R> closeResult) {
        GroupPlans plans = GroupPlans.of(group);
        Workload work = operator.workload();
        if (fallbackReason(operator.opType(), group, work.partBytes()).isPresent()
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

    /**
     * Returns why an operation over P2P buffers falls back, the same on all ranks; empty if it does
     * not fall back.
     *
     * @param partBytes the number of bytes that a rank sends to a peer; 0 if the path needs no
     *     slots
     */
    static Optional<FallbackReason> fallbackReason(
            OpType type, ProcessGroup group, long partBytes) {
        if (FusedOps.isFallbackForced(type)) {
            return Optional.of(FallbackReason.FORCED);
        }
        if (!group.isP2pAvailable()) {
            return Optional.of(FallbackReason.NO_P2P_BUFFERS);
        }
        return Slots.isPossible(group.p2pBuffers().orElseThrow(), partBytes)
                ? Optional.empty()
                : Optional.of(FallbackReason.BUFFER_TOO_SMALL);
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
                            ? compute.canExchange(
                                    buffers, operator.typeOfProduct(), work.partBytes())
                            : fit && Pipeline.isWithoutGaps(work.partBytes());
            if (gathered) {
                possible.add(Path.GATHERED);
            }
            if (fit
                    && compute.fusedMatmul()
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

    @Override
    public void close() {
        path.close();
    }
}
