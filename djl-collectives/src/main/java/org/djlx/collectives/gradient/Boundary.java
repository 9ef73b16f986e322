// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.gradient;

import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/**
 * One recorded call of an operator that autograd does not see. Autograd's graph of the inputs ends
 * here, and the graph of the outputs begins here. The boundary holds its own handles on all arrays,
 * so callers may close their handles.
 */
final class Boundary implements AutoCloseable {

    private static final long UNWATCHED = -1;

    private final String operator;
    private final GradientRule rule;
    private final boolean conversion; // skipped if no gradient arrives; its rule is local
    private final List<NDArray> arguments; // the callers' arrays of the inputs
    private final NDManager manager;
    private final List<NDArray> inputs;
    private final List<NDArray> kept;
    private final List<NDArray> outputs;
    private final List<NDArray> results; // the callers' arrays of the outputs
    private final NDArray[] received; // gradients of the outputs from other boundaries, or null
    private final NDArray[] noted; // gradients of the results that arrived earlier, or null
    private final Source[] sources; // of the inputs, or null
    private final long[] versions; // of the inputs, then of the kept arrays, or UNWATCHED

    /** The boundary and output that an input comes from. */
    private record Source(Boundary boundary, int output) {}

    /**
     * Records a call. Of a conversion, operators may use the inputs in place of the output; the
     * makers are the boundaries not yet visited, by their outputs.
     */
    Boundary(
            String operator,
            List<NDArray> inputs,
            List<NDArray> kept,
            List<NDArray> results,
            GradientRule rule,
            boolean conversion,
            Map<NDArray, Boundary> makers) {
        this.operator = operator;
        this.rule = rule;
        this.conversion = conversion;
        arguments = conversion ? List.copyOf(inputs) : List.of();
        this.results = List.copyOf(results);
        received = new NDArray[results.size()];
        noted = new NDArray[results.size()];
        sources = new Source[inputs.size()];
        for (int i = 0; i < sources.length; i++) {
            Boundary maker = makers.get(inputs.get(i));
            sources[i] = maker == null ? null : maker.source(inputs.get(i));
        }
        manager = NDManager.newBaseManager(results.get(0).getDevice(), "PyTorch");
        try {
            this.inputs = aliases(inputs);
            this.kept = aliases(kept);
            versions = versions();
            for (NDArray result : results) {
                if (inputs.stream().anyMatch(input -> input == result)) {
                    throw new IllegalArgumentException(
                            String.format(
                                    "%s: the output of shape %s is also an input; an output must be"
                                            + " a new array",
                                    operator, result.getShape()));
                }
                result.setRequiresGradient(true);
            }
            this.outputs = aliases(results);
        } catch (Throwable e) {
            manager.close();
            throw e;
        }
    }

    private List<NDArray> aliases(List<NDArray> arrays) {
        return arrays.stream().map(array -> Torch.alias(manager, array)).toList();
    }

    /**
     * Reads the versions of arrays that must not change before the backward pass: kept arrays,
     * which the rule reads, and inputs that require a gradient, from which autograd continues.
     */
    private long[] versions() {
        long[] counts = new long[inputs.size() + kept.size()];
        for (int i = 0; i < counts.length; i++) {
            NDArray array = operand(i);
            boolean watched = i >= inputs.size() || Torch.requiresGradient(array);
            counts[i] = watched ? version(array) : UNWATCHED;
        }
        return counts;
    }

    private NDArray operand(int index) {
        return index < inputs.size() ? inputs.get(index) : kept.get(index - inputs.size());
    }

    private static long version(NDArray array) {
        try {
            return Torch.version(array);
        } catch (EngineException e) {
            return UNWATCHED; // Made in inference mode, where libtorch keeps no version.
        }
    }

