// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.allreducermsnorm;

import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.Optional;
import java.util.function.Function;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.NormedResidual;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.path.Fallbacks;
import org.djlx.fusedops.internal.path.FusedPlan;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.OperandChecks;
import org.djlx.fusedops.internal.path.Operands;
import org.djlx.fusedops.internal.path.OperationScope;
import org.djlx.fusedops.internal.path.PlanKey;
import org.djlx.fusedops.internal.path.Usage;
import org.djlx.fusedops.kernel.RmsNormKernels;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.BlockMath;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.TensorTemplate;
import org.djlx.nativeops.torch.Torch;

/**
 * The plan of {@link FusedOps#allReduceRmsNorm}. All of its paths give the same residual, bit by
 * bit. Both kernels give the same norm, too. libtorch's norm may differ in the last bits: libtorch
 * adds squares in another order, and divides by the root, while the kernels multiply by its
 * reciprocal.
 */
public final class AllReduceRmsNormPlan implements FusedPlan {

    public static final OpType TYPE = new OpType("allReduceRmsNorm");

    private static final String ALGORITHM = Path.FUSED.toString();
    private static final int E4M3_PACK = 8; // elements that a thread stores at a time in e4m3

    private final GroupPlans plans;
    private final ScalarType type;
    private final Shape shape;
    private final long hidden;
    private final long rows;
    private final boolean[] inPlace; // for each input, whether it is contiguous
    private final NormPath path;
    private final boolean roundsToE4m3;
    private final TensorTemplate output; // of each result

    /** A call, checked apart from sizes and types, which its plan checks. */
    public record Call(OperandChecks checks, Operands inputs, float epsilon, ProcessGroup group) {

        private NDArray partial() {
            return inputs.array(0);
        }

        /** Runs the call; its results are new arrays in the manager of the partial. */
        public NormedResidual run() {
            return run(plan -> plan.runNew(this));
        }

        /** Runs the call, and writes the results to given arrays. */
        public void runInto(NormedResidual outputs) {
            run(plan -> plan.runInto(this, outputs));
        }

        /** Runs the call, and writes the results, a norm in e4m3 and its scales to given arrays. */
        public void runInto(NormedResidual outputs, NDArray scales) {
            run(plan -> plan.runInto(this, outputs, scales));
        }

        @SuppressWarnings("try") // the stream is not named in the body
        private NormedResidual run(Function<AllReduceRmsNormPlan, NormedResidual> body) {
            GroupPlans plans = GroupPlans.of(group);
            try (CurrentStreams.Scope stream = plans.hold()) {
                synchronized (plans) {
                    return body.apply(plan(plans, this));
                }
            } catch (EngineException | VirtualMachineError e) {
                GroupPlans.failed(group, e);
                throw e;
            }
        }
    }

    /**
     * The destinations of a call's results; new residual, norm and scales by address.
     *
     * @param scales of a norm in e4m3; 0 if the norm has the type of the inputs
     * @param written all arrays that the call writes
     */
    private record Outputs(
            NormedResidual arrays, long residual, long norm, long scales, NDArray... written) {

        /** Returns all arrays of a call, which a recorded graph keeps alive. */
        NDArray[] and(NDArray... inputs) {
            NDArray[] all = Arrays.copyOf(written, written.length + inputs.length);
            System.arraycopy(inputs, 0, all, written.length, inputs.length);
            return all;
        }
    }

    private interface NormPath {

        void run(Call call, OperationScope scope, Outputs outputs);
    }

    public static Call call(
            NDArray partial, NDArray residual, NDArray weight, float epsilon, ProcessGroup group) {
        OperandChecks checks = new OperandChecks(TYPE.toString());
        checks.checkNotNull("the group", group);
        Operands inputs =
                checks.operands(
                        Arrays.asList(partial, residual, weight), "partial", "residual", "weight");
        if (checks.recording() != null) {
            throw checks.wrong(
                    "an input requires a gradient, but the operator has none: call"
                            + " DifferentiableCollectives.allReduce, then add and normalise");
        }
        if (!(epsilon >= 0 && epsilon < Float.POSITIVE_INFINITY)) {
            throw checks.wrong("epsilon is %s, but must be finite and at least 0", epsilon);
        }
        return new Call(checks, inputs, epsilon, group);
    }

