// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import java.util.EnumSet;
import java.util.Optional;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.LowContention;
import org.djlx.fusedops.cost.Choice;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.cost.Workload;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** The plan of a matmul that is fused with a collective: the path that its calls take. */
public final class MatmulPlan<R> implements FusedPlan {

    private final MatmulPath<R> path;
    private final boolean gathersA;

    public interface Operator<R> {

        OpType opType();

        /** Returns what the ranks compare, on all paths over P2P buffers. */
        Agreed agreed();

        ScalarType type();

        default ScalarType typeOfProduct() {
            return Workload.typeOfProduct(type());
        }

        /** Returns the sizes for the cost model. */
        Workload workload();

        /** Returns whether a rank's part consists of rows, as the paths FUSED and GATHERED need. */
        boolean isByRows();

        /** Returns whether the path FUSED can compute the operator, with slots that fit. */
        boolean isFusable(Compute compute, P2pBuffers buffers, Workload work);

        boolean gathersA();

        /** Returns whether the paths can be measured: each computes a result. */
        default boolean isMeasurable() {
            return true;
        }

        /** Prepares the path FUSED, PIPELINED or GATHERED. */
        MatmulPath<R> prepare(ProcessGroup group, Operands operands, Choice choice);

        MatmulPath<R> prepareFallback(GroupPlans plans, Choice choice, FallbackReason reason);
    }

    private MatmulPlan(
            Operator<R> operator, Workload agreed, ProcessGroup group, Operands operands) {
        gathersA = operator.gathersA();
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
        PathChooser chooser = chooser(operator, agreed, group, compute);
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

    private static PathChooser chooser(
            Operator<?> operator, Workload agreed, ProcessGroup group, Compute compute) {
        return new PathChooser(
                group, compute, operator, agreed, each -> possible(operator, group, compute, each));
    }

    /**
     * Returns the sizes with which all ranks predict, so that all choose the same path. The size
     * that may differ between ranks ({@link Workload#own}) is the largest of all ranks: they
     * exchange it in the first call with a {@link PathMeasurement.Key}. If this call is recorded
     * into a graph, ranks cannot exchange; this call and later ones then predict with the key's
     * usual size. The caller must not hold the lock of the group's plans.
     */
    private static Workload agreed(Operator<?> operator, ProcessGroup group) {
        GroupPlans plans = GroupPlans.of(group);
        Workload work = operator.workload();
        if (work.ranks() == 1
                || !group.device().isGpu()
                || Fallbacks.reason(operator.opType(), group, work.partBytes()).isPresent()) {
            return work; // No choice depends on a prediction.
        }
        PathMeasurement.Key key = PathMeasurement.Key.of(operator);
        Optional<Workload> known = plans.agreed(key);
        if (known.isPresent()) {
            return known.get();
        }
        Workload agreed = key.usual();
        if (!plans.compute().isRecorded() && plans.agreesOnMore()) {
            float[] own = {work.own()};
            agreed = work.withOwn((long) PathMeasurement.greatest(operator, group, own)[0]);
        }
        plans.agree(key, agreed);
        return agreed;
    }

    /**
     * Measures the paths of an operator, unless its sizes are measured or there is no choice. All
     * ranks call it in the same order. The caller does not hold the lock of the group's plans.
     */
    private static <R> void measure(
            Operator<R> operator, ProcessGroup group, Operands operands, Consumer<R> closeResult) {
        GroupPlans plans = GroupPlans.of(group);
        Workload work = operator.workload();
        if (!operator.isMeasurable()
                || Fallbacks.reason(operator.opType(), group, work.partBytes()).isPresent()
                || plans.compute().isRecorded()) {
            return;
        }
        Workload agreed = agreed(operator, group);
        Set<Path> candidates = chooser(operator, agreed, group, plans.compute()).candidates();
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
            P2pBuffers buffers = group.requireP2pBuffers();
            boolean fit = Slots.fit(buffers, work.partBytes());
            boolean gathered =
                    group.device().isGpu()
                            ? GatheredExchange.isPossible(
                                    compute, buffers, operator.typeOfProduct(), work.partBytes())
                            : fit && Pipeline.isWithoutGaps(work.partBytes());
            if (gathered) {
                possible.add(Path.GATHERED);
            }
            if (fit && operator.isFusable(compute, buffers, work)) {
                possible.add(Path.FUSED);
            }
        }
        return possible;
    }

    /**
     * Runs a call. The first call with a key makes its plan.
     *
     * @param operator checks the sizes of the call; used to make and to measure a plan
     */
    public static <R> R run(
            PlanKey key,
            ProcessGroup group,
            Operands operands,
            Supplier<? extends Operator<R>> operator,
            Consumer<R> closeResult) {
        GroupPlans plans = GroupPlans.of(group);
        try {
            if (plans.isMeasuring() && operands.scales().isEmpty()) {
                measure(operator.get(), group, operands, closeResult);
            }
            MatmulPlan<R> plan = find(plans, key);
            if (plan == null) {
                Operator<R> made = operator.get();
                Workload agreed = agreed(made, group);
                synchronized (plans) {
                    plan = plans.find(key);
                    if (plan == null) {
                        plan = plans.keep(key, new MatmulPlan<>(made, agreed, group, operands));
                    }
                }
            }
            return plan.run(plans, group, operands, closeResult);
        } catch (EngineException | VirtualMachineError e) {
            GroupPlans.failed(group, e);
            throw e;
        }
    }

    private static <R> MatmulPlan<R> find(GroupPlans plans, PlanKey key) {
        synchronized (plans) {
            return plans.find(key);
        }
    }

    @SuppressWarnings("try") // stream is not named in the body
    private R run(
            GroupPlans plans, ProcessGroup group, Operands operands, Consumer<R> closeResult) {
        try (NDArray scales = gathersA ? rowScales(operands, group) : null;
                CurrentStreams.Scope stream = plans.hold()) {
            Operands all = scales == null ? operands : operands.withRowScales(scales);
            if (scales != null) {
                synchronized (plans) {
                    path.load(all); // before the current stream waits for other ranks
                }
                // Not under the lock, which the group's thread takes for the all-gather.
                GroupPlans.complete(
                        group, LowContention.allGather(group, scales, operands.scales().get(0)));
            }
            MatmulPath.Issued<R> issued;
            synchronized (plans) {
                issued = path.run(group, all);
            }
            try {
                issued.work().ifPresent(work -> GroupPlans.complete(group, work));
                return issued.result();
            } catch (Throwable e) {
                closeResult.accept(issued.result());
                throw e;
            }
        }
    }

    /** Returns an array for the scales of all ranks' rows of A; null if there is no need. */
    private static NDArray rowScales(Operands operands, ProcessGroup group) {
        if (!operands.isScaledByRow() || group.worldSize() == 1) {
            return null;
        }
        NDArray shard = operands.scales().get(0);
        return Torch.empty(
                shard.getManager(),
                Axes.stacked(group.worldSize(), shard.getShape()),
                ScalarType.FLOAT32);
    }

    @Override
    public void close() {
        path.close();
    }
}
