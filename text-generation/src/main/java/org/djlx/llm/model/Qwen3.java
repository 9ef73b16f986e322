// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

/** Qwen 3: Qwen 2 with norms of queries and keys, and without biases unless stated. */
class Qwen3 extends Architecture {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        boolean bias = json.flag("attention_bias", false);
        return new LayerConfig(
                LayerConfig.Attention.of(rope(json), headSize(json), bias)
                        .withHeadNorms(LayerConfig.HeadNorms.EACH_HEAD)
                        .withWindow(Qwen2.window(json, index)),
                mlp(json));
    }

    @Override
    int defaultHeadSize() {
        return 128;
    }
}
