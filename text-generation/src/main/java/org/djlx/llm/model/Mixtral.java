// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.util.Map;
import org.djlx.llm.model.LayerConfig.Experts;

/** Mixtral: Mistral with a mixture of experts in each layer. */
final class Mixtral extends Mistral {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        Experts experts =
                new Experts(
                        json.integer("num_local_experts", 8),
                        json.integer("num_experts_per_tok", 2),
                        true);
        return super.layer(json, index)
                .withExperts(json.integer("intermediate_size", null), experts);
    }

    @Override
    Map<TensorPart, String> names() {
        return Map.of(
                TensorPart.ROUTER, "block_sparse_moe.gate",
                TensorPart.EXPERT_GATE, "block_sparse_moe.experts.%d.w1",
                TensorPart.EXPERT_UP, "block_sparse_moe.experts.%d.w3",
                TensorPart.EXPERT_DOWN, "block_sparse_moe.experts.%d.w2");
    }
}
