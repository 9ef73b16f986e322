/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.gradient;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.util.ArrayList;
import java.util.List;
import org.djlx.nativeops.NoGradient;
import org.djlx.nativeops.ScalarType;
import org.djlx.nativeops.Torch;

/**
 * One call of an operator that autograd does not see: the graph of its inputs ends here, and that
 * of its outputs begins. It has handles of its own on all arrays, so that callers may close theirs.
 */
final class Boundary implements AutoCloseable {

    private final String operator;
    private final GradientRule rule;
    private final NDManager manager;
    private final List<NDArray> inputs;
    private final List<NDArray> kept;
    private final List<NDArray> outputs;
    private final List<NDArray> results; // the callers' arrays of the outputs

    Boundary(
            String operator,
            List<NDArray> inputs,
            List<NDArray> kept,
            List<NDArray> results,
            GradientRule rule) {
        this.operator = operator;
        this.rule = rule;
        this.results = List.copyOf(results);
        manager = NDManager.newBaseManager(results.get(0).getDevice(), "PyTorch");
        boolean done = false;
        try {
            this.inputs = aliases(inputs);
            this.kept = aliases(kept);
            for (NDArray result : results) {
                result.setRequiresGradient(true);
            }
            this.outputs = aliases(results);
            done = true;
        } finally {
            if (!done) {
                manager.close();
            }
        }
    }

    private List<NDArray> aliases(List<NDArray> arrays) {
        return arrays.stream().map(array -> Torch.alias(manager, array)).toList();
    }

    String operator() {
        return operator;
    }

    /** Takes the outputs' gradients, and goes on with those of the inputs in the graph behind. */
    void goBack() {
        List<NDArray> gradients = NoGradient.get(this::inputGradients);
        if (gradients.size() != inputs.size()) {
            throw new IllegalStateException(
                    String.format(
                            "%s: its rule returned %d gradients for %d inputs",
                            operator, gradients.size(), inputs.size()));
        }
        for (int i = 0; i < inputs.size(); i++) {
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
            // What lies behind may be reached from elsewhere too: it stays.
            JniUtils.backward((PtNDArray) input, (PtNDArray) gradient, true, false);
        }
        // Whether one arrives after this is found out by isReachedAgain.
        outputs.forEach(output -> JniUtils.zeroGrad((PtNDArray) output));
    }

    private List<NDArray> inputGradients() {
        List<NDArray> gradients = new ArrayList<>();
        for (NDArray output : outputs) {
            NDArray gradient = JniUtils.getGradient((PtNDArray) output);
            gradients.add(gradient == null ? zeros(output) : gradient);
        }
        return rule.differentiate(inputs, kept, gradients);
    }

    private NDArray zeros(NDArray like) {
        ScalarType type = Torch.scalarType(like);
        NDArray zeros = manager.zeros(like.getShape());
        return type == ScalarType.FLOAT32 ? zeros : Torch.cast(zeros, type);
    }

    /** Tells whether a gradient has arrived since {@link #goBack}, at an array not yet closed. */
    boolean isReachedAgain() {
        return NoGradient.get(
                () -> {
                    for (NDArray result : results) {
                        if (result.isReleased()) {
                            continue;
                        }
                        try (NDArray gradient = JniUtils.getGradient((PtNDArray) result)) {
                            if (gradient != null) {
                                try (NDArray any = gradient.neq(0).any()) {
                                    if (any.getBoolean()) {
                                        return true;
                                    }
                                }
                            }
                        }
                    }
                    return false;
                });
    }

    /** Tells whether the caller has closed all outputs. */
    boolean isForgotten() {
        return results.stream().allMatch(NDArray::isReleased);
    }

    @Override
    public void close() {
        manager.close();
    }
}
