// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.model;

import java.util.Map;

/** Phi 3 and 4: Llama with fused weights, LongRoPE and, in some files, a sliding window. */
final class Phi3 extends Architecture {

    @Override
    LayerConfig layer(ConfigEntries json, int index) {
        return new LayerConfig(
                attention(json).withWindow(window(json, index, true)), mlp(json), false);
    }

    @Override
    Map<TensorPart, String> names() {
        return Map.of(
                TensorPart.QUERIES, "self_attn.qkv_proj",
                TensorPart.KEYS, "self_attn.qkv_proj",
                TensorPart.VALUES, "self_attn.qkv_proj",
                TensorPart.GATE, "mlp.gate_up_proj",
                TensorPart.UP, "mlp.gate_up_proj");
    }
}