    private void checkUnchanged() {
        for (int i = 0; i < versions.length; i++) {
            if (versions[i] == UNWATCHED || version(operand(i)) == versions[i]) {
                continue;
            }
            boolean input = i < inputs.size();
            throw new IllegalStateException(
                    String.format(
                            "%s: %s %d of shape %s was changed in place after the call, so"
                                + " gradients would be wrong: change it after backward, compute a"
                                + " new array instead (mul, not muli), or pass a copy to the"
                                + " operator (duplicate())",
                            operator,
                            input ? "input" : "kept array",
                            input ? i : i - inputs.size(),
                            operand(i).getShape()));
        }
    }

    private Source source(NDArray result) {
        int output = 0;
        while (results.get(output) != result) {
            output++;
        }
        return new Source(this, output);
    }

    String operator() {
        return operator;
    }

    List<NDArray> results() {
        return results;
    }

    /** Returns the originals of a converted output; the output itself if no original is open. */
    List<NDArray> originals(NDArray result) {
        return conversion && arguments.stream().noneMatch(NDArray::isReleased)
                ? arguments
                : List.of(result);
    }

    /**
     * Runs the rule on the outputs' gradients and passes the inputs' gradients on: to the boundary
     * that an input comes from, or to autograd. Boundaries never change a gradient, so they may
     * share its memory; autograd gets a copy.
     */
    void goBack() {
        if (conversion && !isReached()) {
            return; // Operators have added the gradients to the originals.
        }
        checkUnchanged();
        List<TensorInfo> used = new ArrayList<>(); // memory that autograd may change
        List<TensorInfo> shared = new ArrayList<>(); // memory that other boundaries read
        List<NDArray> gradients = NoGradient.get(() -> inputGradients(used, shared));
        if (gradients.size() != inputs.size()) {
            throw new IllegalStateException(
                    String.format(
                            "%s: its rule returned %d gradients for %d inputs",
                            operator, gradients.size(), inputs.size()));
        }
        inputs.forEach(input -> used.add(Torch.info(input)));
        kept.forEach(array -> used.add(Torch.info(array)));
        // Make all copies first, because autograd may add to a gradient in place.
        NDArray[] sent = new NDArray[inputs.size()];
        for (int i = 0; i < sent.length; i++) {
            NDArray input = inputs.get(i);
            NDArray gradient = gradients.get(i);
            if (gradient == null || !Torch.requiresGradient(input)) {
                continue;
            }
            if (!gradient.getShape().equals(input.getShape())) {
                throw new IllegalStateException(
                        String.format(
                                "%s: its rule returned a gradient of shape %s for input %d, of"
                                        + " shape %s",
                                operator, gradient.getShape(), i, input.getShape()));
            }
            // Autograd may keep the gradient as a leaf's gradient and add to it in place.
            boolean received = isReceived(gradient, i);
            boolean copied = overlaps(gradient, used) || !received && overlaps(gradient, shared);
            sent[i] = copied ? copy(gradient, manager) : gradient;
            (received ? shared : used).add(Torch.info(sent[i]));
        }
        for (int i = 0; i < sent.length; i++) {
            if (sent[i] == null) {
                continue;
            }
            if (isReceived(sent[i], i)) {
                sources[i].boundary.receive(sources[i].output, sent[i]);
            } else {
                // Keep the inputs' graph, because it may be used again.
                JniUtils.backward((PtNDArray) inputs.get(i), (PtNDArray) sent[i], true, false);
            }
        }
    }

    /** Returns whether another boundary receives an input's gradient, not autograd. */
    private boolean isReceived(NDArray gradient, int input) {
        return sources[input] != null && isLike(gradient, inputs.get(input));
    }

    private static boolean overlaps(NDArray gradient, List<TensorInfo> others) {
        TensorInfo info = Torch.info(gradient);
        return others.stream().anyMatch(info::overlaps);
    }

    private boolean isReached() {
        try (NDArray gradient = JniUtils.getGradient((PtNDArray) outputs.get(0))) {
            return gradient != null || received[0] != null;
        }
    }

    /** Returns whether type and device are equal; otherwise autograd reports the error. */
    private static boolean isLike(NDArray gradient, NDArray input) {
        return Torch.scalarType(gradient) == Torch.scalarType(input)
                && Torch.device(gradient).equals(Torch.device(input));
    }

