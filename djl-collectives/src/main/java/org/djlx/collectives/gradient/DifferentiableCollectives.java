// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.function.UnaryOperator;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;

/**
 * Collectives through which gradients flow, within a {@link GradientScope}; the counterparts of
 * {@code torch.distributed.nn.functional} and of the mappings in Megatron-LM's {@code
 * tensor_parallel/mappings.py} (Shoeybi et al., 2019, <a
 * href="https://arxiv.org/abs/1909.08053">arXiv:1909.08053</a>).
 *
 * <pre>
 *                   forward                   backward                  Megatron-LM
 *   enterParallel   identity                  all-reduce                f
 *   leaveParallel   all-reduce                identity                  g
 *   allReduce       all-reduce                all-reduce
 *   allGather       all-gather                reduce-scatter
 *   reduceScatter   reduce-scatter            all-gather
 *   cut             identity                  identity
 * </pre>
 *
 * <p>Gradients are those of the sum of the ranks' losses. Between {@code leaveParallel} and the
 * next {@code enterParallel} all ranks have the same value and compute the same from it, so its
 * gradient counts once.
 *
 * <ul>
 *   <li>Each method returns a new array in the input's manager: on a CPU after the operation has
 *       completed, on a GPU after it is enqueued on the current stream.
 *   <li>With gradients off, or if the input requires no gradient, only the forward pass runs.
 *   <li>All reductions are sums.
 *   <li>All ranks of the group make the same call, with inputs of the same shape.
 *   <li>An input that requires a gradient outside of a scope is an {@link
 *       IllegalArgumentException}.
 * </ul>
 */
public final class DifferentiableCollectives {

    private DifferentiableCollectives() {}

    /**
     * Enters a parallel region: takes a value that is the same on all ranks. Each rank then
     * computes a different part of the layer from it. Use it on the input of a column-parallel
     * layer.
     *
     * @param x the value, of any shape
     * @return the value, in the memory of {@code x}; its gradient is summed over the ranks
     */
    public static NDArray enterParallel(NDArray x, ProcessGroup group) {
        return run("enterParallel", x, group, NDArray::stopGradient, g -> summed(g, group));
    }

    /**
     * Leaves a parallel region: sums the ranks' arrays, of any shape, to a value that is the same
     * on all ranks. Use it on the output of a row-parallel layer. The sum counts once: its gradient
     * is the gradient of each rank's array.
     */
    public static NDArray leaveParallel(NDArray x, ProcessGroup group) {
        return run("leaveParallel", x, group, own -> summed(own, group), g -> g);
    }

    /**
     * Sums an array of any shape over all ranks, and its gradients, too. Use it if each rank
     * computes its own loss from the sum.
     */
    public static NDArray allReduce(NDArray x, ProcessGroup group) {
        return run("allReduce", x, group, own -> summed(own, group), g -> summed(g, group));
    }

    /**
     * Concatenates the arrays of all ranks, in rank order.
     *
     * @param x this rank's array, with 1 or more dimensions
     * @param dimension the dimension along which they are concatenated; negative values count from
     *     the last dimension
     * @return the concatenation, world size times as large along the dimension
     */
    public static NDArray allGather(NDArray x, int dimension, ProcessGroup group) {
        String operator = "allGather";
        checkArguments(operator, x, group);
        int axis = axis(operator, x, dimension);
        NDArray whole = NoGradient.get(() -> gathered(x, axis, group));
        return recorded(operator, x, whole, gradient -> scattered(gradient, axis, group));
    }