    /** Finds or makes the plan of an all-reduce + RMSNorm. */
    private static AllReduceRmsNormPlan plan(GroupPlans plans, Call call) {
        PlanKey key = new PlanKey(TYPE, 0, 0, call.inputs());
        AllReduceRmsNormPlan plan = plans.find(key);
        return plan != null ? plan : plans.keep(key, new AllReduceRmsNormPlan(call));
    }

    /** Checks the inputs of a call, and chooses the path for them. */
    private AllReduceRmsNormPlan(Call call) {
        OperandChecks checks = call.checks();
        ProcessGroup group = call.group();
        NDArray partial = call.partial();
        TensorInfo[] infos = call.inputs().infos();
        type = checks.checkRows("partial", partial, infos[0], group.device());
        shape = new Shape(infos[0].sizes());
        hidden = shape.getLastDimension();
        rows = shape.size() / hidden;
        checks.checkLike("residual", call.inputs().array(1), infos[1], shape, partial, type);
        Shape row = new Shape(hidden);
        checks.checkLike("weight", call.inputs().array(2), infos[2], row, partial, type);
        inPlace = new boolean[infos.length];
        for (int i = 0; i < infos.length; i++) {
            inPlace[i] = infos[i].isContiguous();
        }
        plans = GroupPlans.of(group);
        output = new TensorTemplate(group.device(), shape, type);
        Optional<RmsNormKernels> kernels = kernels(type, rows, hidden, group);
        roundsToE4m3 =
                hidden % E4M3_PACK == 0
                        && kernels.filter(found -> found.roundsToE4m3(type)).isPresent();
        FallbackReason reason = fallbackReason(kernels, type, rows, hidden, group).orElse(null);
        if (reason == null) {
            path = fused(kernels.orElseThrow(), group.requireP2pBuffers());
        } else {
            path =
                    kernels.map(found -> byKernel(found, reason))
                            .orElseGet(() -> byLibtorch(reason));
        }
    }

    private static Optional<RmsNormKernels> kernels(
            ScalarType type, long rows, long hidden, ProcessGroup group) {
        return rows > 0 && group.device().isGpu() && NativeLibrary.NVRTC.isAvailable()
                ? RmsNormKernels.of(GroupPlans.of(group).compute())
                        .filter(norm -> norm.isSupported(type, hidden))
                : Optional.empty();
    }

    public static boolean isFused(ScalarType type, long rows, long hidden, ProcessGroup group) {
        OperandChecks checks = new OperandChecks("isFused");
        checks.checkNotNull("the type", type);
        checks.checkNotNull("the group", group);
        if (rows < 1 || hidden < 1) {
            throw checks.wrong("%d rows of %d elements, but both must be at least 1", rows, hidden);
        }
        Optional<RmsNormKernels> kernels = kernels(type, rows, hidden, group);
        return fallbackReason(kernels, type, rows, hidden, group).isEmpty();
    }

    /**
     * Returns why the operator needs more than one kernel; empty if one kernel suffices. The same
     * on all ranks.
     */
    private static Optional<FallbackReason> fallbackReason(
            Optional<RmsNormKernels> kernels,
            ScalarType type,
            long rows,
            long hidden,
            ProcessGroup group) {
        if (Fallbacks.isForced(TYPE)) {
            return Optional.of(FallbackReason.FORCED);
        }
        Optional<P2pBuffers> buffers = group.p2pBuffers();
        if (buffers.flatMap(P2pBuffers::oneShotSlots).isEmpty()) {
            return Optional.of(FallbackReason.NO_P2P_BUFFERS);
        }
        return kernels.filter(norm -> norm.exchanges(buffers.get(), type, rows, hidden)).isPresent()
                ? Optional.empty()
                : Optional.of(FallbackReason.BUFFER_TOO_SMALL);
    }

