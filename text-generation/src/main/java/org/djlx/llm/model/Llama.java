// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

/** Llama 1 to 3, and models with its configuration; projections may have biases. */
class Llama extends Architecture {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        boolean bias = json.flag("attention_bias", false);
        LayerConfig.Mlp mlp = mlp(json);
        return new LayerConfig(
                LayerConfig.Attention.of(rope(json), headSize(json), bias),
                new LayerConfig.Mlp(
                        mlp.intermediateSize(),
                        mlp.activation(),
                        json.flag("mlp_bias", false),
                        null));
    }
}
