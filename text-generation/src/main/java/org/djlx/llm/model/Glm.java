// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.llm.model.ConfigEntries.check;

import java.util.Map;

/** GLM 4: half of each head is rotated, by pairs of adjacent elements. */
final class Glm extends Architecture {

    private static final String SHARE = "partial_rotary_factor";

    private final LayerConfig.Norms norms;

    /** Creates the architecture of the first GLM 4 (glm) or of those of 2025 (glm4). */
    Glm(LayerConfig.Norms norms) {
        this.norms = norms;
    }

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        check(json.has(SHARE) || json.entries("rope_parameters").has(SHARE), SHARE + " is missing");
        int size = headSize(json);
        LayerConfig.Attention attention =
                new LayerConfig.Attention(
                        rope(json).ofInterleavedPairs(),
                        0,
                        1 / Math.sqrt(size),
                        0,
                        json.flag("attention_bias", true),
                        false,
                        LayerConfig.HeadNorms.NONE);
        return new LayerConfig(attention, mlp(json), norms);
    }

    @Override
    Map<TensorPart, String> names() {
        return Map.of(
                TensorPart.GATE, "mlp.gate_up_proj",
                TensorPart.UP, "mlp.gate_up_proj",
                TensorPart.ATTENTION_POST_NORM, "post_self_attn_layernorm",
                TensorPart.MLP_POST_NORM, "post_mlp_layernorm");
    }

    @Override
    int defaultHeadSize() {
        return 128;
    }
}