    /** Enqueues a call whose results are new arrays in the manager of the partial. */
    private NormedResidual runNew(Call call) {
        NDManager manager = call.partial().getManager();
        TensorTemplate.Created sum = output.create(manager);
        TensorTemplate.Created norm = null;
        try {
            norm = output.create(manager);
            NormedResidual outputs = new NormedResidual(sum.array(), norm.array());
            long residual = sum.address();
            run(call, new Outputs(outputs, residual, norm.address(), 0, sum.array(), norm.array()));
            return outputs;
        } catch (Throwable e) {
            sum.array().close();
            if (norm != null) {
                norm.array().close();
            }
            throw e;
        }
    }

    /** Checks the output arrays, and enqueues a call that writes to them. */
    private NormedResidual runInto(Call call, NormedResidual outputs) {
        call.checks().checkNotNull("outputs", outputs);
        long sum = checkOutput(call, "new residual", outputs.residual(), shape, type);
        long norm = checkOutput(call, "norm", outputs.norm(), shape, type);
        checkApart(call, sum, norm);
        run(call, new Outputs(outputs, sum, norm, 0, outputs.residual(), outputs.norm()));
        return outputs;
    }

    /** As {@link #runInto(Call, NormedResidual)}, with a norm in e4m3. */
    private NormedResidual runInto(Call call, NormedResidual outputs, NDArray scales) {
        OperandChecks checks = call.checks();
        if (!roundsToE4m3) {
            throw checks.wrong(
                    "rows of %d %s on %s have no kernel that rounds to e4m3, which takes a GPU of"
                            + " compute capability 8.0 or later, float16 or bfloat16, and a"
                            + " multiple of %d elements up to 47 KiB: pass no scales, and a norm of"
                            + " the partial's type",
                    hidden, type, call.group().device(), E4M3_PACK);
        }
        checks.checkNotNull("outputs", outputs);
        long sum = checkOutput(call, "new residual", outputs.residual(), shape, type);
        long norm = checkOutput(call, "norm", outputs.norm(), shape, ScalarType.FLOAT8_E4M3FN);
        long[] sizes = shape.getShape().clone();
        sizes[sizes.length - 1] = 1;
        long scale = checkOutput(call, "scales", scales, new Shape(sizes), ScalarType.FLOAT32);
        checkApart(call, sum, norm);
        if (norm % E4M3_PACK != 0) {
            throw checks.wrong("the address of norm must be a multiple of %d", E4M3_PACK);
        }
        NDArray[] written = {outputs.residual(), outputs.norm(), scales};
        run(call, new Outputs(outputs, sum, norm, scale, written));
        return outputs;
    }

    private void checkApart(Call call, long sum, long norm) {
        if (rows > 0 && sum == norm) {
            throw call.checks().wrong("the new residual and the norm go to the same array");
        }
    }

    private long checkOutput(
            Call call, String role, NDArray output, Shape outputShape, ScalarType outputType) {
        OperandChecks checks = call.checks();
        TensorInfo info = checks.operand(role, output);
        checks.checkLike(role, output, info, outputShape, call.partial(), outputType);
        if (!info.isContiguous()) {
            throw checks.wrong("%s must be contiguous", role);
        }
        return info.address();
    }

    private void run(Call call, Outputs outputs) {
        try (OperationScope scope = plans.scope()) {
            path.run(call, scope, outputs);
        }
    }

    private NDArray contiguous(Call call, OperationScope scope, int input) {
        NDArray array = call.inputs().array(input);
        return inPlace[input] ? array : scope.copy(array, type);
    }

    private long address(Call call, NDArray contiguous, int input) {
        return inPlace[input] ? call.inputs().address(input) : Torch.dataPointer(contiguous);
    }

