// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import org.djlx.llm.model.LayerConfig;

/** The forward pass of all models, on all devices. */
final class ForwardPass {

    private ForwardPass() {}

    /** Computes layers from {@code first} to {@code end}, exclusive. */
    static <T> void layers(RankModel model, LayerOps<T> ops, int first, int end) {
        for (int i = first; i < end; i++) {
            ModelWeights.Layer layer = model.weights().layer(i);
            LayerConfig.Mlp mlp = model.config().layer(i).mlp();
            T qkv =
                    ops.project(
                            postNorm(model, i), layer.attentionNorm(), layer.queriesKeysValues());
            ops.projectBack(ops.attend(i, qkv), layer.attentionOut());
            if (layer.router() == null) {
                T inner =
                        ops.projectGated(
                                layer.attentionPostNorm(),
                                layer.mlpNorm(),
                                layer.mlp().gateUp(),
                                mlp);
                ops.projectBack(inner, layer.mlp().down());
            } else {
                ops.experts(layer.attentionPostNorm(), layer.mlpNorm(), layer, mlp);
            }
        }
    }

    /** Computes the logits after the last layer; see {@link LayerOps#logits}. */
    static NDArray logits(RankModel model, LayerOps<?> ops) {
        NDArray postNorm = postNorm(model, model.config().layers());
        return ops.logits(postNorm, model.weights().norm(), model.weights().output());
    }

    /** Computes the norm after the last layer, a row for each token. */
    static NDArray norms(RankModel model, ArrayOps ops) {
        NDArray postNorm = postNorm(model, model.config().layers());
        return ops.addAndNorm(postNorm, model.weights().norm()).elements();
    }

    /** Returns the norm of the MLP's result before a layer; null if there is none. */
    private static NDArray postNorm(RankModel model, int layer) {
        return layer == 0 ? null : model.weights().layer(layer - 1).mlpPostNorm();
    }
}
