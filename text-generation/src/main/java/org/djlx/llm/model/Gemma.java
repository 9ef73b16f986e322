// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.llm.model.ConfigEntries.check;

import org.djlx.llm.model.LayerConfig.Activation;

/**
 * Gemma 1: Llama with GELU in its approximation by tanh and scaled embeddings. Norms multiply by 1
 * plus their weight.
 */
class Gemma extends Architecture {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        check(
                !json.flag("use_bidirectional_attention", false),
                "use_bidirectional_attention must be false: encoders are not supported");
        boolean bias = json.flag("attention_bias", false);
        // The first files say gelu, but mean its approximation.
        boolean approximates =
                !json.has("hidden_activation") && json.text("hidden_act", "gelu").equals("gelu");
        int inner = json.integer("intermediate_size", null);
        return new LayerConfig(
                LayerConfig.Attention.of(rope(json), headSize(json), bias),
                approximates
                        ? new LayerConfig.Mlp(inner, Activation.GELU_TANH, false, null)
                        : mlp(json),
                false);
    }

    @Override
    boolean isGemma() {
        return true;
    }

    @Override
    int defaultHeadSize() {
        return 256;
    }
}
