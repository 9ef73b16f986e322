/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;

/**
 * Tensor-parallel matmuls fused with the collective before or after them; the counterparts of
 * PyTorch's {@code torch.ops.symm_mem.fused_all_gather_matmul} and {@code
 * fused_matmul_reduce_scatter}. And {@link #allReduceRmsNorm}, of which the following does not
 * speak.
 *
 * <p>An MLP, with tokens divided among the ranks, W1 split by columns and W2 by rows:
 *
 * <pre>{@code
 * GatheredMatmul up = FusedOps.allGatherMatmul(x, List.of(w1), 0, group);
 * NDArray hidden = Activation.gelu(up.outputs().get(0));
 * NDArray y = FusedOps.matmulReduceScatter(hidden, w2, ReduceOp.SUM, 0, group);
 * }</pre>
 *
 * <p>If the group has P2P buffers that are large enough, the communication goes on while the matmul
 * runs (the pipelined path). Otherwise the plain path is taken: the collective, then the matmul, or
 * the other way round. The result is the same up to the rounding of the matmul, whose order of
 * summation is the library's; on a GPU the plain path multiplies by libtorch, which may round sums
 * of 16-bit types several times. All ranks take the same path: it depends only on what all know. A
 * {@link UsageCounter} tells which it was, and why.
 *
 * <p>On GPUs a {@linkplain org.djlx.fusedops.cost.CostModel model} that is fitted to measurements
 * chooses what takes the least time: a schedule of matmuls and copies, copies and one matmul, the
 * plain path, or, on the Hopper architecture in float16 and bfloat16 and if sizes are whole
 * multiples of 16 bytes, a single launch of a kernel that pushes, waits and multiplies. Calls that
 * are recorded into a graph may take another path than those that are not, and never the plain one
 * where there is another. One launch takes all multiprocessors: operators of groups that share GPUs
 * are to be called in the same order on all ranks.
 *
 * <p>Arrays are PyTorch arrays of float32, float64, float16 or bfloat16, on the device of the
 * group's backend; none need be contiguous. All ranks of the group call the same operator, with A
 * of the same shape where they gather and with a product of the same shape where they scatter; an
 * operator is one operation of the group and takes its turn among them. It returns when the result
 * is there; on a GPU, when it is enqueued on the current stream. Results belong to the manager of
 * A.
 *
 * <p>Within a {@link GradientScope} gradients flow through the operators, whose gradients are each
 * other: that of A comes from the other operator, that of B from a matmul with the gathered array.
 * Where B is a {@linkplain GradientScope#recordConversion conversion} of master weights, their
 * gradients are computed instead, on a GPU for float32 without rounding to 16 bits. Results are
 * then leaves that require a gradient. Outside of a scope, with gradients on, an input that
 * requires one is refused with an {@link IllegalArgumentException}.
 *
 * <p>The first call for certain shapes, strides, type and dimension makes a plan, which later ones
 * find again; a group keeps those used last. Operators may be called by any thread, one at a time
 * on a group.
 *
 * <p>Calls that do not fit together, and ranks that are missing, end like those of any operation of
 * a {@link ProcessGroup}. On a GPU they may do so after the operator has returned: the group is
 * then broken, and the result holds arbitrary values, NaN among them, until the next call on the
 * group, or {@code await} of a work of it, throws the error.
 */
public final class FusedOps {

    // The operators in a PlanKey.
    private static final int GATHER = 1;
    private static final int SCATTER = 2;
    private static final int NORM = 3;
    private static final int GATED_GATHER = 4;

    private static final Path[] PATHS = Path.values();
    private static final AtomicIntegerArray FORCED = new AtomicIntegerArray(PATHS.length);

    private FusedOps() {}

