// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

/** Seed-OSS: Llama with a switch of its own for the bias of the output projection. */
final class SeedOss extends Architecture {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        LayerConfig.Attention plain = attention(json);
        LayerConfig.Attention attention =
                new LayerConfig.Attention(
                        plain.rope(),
                        window(json, index, false),
                        plain.scale(),
                        0,
                        json.flag("attention_bias", true),
                        json.flag("attention_out_bias", false),
                        LayerConfig.HeadNorms.NONE);
        LayerConfig.Mlp mlp =
                new LayerConfig.Mlp(
                        json.integer("intermediate_size", null),
                        activation(json),
                        json.flag("mlp_bias", false),
                        null);
        return new LayerConfig(attention, mlp);
    }

    @Override
    int defaultHeadSize() {
        return 128;
    }
}
