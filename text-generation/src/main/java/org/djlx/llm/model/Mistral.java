// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

/** Mistral: Llama with a sliding window in all layers, which newer files leave out. */
class Mistral extends Architecture {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        return new LayerConfig(attention(json).withWindow(window(json, index, true)), mlp(json));
    }
}