    private RmsNormKernels.Rows rows(
            Call call, Outputs outputs, long partial, NDArray residual, NDArray weight) {
        return new RmsNormKernels.Rows(
                outputs.residual(),
                outputs.norm(),
                outputs.scales(),
                partial,
                address(call, residual, 1),
                address(call, weight, 2),
                type,
                rows,
                hidden);
    }

    /** Sums the partials of all ranks into the new residual. */
    private static void allReduce(Call call, Outputs outputs) {
        NDArray sum = outputs.arrays().residual();
        if (outputs.residual() != call.inputs().address(0)) {
            NoGradient.run(() -> Torch.copy(sum, call.partial()));
        }
        // NCCL cannot record a one-rank all-reduce into a graph.
        if (call.group().worldSize() > 1) {
            call.group().allReduce(sum, ReduceOp.SUM, false);
        }
    }

    /** The path FUSED: one kernel exchanges partials, adds and normalises. */
    private NormPath fused(RmsNormKernels kernels, P2pBuffers buffers) {
        Agreed agreed = new Agreed(type, shape.getShape(), ReduceOp.SUM, 0);
        return (call, scope, outputs) -> {
            Usage.count(TYPE, Path.FUSED, null);
            NDArray partial = contiguous(call, scope, 0);
            NDArray residual = contiguous(call, scope, 1);
            NDArray weight = contiguous(call, scope, 2);
            RmsNormKernels.Rows of =
                    rows(call, outputs, address(call, partial, 0), residual, weight);
            NDArray[] used = outputs.and(partial, residual, weight);
            Work work =
                    call.group()
                            .execute(
                                    TYPE,
                                    agreed,
                                    operation -> {
                                        operation.setAlgorithm(ALGORITHM);
                                        kernels.exchange(
                                                operation, buffers, of, call.epsilon(), used);
                                    });
            GroupPlans.complete(call.group(), work);
        };
    }

    /** The path NCCL: an all-reduce, then one kernel adds and normalises. */
    private NormPath byKernel(RmsNormKernels kernels, FallbackReason reason) {
        return (call, scope, outputs) -> {
            Usage.count(TYPE, Path.NCCL, reason);
            long sumAddress = outputs.residual();
            if (call.group().worldSize() == 1 && inPlace[0]) {
                sumAddress = call.inputs().address(0); // The kernel reads it in place.
            } else {
                allReduce(call, outputs);
            }
            NDArray residual = contiguous(call, scope, 1);
            NDArray weight = contiguous(call, scope, 2);
            kernels.add(
                    rows(call, outputs, sumAddress, residual, weight),
                    call.epsilon(),
                    outputs.and(call.partial(), residual, weight));
        };
    }

    /** The path NCCL on the CPU, and for rows without a kernel: an all-reduce, then libtorch. */
    private NormPath byLibtorch(FallbackReason reason) {
        return (call, scope, outputs) -> {
            Usage.count(TYPE, Path.NCCL, reason);
            allReduce(call, outputs);
            if (rows > 0) {
                NoGradient.run(() -> addAndNormalize(call, outputs.arrays()));
            }
        };
    }

    /** In float32. Rounds the sum and the norm where the kernel does. */
    private static void addAndNormalize(Call call, NormedResidual outputs) {
        NDArray sum = outputs.residual();
        try (NDArray wide = Torch.cast(call.inputs().array(1), ScalarType.FLOAT32);
                NDArray addend = Torch.cast(sum, ScalarType.FLOAT32)) {
            wide.addi(addend);
            Torch.copy(sum, wide);
        }
        NDArray weight = call.inputs().array(2);
        try (NDArray norm = BlockMath.rmsNorm(sum, weight, call.epsilon())) {
            Torch.copy(outputs.norm(), norm);
        }
    }

    /** No-op: the plan owns no resources. */
    @Override
    public void close() {}
}