    /**
     * Gathers A along a dimension and multiplies it with one or several matrices, like {@code
     * allGather(A) @ B}. Returns the gathered A too.
     *
     * @param aShard this rank's part of A, of shape (…, K) with 2 or more dimensions; the same
     *     shape on all ranks
     * @param bs matrices of shape (K, N), N being each one's own, also on each rank; K is that of
     *     the gathered A
     * @param gatherDim the dimension along which the parts are concatenated, in rank order;
     *     negative ones count from the back
     * @param group the group
     * @return A, and its product with each matrix, of shape (…, N)
     * @throws IllegalArgumentException if an argument is wrong; before anything is sent
     */
    public static GatheredMatmul allGatherMatmul(
            NDArray aShard, List<NDArray> bs, int gatherDim, ProcessGroup group) {
        return allGatherMatmul(aShard, bs, gatherDim, group, true);
    }

    /**
     * Gathers A along a dimension and multiplies it with one or several matrices.
     *
     * @param aShard this rank's part of A
     * @param bs the matrices
     * @param gatherDim the dimension along which the parts are concatenated
     * @param group the group
     * @param returnGathered whether the result holds the gathered A; without, a copy is saved
     * @return the products, and A if wanted
     * @throws IllegalArgumentException if an argument is wrong; before anything is sent
     * @see #allGatherMatmul(NDArray, List, int, ProcessGroup)
     */
    public static GatheredMatmul allGatherMatmul(
            NDArray aShard,
            List<NDArray> bs,
            int gatherDim,
            ProcessGroup group,
            boolean returnGathered) {
        OperandChecks checks = new OperandChecks(AllGatherMatmulPlan.TYPE.toString());
        checks.checkNotNull("the group", group);
        if (bs == null || bs.isEmpty()) {
            throw checks.wrong("there is no B to multiply with");
        }
        TensorInfo[] infos = new TensorInfo[1 + bs.size()];
        List<NDArray> arrays = new ArrayList<>(infos.length);
        infos[0] = checks.operand("aShard", aShard);
        arrays.add(aShard);
        for (int i = 0; i < bs.size(); i++) {
            infos[1 + i] = checks.operand(bs.size() == 1 ? "B" : "B number " + i, bs.get(i));
            arrays.add(bs.get(i));
        }
        if (checks.recording() != null) {
            return FusedGradients.allGatherMatmul(
                    checks.recording(), aShard, bs, gatherDim, group, returnGathered);
        }
        GroupPlans plans = GroupPlans.of(group);
        AllGatherMatmulPlan.Issued issued;
        synchronized (plans) {
            AllGatherMatmulPlan plan =
                    plan(plans, group, arrays, infos, gatherDim, returnGathered, false, false);
            if (plans.isOther(plan)) {
                plan = plan(plans, group, arrays, infos, gatherDim, returnGathered, false, true);
            }
            issued = plan.run(group, aShard, bs, infos);
        }
        complete(group, issued.work(), () -> issued.result().close());
        return issued.result();
    }

    /**
     * Gathers A along its first dimension, multiplies it with a matrix of gates and one of values,
     * and the values by the activation of their gates, {@code silu(A @ gates) · (A @ values)}: the
     * beginning of a Llama's MLP. Only if that is one launch with the gathering; then the products
     * are not rounded before they are activated.
     *
     * <p>Ranks may differ in that: {@link #allGatherMatmul(NDArray, List, int, ProcessGroup,
     * boolean)} of one goes together with this method of another. It has no gradient.
     *
     * @param aShard this rank's part of A, of shape (…, K) with 2 or more dimensions; the same
     *     shape on all ranks
     * @param gatesAndValues of shape (K, 2 N): the gates and, behind them, the values; N is each
     *     rank's own
     * @param group the group
     * @return of shape (…, N); empty if it is not one launch, and nothing has been done
     * @throws IllegalArgumentException if an argument is wrong; before anything is sent
     */
    public static Optional<NDArray> allGatherGated(
            NDArray aShard, NDArray gatesAndValues, ProcessGroup group) {
        OperandChecks checks = new OperandChecks(AllGatherMatmulPlan.TYPE.toString());
        checks.checkNotNull("the group", group);
        TensorInfo[] infos = {
            checks.operand("aShard", aShard), checks.operand("B", gatesAndValues)
        };
        if (checks.recording() != null) {
            return Optional.empty();
        }
        List<NDArray> arrays = List.of(aShard, gatesAndValues);
        GroupPlans plans = GroupPlans.of(group);
        AllGatherMatmulPlan.Issued issued;
        synchronized (plans) {
            AllGatherMatmulPlan plan = plan(plans, group, arrays, infos, 0, false, true, false);
            if (plans.isOther(plan)) {
                plan = plan(plans, group, arrays, infos, 0, false, true, true);
            }
            if (!plan.isGated()) {
                return Optional.empty();
            }
            issued = plan.run(group, aShard, arrays.subList(1, 2), infos);
        }
        complete(group, issued.work(), () -> issued.result().close());
        return Optional.of(issued.result().outputs().get(0));
    }