    /**
     * Sums an array over all ranks and divides the sum among them, in rank order.
     *
     * @param x this rank's summand, with 1 or more dimensions
     * @param dimension the dimension along which the sum is divided; its size must be divisible by
     *     the world size; negative values count from the last dimension
     */
    public static NDArray reduceScatter(NDArray x, int dimension, ProcessGroup group) {
        String operator = "reduceScatter";
        checkArguments(operator, x, group);
        int axis = axis(operator, x, dimension);
        if (x.getShape().get(axis) % group.worldSize() != 0) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: x has shape %s, whose dimension %d cannot be divided among the %d"
                                    + " ranks of %s",
                            operator, x.getShape(), dimension, group.worldSize(), group.name()));
        }
        NDArray part = NoGradient.get(() -> scattered(x, axis, group));
        return recorded(operator, x, part, gradient -> gathered(gradient, axis, group));
    }

    /**
     * Cuts the autograd graph at a value: the backward pass runs the graph before the cut once,
     * with the sum of all gradients of the result. Without a cut it may run that graph once for
     * each collective that depends on {@code x}.
     *
     * <p>Use it at the beginning of a block with a residual connection around collectives, and
     * compute both branches from the result.
     *
     * @param x the value, of any shape
     * @return the value; an array that shares the memory of {@code x}, and {@code x} itself if
     *     autograd records nothing
     */
    public static NDArray cut(NDArray x) {
        if (GradientScope.recording("cut", "x", x).isEmpty()) {
            return x;
        }
        return recorded("cut", x, x.stopGradient(), gradient -> gradient);
    }

    /** Checks the arguments, and runs an operator with a rule for its gradient. */
    private static NDArray run(
            String operator,
            NDArray x,
            ProcessGroup group,
            UnaryOperator<NDArray> forward,
            UnaryOperator<NDArray> rule) {
        checkArguments(operator, x, group);
        return recorded(operator, x, NoGradient.get(() -> forward.apply(x)), rule);
    }

    private static NDArray recorded(
            String operator, NDArray x, NDArray result, UnaryOperator<NDArray> rule) {
        GradientScope.recording(operator, "x", x)
                .ifPresent(
                        scope ->
                                scope.record(
                                        operator,
                                        List.of(x),
                                        List.of(),
                                        List.of(result),
                                        (inputs, kept, gradients) ->
                                                List.of(rule.apply(gradients.get(0)))));
        return result;
    }

    /**
     * Includes the checks of {@link #recorded}, because the checks must fail before communication
     * starts.
     */
    private static void checkArguments(String operator, NDArray x, ProcessGroup group) {
        if (x == null || group == null) {
            throw new IllegalArgumentException(
                    operator + ": " + (x == null ? "x" : "the group") + " is null");
        }
        if (GradientScope.recording(operator, "x", x).isPresent()
                && !Torch.scalarType(x).isFloatingPoint()) {
            throw new IllegalArgumentException(operator + ": x must be of floating-point type");
        }
    }

    private static int axis(String operator, NDArray x, int dimension) {
        int dimensions = x.getShape().dimension();
        int axis = dimension < 0 ? dimension + dimensions : dimension;
        if (axis < 0 || axis >= dimensions) {
            throw new IllegalArgumentException(
                    String.format(
                            "%s: dimension %d is out of range for x of shape %s",
                            operator, dimension, x.getShape()));
        }
        return axis;
    }

    private static NDArray summed(NDArray x, ProcessGroup group) {
        NDArray sum = contiguous(x, x.getManager());
        complete(group, sum, group.allReduce(sum, ReduceOp.SUM));
        return sum;
    }

    private static NDArray gathered(NDArray x, int axis, ProcessGroup group) {
        return moved(x, axis, group, true);
    }

    private static NDArray scattered(NDArray x, int axis, ProcessGroup group) {
        return moved(x, axis, group, false);
    }

    /** Gathers or reduce-scatters along an axis, which is the first one meanwhile. */
    private static NDArray moved(NDArray x, int axis, ProcessGroup group, boolean gathers) {
        NDManager owner = x.getManager();
        try (NDManager manager = owner.newSubManager(x.getDevice())) {
            NDArray rows = x;
            if (axis != 0) {
                NDArray swapped = x.swapAxes(0, axis);
                swapped.attach(manager);
                rows = contiguous(swapped, manager);
            }
            long[] sizes = rows.getShape().getShape().clone();
            int ranks = group.worldSize();
            sizes[0] = gathers ? sizes[0] * ranks : sizes[0] / ranks;
            NDArray result = Torch.empty(manager, new Shape(sizes), Torch.scalarType(x));
            complete(
                    group,
                    result,
                    gathers
                            ? group.allGatherIntoTensor(result, rows)
                            : group.reduceScatterTensor(result, rows, ReduceOp.SUM));
            if (axis != 0) {
                return contiguous(result.swapAxes(0, axis), owner);
            }
            result.attach(owner);
            return result;
        }
    }

    private static NDArray contiguous(NDArray x, NDManager manager) {
        NDArray copy = Torch.cast(x, Torch.scalarType(x));
        copy.attach(manager);
        return copy;
    }

    /** Waits for a work: on a GPU the current stream waits, on a CPU the calling thread. */
    private static void complete(ProcessGroup group, NDArray result, Work work) {
        try {
            if (group.device().isGpu()) {
                work.blockCurrentStream();
            } else {
                work.await();
            }
        } catch (Throwable e) {
            result.close();
            throw e;
        }
    }
}
