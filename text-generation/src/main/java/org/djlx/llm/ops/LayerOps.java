// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import org.djlx.llm.model.LayerConfig;

/**
 * The operators of a {@link ForwardPass} over the tokens of one step, on one rank. An
 * implementation holds the residual stream and the partial sum: this rank's result of the last
 * row-parallel projection, which all ranks' projections add to the residual stream. The next
 * projection adds it, so implementations fuse all-reduce, addition, norm and matmul as they can.
 *
 * @param <T> the rows that one operator hands to the next; valid until the next projection
 */
interface LayerOps<T> {

    /**
     * Adds the partial sums of all ranks to the residual stream, and multiplies the RMSNorm of the
     * stream by a column-parallel projection, bias included.
     *
     * @param postNorm the norm of the sum before it is added; null if there is none
     * @param norm the norm of the stream
     */
    T project(NDArray postNorm, NDArray norm, ModelWeights.Linear linear);

    /** As {@link #project}, for gates and values: returns {@code activation(gate) · value}. */
    T projectGated(NDArray postNorm, NDArray norm, ModelWeights.Linear gateUp, LayerConfig.Mlp mlp);

    /**
     * Applies head norms and rotary embedding, writes keys and values to the cache, and computes
     * the attention of this rank's heads.
     *
     * @param layer the index of the layer
     * @param qkv queries, keys and values of {@link #project}
     */
    T attend(int layer, T qkv);

    /** Multiplies by a row-parallel projection: the next partial sum. */
    void projectBack(T x, ModelWeights.Linear linear);

    /**
     * Computes a mixture of experts as {@link #projectGated} and {@link #projectBack}. Each rank
     * computes its part of every expert; the host chooses the experts, all ranks the same.
     */
    default void experts(
            NDArray postNorm, NDArray norm, ModelWeights.Layer layer, LayerConfig.Mlp mlp) {
        throw new IllegalStateException("these operators compute no experts");
    }

    /**
     * Computes the logits of this rank's part of the vocabulary, as {@link #project} does.
     *
     * @return a row for each chunk that needs logits, or for each row of a step in a CUDA graph;
     *     null if there is none
     */
    NDArray logits(NDArray postNorm, NDArray norm, ModelWeights.Linear output);
}