    /** Finds or makes the plan of an all-gather + matmul; the first array is A. */
    private static AllGatherMatmulPlan plan(
            GroupPlans plans,
            ProcessGroup group,
            List<NDArray> arrays,
            TensorInfo[] infos,
            int gatherDim,
            boolean returnGathered,
            boolean gated,
            boolean recorded) {
        int option = option(recorded) + (returnGathered ? 1 : 0);
        PlanKey key = new PlanKey(gated ? GATED_GATHER : GATHER, gatherDim, option, arrays, infos);
        AllGatherMatmulPlan plan = plans.find(key, AllGatherMatmulPlan.class);
        return plan != null
                ? plan
                : plans.keep(
                        key,
                        new AllGatherMatmulPlan(
                                group,
                                arrays.get(0),
                                arrays.subList(1, arrays.size()),
                                infos,
                                gatherDim,
                                returnGathered,
                                gated,
                                recorded));
    }

    /**
     * Multiplies A and B, reduces the products over all ranks, and scatters the result along a
     * dimension, like {@code reduceScatter(A @ B)}. Each rank contributes its part of the inner
     * dimension.
     *
     * @param a of shape (…, K) with 2 or more dimensions; the same shape on all ranks, except for K
     * @param b a matrix of shape (K, N); N is the same on all ranks, K may differ between them
     * @param op {@link ReduceOp#SUM} or {@link ReduceOp#AVG}; the ranks' products, in the arrays'
     *     element type, are reduced in rank order, 16-bit types in float32 and rounded once; on the
     *     plain path of GPUs by NCCL, in its own order and roundings
     * @param scatterDim the dimension of the product (…, N) along which the result is divided, in
     *     rank order; its size is divisible by the world size; negative ones count from the back
     * @param group the group
     * @return this rank's part of the result
     * @throws IllegalArgumentException if an argument is wrong; before anything is sent
     */
    public static NDArray matmulReduceScatter(
            NDArray a, NDArray b, ReduceOp op, int scatterDim, ProcessGroup group) {
        OperandChecks checks = new OperandChecks(MatmulReduceScatterPlan.TYPE.toString());
        checks.checkNotNull("the group", group);
        TensorInfo[] infos = {checks.operand("A", a), checks.operand("B", b)};
        checks.checkSum(op);
        if (checks.recording() != null) {
            return FusedGradients.matmulReduceScatter(
                    checks.recording(), a, b, op, scatterDim, group);
        }
        List<NDArray> arrays = List.of(a, b);
        GroupPlans plans = GroupPlans.of(group);
        MatmulReduceScatterPlan.Issued issued;
        synchronized (plans) {
            MatmulReduceScatterPlan plan = plan(plans, group, arrays, infos, op, scatterDim, false);
            if (plans.isOther(plan)) {
                plan = plan(plans, group, arrays, infos, op, scatterDim, true);
            }
            issued = plan.run(group, a, b, infos);
        }
        complete(group, issued.work(), () -> issued.result().close());
        return issued.result();
    }

