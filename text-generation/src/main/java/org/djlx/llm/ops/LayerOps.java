// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import org.djlx.llm.model.LayerConfig;

/**
 * The operators of a {@link ForwardPass} over the tokens of one step, on one rank.
 *
 * <p>An implementation holds the residual stream and this rank's partial sum: the result of the
 * last row-parallel projection, not yet added to the stream. The next {@link #project}, {@link
 * #projectGated} or {@link #logits} adds the partial sums of all ranks, so an implementation can
 * fuse all-reduce, addition, norm and matmul.
 *
 * @param <T> activations passed from one operator to the next, a row for each token; valid until
 *     the next projection
 */
interface LayerOps<T> {

    /**
     * Adds the partial sums of all ranks, after an RMSNorm by {@code postNorm} unless it is null,
     * to the residual stream. Then multiplies the RMSNorm of the stream, by {@code norm}, or the
     * stream if that is null, by a column-parallel projection, bias included.
     */
    T project(NDArray postNorm, NDArray norm, ModelWeights.Linear linear);

    /** As {@link #project} with gate and up projection; returns {@code activation(gate) · up}. */
    T projectGated(NDArray postNorm, NDArray norm, ModelWeights.Linear gateUp, LayerConfig.Mlp mlp);

    /**
     * Applies head norms and rotary embedding, writes keys and values to the cache, and computes
     * the attention of this rank's heads.
     */
    T attend(int layer, T qkv);

    /** Multiplies by a row-parallel projection. The result is the new partial sum. */
    void projectBack(T x, ModelWeights.Linear linear);

    /**
     * Computes a mixture of experts, instead of {@link #projectGated} and {@link #projectBack}.
     * Each rank computes its part of every expert, and all ranks choose the same experts.
     */
    default void experts(
            NDArray postNorm, NDArray norm, ModelWeights.Layer layer, LayerConfig.Mlp mlp) {
        throw new IllegalStateException("these operators compute no experts");
    }

    /**
     * As {@link #project} with the output projection: the logits of this rank's part of the
     * vocabulary, a row for each chunk that needs them; in a CUDA graph, a row for each row of the
     * step. Null without such rows.
     */
    NDArray logits(NDArray postNorm, NDArray norm, ModelWeights.Linear output);
}
