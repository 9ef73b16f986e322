// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

/** OLMo 2: Llama with norms of results, of all queries and of all keys, and none before layers. */
final class Olmo2 extends Llama {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        LayerConfig llama = super.layer(json, index);
        return new LayerConfig(
                llama.attention().withHeadNorms(LayerConfig.HeadNorms.ALL_HEADS),
                llama.mlp(),
                LayerConfig.Norms.RESULTS);
    }
}
