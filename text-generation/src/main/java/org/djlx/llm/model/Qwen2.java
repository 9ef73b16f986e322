// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

/** Qwen 2 and 2.5: biases of queries, keys and values; the last layers may have a window. */
final class Qwen2 extends Architecture {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        LayerConfig.Attention attention = attention(json);
        return new LayerConfig(
                new LayerConfig.Attention(
                        attention.rope(),
                        window(json, index),
                        attention.scale(),
                        0,
                        true,
                        false,
                        LayerConfig.HeadNorms.NONE),
                mlp(json));
    }

    /** Returns the window of a layer; 0 unless {@code use_sliding_window}. */
    static int window(ConfigEntries json, int index) {
        return json.flag("use_sliding_window", false)
                ? window(json, index, index >= json.integer("max_window_layers", 28))
                : 0;
    }
}
