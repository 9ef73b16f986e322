// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.function.Supplier;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.gradient.DifferentiableCollectives;
import org.djlx.collectives.gradient.GradientRule;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaException;
import org.djlx.nativeops.torch.BlockMath;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The operators that blocks run between their matmuls.
 *
 * <ul>
 *   <li>On a GPU each is one kernel, and its gradient is one kernel that the {@link GradientScope}
 *       records.
 *   <li>libtorch computes the operator on CPUs, for types and sizes without kernels, and if a
 *       gradient is needed but no scope is open.
 *   <li>RMSNorm and gated SiLU compute 16-bit types in float32 and round once. Other operators of
 *       libtorch round each result.
 * </ul>
 */
final class BlockOperators implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(BlockOperators.class);

    private static final BlockOperators BY_LIBTORCH = new BlockOperators(null);

    private final BlockKernels kernels; // null for libtorch's operators

    private BlockOperators(BlockKernels kernels) {
        this.kernels = kernels;
    }

    /** Returns the operators of a rank, which are closed with its group. */
    static BlockOperators of(ProcessGroup group) {
        return group.device().isGpu()
                ? group.attachment(BlockOperators.class, () -> open(group.device()))
                : BY_LIBTORCH;
    }

    private static BlockOperators open(Device gpu) {
        if (!NativeLibrary.CUDA_PRESETS.isAvailable() || !NativeLibrary.NVRTC.isAvailable()) {
            return BY_LIBTORCH;
        }
        try {
            return new BlockOperators(new BlockKernels(gpu));
        } catch (CudaException e) {
            logger.warn(
                    "{}: the kernels of transformer blocks cannot be used; libtorch's operators are"
                            + " slower",
                    gpu,
                    e);
            return BY_LIBTORCH;
        }
    }

    /**
     * Returns whether a kernel computes with these arrays. The kernel's results go into the manager
     * of the first array.
     */
    private boolean isFused(NDArray... arrays) {
        NDArray first = arrays[0];
        if (kernels == null
                || first.size() == 0
                || !first.getManager().getDevice().equals(first.getDevice())) {
            return false;
        }
        ScalarType type = Torch.scalarType(first);
        boolean recorded = false;
        for (NDArray array : arrays) {
            if (Torch.scalarType(array) != type || !kernels.isSupported(array)) {
                return false;
            }
            recorded |= NoGradient.isRecorded(array);
        }
        return !recorded || GradientScope.current().isPresent();
    }

    /** Runs a kernel, and records it in the scope if an input requires a gradient. */
    private static NDArray recorded(
            String operator,
            List<NDArray> inputs,
            List<NDArray> kept,
            Supplier<NDArray> kernel,
            GradientRule rule) {
        return allRecorded(operator, inputs, kept, () -> List.of(kernel.get()), rule).get(0);
    }

    /** As {@link #recorded}, for a kernel with several results. */
    private static List<NDArray> allRecorded(
            String operator,
            List<NDArray> inputs,
            List<NDArray> kept,
            Supplier<List<NDArray>> kernel,
            GradientRule rule) {
        boolean differentiable = inputs.stream().anyMatch(NoGradient::isRecorded);
        List<NDArray> results = NoGradient.get(kernel);
        if (differentiable) {
            GradientScope.current().orElseThrow().record(operator, inputs, kept, results, rule);
        }
        return results;
    }

    NDArray normalized(NDArray x, NDArray weight, float epsilon) {
        if (isNormFused(x, weight)) {
            return recorded(
                    "RmsNorm",
                    List.of(x, weight),
                    List.of(x, weight),
                    () -> kernels.normalized(x, weight, epsilon),
                    (inputs, kept, gradients) ->
                            kernels.normalizedGradients(
                                    inputs.get(0), inputs.get(1), gradients.get(0), null, epsilon));
        }
        return BlockMath.rmsNorm(x, weight, epsilon);
    }

    private boolean isNormFused(NDArray x, NDArray weight) {
        return isFused(x, weight)
                && x.getShape().getLastDimension() == weight.size()
                && kernels.isNormalizable(weight.size());
    }

    /** The rows of a residual connection, and their norm. */
    record Residual(NDArray rows, NDArray norm) {}

    /**
     * Adds rows and normalises the sum, at the start of a residual connection. Its backward pass
     * runs through earlier layers once only. Without an addend, the rows share the memory of {@code
     * x}.
     */
    Residual residual(NDArray x, NDArray addend, NDArray weight, float epsilon) {
        boolean fused =
                isNormFused(x, weight)
                        && (addend == null
                                || addend.getShape().equals(x.getShape()) && isFused(addend, x));
        if (!fused) {
            NDArray sum = addend == null ? x : x.add(addend);
            NDArray rows = NoGradient.isRecorded(sum) ? DifferentiableCollectives.cut(sum) : sum;
            return new Residual(rows, normalized(rows, weight, epsilon));
        }
        List<NDArray> inputs = addend == null ? List.of(x, weight) : List.of(x, addend, weight);
        Supplier<List<NDArray>> kernel =
                () ->
                        addend == null
                                ? List.of(x.stopGradient(), kernels.normalized(x, weight, epsilon))
                                : kernels.addedNormalized(x, addend, weight, epsilon);
        boolean differentiable = inputs.stream().anyMatch(NoGradient::isRecorded);
        List<NDArray> results = NoGradient.get(kernel);
        if (differentiable) {
            GradientScope.current()
                    .orElseThrow()
                    .record(
                            "residual RmsNorm",
                            inputs,
                            List.of(results.get(0), weight),
                            results,
                            (ins, kept, gradients) ->
                                    residualGradients(ins, kept, gradients, epsilon));
        }
        return new Residual(results.get(0), results.get(1));
    }

    /** Returns the gradients of {@link #residual}. Both addends have the same gradient. */
    private List<NDArray> residualGradients(
            List<NDArray> inputs, List<NDArray> kept, List<NDArray> gradients, float epsilon) {
        int last = inputs.size() - 1;
        List<NDArray> results =
                kernels.normalizedGradients(
                        kept.get(0), inputs.get(last), gradients.get(1), gradients.get(0), epsilon);
        NDArray ofRows = results.get(0);
        return last == 1 ? results : List.of(ofRows, ofRows, results.get(1));
    }

    /**
     * Adds rows at the end of a residual connection. Both addends get the same gradient, without
     * copies.
     */
    static NDArray added(NDArray x, NDArray addend) {
        GradientScope scope = GradientScope.current().orElse(null);
        boolean recorded = NoGradient.isRecorded(x) || NoGradient.isRecorded(addend);
        if (scope == null || !recorded || !x.getShape().equals(addend.getShape())) {
            return x.add(addend);
        }
        return recorded(
                "add",
                List.of(x, addend),
                List.of(),
                () -> x.add(addend),
                (inputs, kept, gradients) -> List.of(gradients.get(0), gradients.get(0)));
    }

    /**
     * Applies a rotary embedding, like {@link RotaryEmbedding#rotate}, to heads of shape (…,
     * positions, heads, head size).
     */
    NDArray rotated(RotaryEmbedding rotary, NDArray x, RotaryEmbedding.Table table) {
        if (!isFused(x, table.cosines(), table.sines())) {
            return rotary.rotate(x, table);
        }
        return recorded(
                "rotate",
                List.of(x),
                List.of(table.cosines(), table.sines()),
                () -> kernels.rotated(x, table.cosines(), table.sines(), false),
                (inputs, kept, gradients) ->
                        List.of(kernels.rotated(gradients.get(0), kept.get(0), kept.get(1), true)));
    }

    /**
     * Splits heads of shape (…, positions, heads, head size), queries first, into queries, keys and
     * values, and rotates queries and keys.
     */
    List<NDArray> divided(
            RotaryEmbedding rotary, NDArray x, List<Long> counts, RotaryEmbedding.Table table) {
        if (!isFused(x, table.cosines(), table.sines())) {
            NDList parts = split(x, counts, x.getShape().dimension() - 2);
            return List.of(
                    rotary.rotate(parts.get(0), table),
                    rotary.rotate(parts.get(1), table),
                    parts.get(2));
        }
        return allRecorded(
                "divide",
                List.of(x),
                List.of(table.cosines(), table.sines()),
                () -> kernels.divided(x, counts, table.cosines(), table.sines()),
                (inputs, kept, gradients) ->
                        List.of(kernels.dividedGradient(gradients, kept.get(0), kept.get(1))));
    }

    /**
     * Computes causal attention by libtorch's operators. Arrays have shape (batch, heads, sequence,
     * size); a token attends to {@code window} tokens, itself included.
     */
    static NDArray windowed(NDArray query, NDArray key, NDArray value, long window) {
        Shape shape = query.getShape();
        long length = shape.get(2);
        long keys = key.getShape().get(1);
        ScalarType type = Torch.scalarType(query);
        NDManager manager = query.getManager();
        NDArray scale = manager.create(1 / Math.sqrt(shape.get(3)));
        NDArray grouped =
                query.mul(Torch.cast(scale, type))
                        .reshape(shape.get(0), keys, shape.get(1) / keys, length, shape.get(3));
        NDArray positions = manager.arange((int) length);
        NDArray distances = positions.expandDims(1).sub(positions);
        NDArray hidden = distances.lt(0).logicalOr(distances.gte(window));
        NDArray zeros = manager.zeros(hidden.getShape());
        NDArray mask = NDArrays.where(hidden, zeros.add(Float.NEGATIVE_INFINITY), zeros);
        NDArray scores = grouped.matMul(key.expandDims(2).transpose(0, 1, 2, 4, 3));
        // DJL's softmax takes no bfloat16.
        ScalarType wide = type.itemSize() < Float.BYTES ? ScalarType.FLOAT32 : type;
        NDArray masked = Torch.cast(scores, wide).add(Torch.cast(mask, wide));
        NDArray weights = Torch.cast(masked.softmax(-1), type);
        return weights.matMul(value.expandDims(2)).reshape(shape);
    }

    static NDList split(NDArray x, List<Long> counts, int dimension) {
        long second = counts.get(0) + counts.get(1);
        return x.split(new long[] {counts.get(0), second}, dimension);
    }

    /** As {@link BlockKernels#gated}. */
    NDArray gated(List<NDArray> in) {
        if (!isFused(in.toArray(NDArray[]::new))
                || in.size() > 1 && !in.get(0).getShape().equals(in.get(1).getShape())) {
            List<NDArray> both =
                    in.size() > 1 ? in : in.get(0).split(2, in.get(0).getShape().dimension() - 1);
            return BlockMath.siluGate(both.get(0), both.get(1));
        }
        return recorded(
                "gate",
                in,
                in,
                () -> kernels.gated(in),
                (inputs, kept, gradients) -> kernels.gatedGradients(inputs, gradients.get(0)));
    }

    /**
     * Converts matrices of as many rows, and joins them side by side. A scope does not record this.
     */
    NDArray joined(List<NDArray> matrices, ScalarType type) {
        NDArray first = matrices.get(0);
        if (kernels != null
                && first.getManager().getDevice().equals(first.getDevice())
                && kernels.isJoinable(matrices, type)
                && matrices.stream().noneMatch(NoGradient::isRecorded)) {
            return kernels.joined(matrices, type);
        }
        try (NDList converted = new NDList()) {
            matrices.forEach(matrix -> converted.add(Torch.cast(matrix, type)));
            return NDArrays.concat(converted, 1);
        }
    }

    @Override
    public void close() {
        if (kernels != null) {
            kernels.close();
        }
    }
}