    /**
     * Accepts the gradient of an output. Returns false for another shape, type or device; autograd
     * then reports the error.
     */
    boolean take(NDArray result, NDArray gradient) {
        if (!isLike(gradient, result) || !gradient.getShape().equals(result.getShape())) {
            return false;
        }
        receive(source(result).output, gradient);
        return true;
    }

    private void receive(int output, NDArray gradient) {
        NDArray before = received[output];
        if (before == null) {
            received[output] = owned(gradient);
            return;
        }
        NDArray sum = NoGradient.get(() -> before.add(gradient));
        before.close();
        received[output] = sum;
    }

    /**
     * Returns a gradient in a contiguous array that this boundary owns. On a CPU it is a copy,
     * because the gradient may be a view of JVM memory that lives only as long as its array.
     */
    private NDArray owned(NDArray gradient) {
        return gradient.getDevice().isGpu() && Torch.isContiguous(gradient)
                ? Torch.alias(manager, gradient)
                : copy(gradient, manager);
    }

    private static NDArray copy(NDArray gradient, NDManager manager) {
        NDArray copy = NoGradient.get(() -> Torch.cast(gradient, Torch.scalarType(gradient)));
        copy.attach(manager);
        return copy;
    }

    /**
     * Runs the rule. Adds the gradients that stay at open outputs to {@code used}, and those that
     * other boundaries may share to {@code shared}.
     */
    private List<NDArray> inputGradients(List<TensorInfo> used, List<TensorInfo> shared) {
        List<NDArray> gradients = new ArrayList<>();
        for (int i = 0; i < outputs.size(); i++) {
            NDArray output = outputs.get(i);
            NDArray gradient = JniUtils.getGradient((PtNDArray) output);
            if (gradient == null) {
                gradient =
                        received[i] == null
                                ? Torch.zeros(manager, output.getShape(), Torch.scalarType(output))
                                : received[i];
                shared.add(Torch.info(gradient));
            } else if (received[i] != null) {
                gradient = gradient.add(received[i]);
            } else if (!results.get(i).isReleased()) {
                used.add(Torch.info(gradient));
            }
            gradients.add(gradient);
        }
        return rule.differentiate(inputs, kept, gradients);
    }

    /**
     * Copies the outputs' gradients, for {@link #isReachedAgain}. Does not zero the gradients,
     * because libtorch lets gradients of several leaves share memory.
     */
    void noteGradients(NDManager notes) {
        for (int i = 0; i < noted.length; i++) {
            NDArray gradient = gradient(results.get(i), notes);
            noted[i] = gradient == null ? null : copy(gradient, notes);
        }
    }

    /** Returns whether a gradient has arrived at an open output since {@link #noteGradients}. */
    boolean isReachedAgain(NDManager notes) {
        return NoGradient.get(
                () -> {
                    for (int i = 0; i < noted.length; i++) {
                        NDArray gradient = gradient(results.get(i), notes);
                        if (gradient != null && isDifferent(gradient, noted[i])) {
                            return true;
                        }
                    }
                    return false;
                });
    }

    /** Returns an array's gradient, if it is open and has one. */
    private static NDArray gradient(NDArray array, NDManager manager) {
        NDArray gradient = array.isReleased() ? null : JniUtils.getGradient((PtNDArray) array);
        if (gradient != null) {
            gradient.attach(manager);
        }
        return gradient;
    }

    private static boolean isDifferent(NDArray gradient, NDArray before) {
        // NaN differs from itself.
        NDArray different =
                before == null
                        ? gradient.neq(0)
                        : gradient.neq(before).logicalAnd(before.eq(before));
        NDArray any = different.any();
        CurrentStreams.await(any.getDevice());
        return any.getBoolean();
    }

    /** Returns whether the caller has closed all outputs. */
    boolean isForgotten() {
        return results.stream().allMatch(NDArray::isReleased);
    }

    @Override
    public void close() {
        manager.close();
    }
}
