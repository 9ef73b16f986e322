// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.llm.model.ConfigEntries.check;

import java.util.List;

/** SmolLM 3: Llama with some layers, by default every fourth, without rotary embedding (NoPE). */
final class SmolLm3 extends Llama {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        List<Integer> rotated = json.integers("no_rope_layers"); // 1 for a layer with rope
        check(
                rotated.isEmpty() || index < rotated.size(),
                "no_rope_layers has no entry for layer %d",
                index);
        int interval = json.integer("no_rope_layer_interval", 4);
        check(interval >= 1, "no_rope_layer_interval must be 1 or more, not %d", interval);
        boolean rotates = rotated.isEmpty() ? (index + 1) % interval != 0 : rotated.get(index) != 0;
        LayerConfig llama = super.layer(json, index);
        boolean slides = json.flag("use_sliding_window", false);
        LayerConfig.Attention attention =
                llama.attention().withWindow(slides ? window(json, index, !rotates) : 0);
        return new LayerConfig(rotates ? attention : attention.withoutRotation(), llama.mlp());
    }

    @Override
    boolean isTied() {
        return true;
    }
}
