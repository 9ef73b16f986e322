// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.util.Map;
import org.djlx.llm.model.LayerConfig.HeadNorms;

/**
 * Gemma 2: Gemma with norms before and after attention and MLP, limited scores and logits, and a
 * sliding window in every second layer.
 */
class Gemma2 extends Gemma {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        return layer(json, window(json, index, index % 2 == 0), rope(json), HeadNorms.NONE);
    }

    LayerConfig layer(ConfigEntries json, int window, Rope rope, HeadNorms headNorms) {
        boolean bias = json.flag("attention_bias", false);
        double scale = 1 / Math.sqrt(json.number("query_pre_attn_scalar", 256.0));
        double cap = json.number("attn_logit_softcapping", 0.0);
        return new LayerConfig(
                new LayerConfig.Attention(rope, window, scale, cap, bias, bias, headNorms),
                mlp(json),
                LayerConfig.Norms.INPUTS_AND_RESULTS);
    }

    @Override
    Map<TensorPart, String> names() {
        return Map.of(TensorPart.MLP_NORM, "pre_feedforward_layernorm");
    }
}