    /** Finds or makes the plan of a matmul + reduce-scatter of A and B. */
    private static MatmulReduceScatterPlan plan(
            GroupPlans plans,
            ProcessGroup group,
            List<NDArray> arrays,
            TensorInfo[] infos,
            ReduceOp op,
            int scatterDim,
            boolean recorded) {
        int option = option(recorded) + (op == ReduceOp.AVG ? 1 : 0);
        PlanKey key = new PlanKey(SCATTER, scatterDim, option, arrays, infos);
        MatmulReduceScatterPlan plan = plans.find(key, MatmulReduceScatterPlan.class);
        return plan != null
                ? plan
                : plans.keep(
                        key,
                        new MatmulReduceScatterPlan(
                                group,
                                arrays.get(0),
                                arrays.get(1),
                                infos,
                                op,
                                scatterDim,
                                recorded));
    }

    /**
     * Adds the sum of all ranks' partials to a residual and normalises its rows: what stands
     * between the layers of a model that is divided among ranks, twice in each. TensorRT-LLM and
     * FlashInfer fuse the same three.
     *
     * <pre>
     *   sum      = partials of all ranks, as allReduce gives them: in rank order, rounded once
     *   residual = residual + sum
     *   norm     = residual / sqrt(mean(residual²) + epsilon) * weight
     * </pre>
     *
     * <p>Each line is computed in float32 and rounded once to the element type. So the new residual
     * has the same bits on the CPU, on GPUs and as an all-reduce and an addition would give them;
     * the norm, which is that of the rounded residual, the same on GPUs of one architecture, and
     * elsewhere the same up to the order in which squares are added. Ranks get the same bits if
     * they have the same residual, weight and epsilon, which is not checked.
     *
     * <p>On GPUs that write into each other's memory it is one launch of a kernel as long as it is
     * small: up to 2 MiB, but no more than a one-shot all-reduce (see {@link
     * org.djlx.collectives.CudaP2pOptions#oneShotBytes(int)}), with rows of up to 47 KiB. Otherwise
     * it is the group's all-reduce and one launch; if NCCL reduces, in its order and roundings.
     * Both can be recorded into a CUDA graph. On the CPU, and for longer rows, libtorch is called
     * behind the all-reduce.
     *
     * <p>It has no gradient: an input that requires one, with gradients on, is refused.
     *
     * @param partial this rank's part of the sum, of shape (…, hidden), in float32, float16 or
     *     bfloat16; the same shape and type on all ranks
     * @param residual of the same shape and type
     * @param weight of shape (hidden) and the same type
     * @param epsilon what is added to the mean of squares, at least 0
     * @param group the group
     * @return new arrays in the manager of the partial; no input is changed
     * @throws IllegalArgumentException if an argument is wrong; before anything is sent
     */
    public static NormedResidual allReduceRmsNorm(
            NDArray partial, NDArray residual, NDArray weight, float epsilon, ProcessGroup group) {
        AllReduceRmsNormPlan.Call call = checked(partial, residual, weight, epsilon, group);
        GroupPlans plans = GroupPlans.of(group);
        synchronized (plans) {
            return plan(plans, call).run(call);
        }
    }

    /**
     * As {@link #allReduceRmsNorm(NDArray, NDArray, NDArray, float, ProcessGroup)}, into given
     * arrays: for a CUDA graph of many layers that takes turns with a few arrays.
     *
     * @param outputs where the results go: contiguous arrays of the partial's shape and type. The
     *     new residual may be the array of the partial; otherwise neither may share memory with an
     *     input, or with the other
     * @param partial this rank's part of the sum
     * @param residual of the same shape and type
     * @param weight of shape (hidden) and the same type
     * @param epsilon what is added to the mean of squares, at least 0
     * @param group the group
     * @throws IllegalArgumentException if an argument is wrong; before anything is sent
     */
    public static void allReduceRmsNorm(
            NormedResidual outputs,
            NDArray partial,
            NDArray residual,
            NDArray weight,
            float epsilon,
            ProcessGroup group) {
        AllReduceRmsNormPlan.Call call = checked(partial, residual, weight, epsilon, group);
        GroupPlans plans = GroupPlans.of(group);
        synchronized (plans) {
            plan(plans, call).runInto(call, outputs);
        }
    }

