// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.llm.model.ConfigEntries.check;

import java.util.Map;
import org.djlx.llm.model.LayerConfig.Activation;
import org.djlx.llm.model.LayerConfig.Experts;
import org.djlx.llm.model.LayerConfig.HeadNorms;

/**
 * GPT-OSS: experts with biases and an activation of their own, attention sinks, and a sliding
 * window in every second layer. Experts in MXFP4 are read as bfloat16.
 */
final class GptOss extends Architecture {

    private static void require(ConfigEntries json, String name, double value) {
        double own = json.number(name, value);
        check(own == value, "%s must be %s, not %s: no other is supported", name, value, own);
    }

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        require(json, "swiglu_alpha", 1.702);
        require(json, "swiglu_limit", 7.0);
        String activation = json.text("hidden_act", "silu");
        check(activation.equals("silu"), "hidden_act must be silu, not '%s'", activation);
        boolean bias = json.flag("attention_bias", true);
        LayerConfig.Attention attention =
                new LayerConfig.Attention(
                        rope(json),
                        window(json, index, index % 2 == 0),
                        1 / Math.sqrt(headSize(json)),
                        0,
                        bias,
                        bias,
                        HeadNorms.NONE,
                        true);
        Experts experts =
                new Experts(
                        json.integer("num_local_experts", null),
                        json.integer("num_experts_per_tok", 4),
                        true);
        int inner = json.integer("intermediate_size", null);
        LayerConfig.Mlp mlp = new LayerConfig.Mlp(inner, Activation.CLAMPED_SILU, true, experts);
        return new LayerConfig(attention, mlp);
    }

    @Override
    Map<TensorPart, String> names() {
        return Map.of(TensorPart.ROUTER, "mlp.router");
    }

    @Override
    int defaultHeadSize() {
        return 64;
    }

    /** Files in MXFP4 do not say. */
    @Override
    String defaultType() {
        return "bfloat16";
    }

    @Override
    boolean readsMxfp4() {
        return true;
    }
}
