// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.llm.model.ConfigEntries.check;

import org.djlx.nativeops.torch.ScalarType;

/**
 * Granite without experts: Llama with four multipliers.
 *
 * <p>Attention and MLP are multiplied by {@code residual_multiplier} before they are added to the
 * residual stream. Only norms read the stream, so the stream is divided by it instead: embeddings
 * are, and epsilon by its square.
 */
final class Granite extends Llama {

    private static double positive(ConfigEntries json, String name) {
        double value = json.number(name, 1.0);
        check(value > 0 && Double.isFinite(value), "%s must be above 0, not %s", name, value);
        return value;
    }

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        LayerConfig llama = super.layer(json, index);
        double scale = positive(json, "attention_multiplier");
        return new LayerConfig(llama.attention().withScale(scale), llama.mlp());
    }

    @Override
    double epsilon(ConfigEntries json) {
        return super.epsilon(json) / Math.pow(positive(json, "residual_multiplier"), 2);
    }

    @Override
    double embeddingScale(ConfigEntries json, ScalarType type) {
        return positive(json, "embedding_multiplier") / positive(json, "residual_multiplier");
    }

    @Override
    double logitScale(ConfigEntries json) {
        return 1 / positive(json, "logits_scaling");
    }
}
