// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Parameter;
import java.util.ArrayList;
import java.util.List;
import org.djlx.nativeops.torch.Torch;

/** A stage's parameters of one element type in a row, and this rank's shard of the row. */
final class FlatParameter {

    /**
     * A parameter in a flat parameter, and this rank's part of it.
     *
     * @param parameters the parameter, and others that have the same array
     * @param offset where the parameter begins in the row
     * @param owned the rank's part, a view of the shard; null if the rank has no part
     * @param from where the rank's part begins in the shard
     * @param casts whether every layer that uses the parameter casts it itself
     * @param copies how many ranks, tensor-parallel ones included, have the same part
     */
    record Part(
            String name,
            List<Parameter> parameters,
            String id,
            Shape shape,
            long offset,
            NDArray owned,
            long from,
            boolean casts,
            int copies) {

        Parameter parameter() {
            return parameters.get(0);
        }

        /** Returns whether this rank has elements of the parameter, and updates them. */
        boolean isTrained() {
            return owned != null && parameter().requiresGradient();
        }
    }

    final List<Part> parts = new ArrayList<>();
    final NDArray shard;
    NDArray gradient; // of the shard; null for zeros

    FlatParameter(NDArray shard) {
        this.shard = shard;
    }

    /** Returns whether its gradients are reduced; the same on all ranks. */
    boolean isTrained() {
        return parts.stream().anyMatch(part -> part.parameter().requiresGradient());
    }

    NDArray gradient(Part part) {
        return Torch.narrow(gradient, 0, part.from, part.owned.size());
    }
}
