// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.util.Map;

/** An architecture as one is added to {@link Architecture} and {@link Layers}. */
final class SeedOss {

    static final Architecture ARCHITECTURE =
            new Architecture(
                    SeedOss::seedOss, Map.of("head_dim", 128, "attention_bias", true), Map.of());

    private SeedOss() {}

    /** Seed-OSS: Llama with a switch of its own for the bias of the output projection. */
    static LayerConfig seedOss(ConfigEntries json, int index) {
        LayerConfig llama = Layers.llama(json, index);
        LayerConfig.Attention attention =
                llama.attention()
                        .withBiases(
                                json.flag("attention_bias", false),
                                json.flag("attention_out_bias", false))
                        .withWindow(Layers.window(json, index, false));
        return new LayerConfig(attention, llama.mlp());
    }
}
