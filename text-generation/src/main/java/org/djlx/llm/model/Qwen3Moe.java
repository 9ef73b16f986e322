// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.llm.model.ConfigEntries.check;

import org.djlx.llm.model.LayerConfig.Experts;

/** Qwen 3 with a mixture of experts in most layers. */
final class Qwen3Moe extends Qwen3 {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        check(
                !json.flag("use_sliding_window", false),
                "use_sliding_window must be false: qwen3_moe with windows is not supported");
        LayerConfig dense = super.layer(json, index);
        int step = json.integer("decoder_sparse_step", 1);
        check(step >= 1, "decoder_sparse_step must be 1 or more, not %d", step);
        if (json.integers("mlp_only_layers").contains(index) || (index + 1) % step != 0) {
            return dense;
        }
        Experts experts =
                new Experts(
                        json.integer("num_experts", json.integer("num_local_experts", 128)),
                        json.integer("num_experts_per_tok", 8),
                        json.flag("norm_topk_prob", false));
        return dense.withExperts(json.integer("moe_intermediate_size", null), experts);
    }
}
