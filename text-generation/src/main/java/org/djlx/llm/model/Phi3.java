// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.util.Map;

/** Phi 3 and 4: Mistral with fused weights, LongRoPE and, in some files, no sliding window. */
final class Phi3 extends Mistral {

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