    /** Checks what of an all-reduce + RMSNorm its plan does not. */
    private static AllReduceRmsNormPlan.Call checked(
            NDArray partial, NDArray residual, NDArray weight, float epsilon, ProcessGroup group) {
        OperandChecks checks = new OperandChecks(AllReduceRmsNormPlan.TYPE.toString());
        checks.checkNotNull("the group", group);
        TensorInfo[] infos = {
            checks.operand("partial", partial),
            checks.operand("residual", residual),
            checks.operand("weight", weight)
        };
        if (checks.recording() != null) {
            throw checks.wrong(
                    "it has no gradient, which an input requires: call"
                            + " DifferentiableCollectives.allReduce, and add and normalise behind");
        }
        if (!(epsilon >= 0 && epsilon < Float.POSITIVE_INFINITY)) {
            throw checks.wrong("epsilon is %s, but must be a finite number from 0 on", epsilon);
        }
        NDArray[] inputs = {partial, residual, weight};
        return new AllReduceRmsNormPlan.Call(inputs, infos, epsilon, group);
    }

    /** Finds or makes the plan of an all-reduce + RMSNorm. */
    private static AllReduceRmsNormPlan plan(GroupPlans plans, AllReduceRmsNormPlan.Call call) {
        List<NDArray> arrays = List.of(call.inputs());
        PlanKey key = new PlanKey(NORM, 0, option(false), arrays, call.infos());
        AllReduceRmsNormPlan plan = plans.find(key, AllReduceRmsNormPlan.class);
        return plan != null ? plan : plans.keep(key, new AllReduceRmsNormPlan(call));
    }

    /**
     * Tells whether {@link #allReduceRmsNorm(NDArray, NDArray, NDArray, float, ProcessGroup)} is
     * one launch of a kernel, which no other way of it is.
     *
     * @param type the element type
     * @param rows how many rows, at least 1
     * @param hidden their length
     * @param group the group
     * @return whether it is; the same on all ranks
     * @throws IllegalArgumentException if an argument is null, or there are no rows or elements
     */
    public static boolean isFused(ScalarType type, long rows, long hidden, ProcessGroup group) {
        return AllReduceRmsNormPlan.isFused(type, rows, hidden, group);
    }

    /**
     * Counts which paths calls in this JVM take from now on.
     *
     * @return the counter, to be closed
     */
    public static UsageCounter countUsage() {
        return new UsageCounter();
    }

    /**
     * Makes all calls in this JVM take the plain path until the scope is closed; for tests and for
     * finding faults. It must be in force on all ranks of a group or on none.
     *
     * @return the scope, to be closed once
     */
    public static Scope forceFallback() {
        return force(Path.NCCL);
    }

    /** As {@link #forceFallback()}, for a path; for tests. */
    static Scope force(Path path) {
        FORCED.incrementAndGet(path.ordinal());
        return () -> FORCED.decrementAndGet(path.ordinal());
    }

    static boolean isForced(Path path) {
        return FORCED.get(path.ordinal()) > 0;
    }

    /** An even number for the paths that are forced, and for being recorded into a graph. */
    private static int option(boolean recorded) {
        int bits = recorded ? 2 : 0;
        for (Path path : PATHS) {
            bits |= isForced(path) ? 4 << path.ordinal() : 0;
        }
        return bits;
    }

    /** Lets the caller go on when the result is there: on a GPU its stream, otherwise itself. */
    static void complete(ProcessGroup group, Work work) {
        if (group.device().isGpu()) {
            work.blockCurrentStream();
        } else {
            work.await();
        }
    }

    /** As {@link #complete(ProcessGroup, Work)}; if the operation failed, nobody gets a result. */
    private static void complete(ProcessGroup group, Work work, Runnable closeResult) {
        if (work == null) {
            return; // It has been waited for.
        }
        boolean done = false;
        try {
            complete(group, work);
            done = true;
        } finally {
            if (!done) {
                closeResult.run();
            }
        }
    }

    /** Something that is in force until it is closed. */
    @FunctionalInterface
    public interface Scope extends AutoCloseable {

        @Override
        void close();
    }
}
