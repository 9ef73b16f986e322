// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.llm.model.ConfigEntries.check;

import org.djlx.llm.model.LayerConfig.Activation;
import org.djlx.nativeops.torch.ScalarType;

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
                        : mlp(json));
    }

    /** Returns a factor that is rounded to the model's type, as in transformers. */
    @Override
    double embeddingScale(ConfigEntries json, ScalarType type) {
        double scale = Math.sqrt(json.integer("hidden_size", null));
        int bits =
                switch (type) {
                    case BFLOAT16 -> 8;
                    case FLOAT16 -> 11;
                    default -> 24;
                };
        double unit = Math.scalb(1.0, Math.getExponent(scale) + 1 - bits);
        return Math.rint(scale / unit) * unit;
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
