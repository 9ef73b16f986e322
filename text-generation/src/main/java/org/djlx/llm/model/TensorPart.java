// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import java.util.List;

/**
 * The parts of a layer's weights, by the names of most architectures. Parts that an architecture
 * gives the same name are rows of one tensor, in the order of this list.
 */
public enum TensorPart {
    ATTENTION_NORM("input_layernorm", Division.NONE),
    QUERIES("self_attn.q_proj", Division.ROWS),
    KEYS("self_attn.k_proj", Division.KV_HEADS),
    VALUES("self_attn.v_proj", Division.KV_HEADS),
    QUERY_NORM("self_attn.q_norm", Division.NONE),
    KEY_NORM("self_attn.k_norm", Division.NONE),
    SINKS("self_attn.sinks", Division.ROWS),
    ATTENTION_OUT("self_attn.o_proj", Division.COLUMNS),
    ATTENTION_POST_NORM("post_attention_layernorm", Division.NONE),
    MLP_NORM("post_attention_layernorm", Division.NONE),
    ROUTER("mlp.gate", Division.NONE),
    GATE("mlp.gate_proj", Division.ROWS),
    UP("mlp.up_proj", Division.ROWS),
    DOWN("mlp.down_proj", Division.COLUMNS),
    EXPERT_GATE("mlp.experts.%d.gate_proj", Division.ROWS),
    EXPERT_UP("mlp.experts.%d.up_proj", Division.ROWS),
    EXPERT_DOWN("mlp.experts.%d.down_proj", Division.COLUMNS),
    MLP_POST_NORM("post_feedforward_layernorm", Division.NONE);

    static final List<TensorPart> MLP = List.of(GATE, UP, DOWN);

    static final List<TensorPart> EXPERT = List.of(EXPERT_GATE, EXPERT_UP, EXPERT_DOWN);

    /** How ranks divide a part. */
    public enum Division {
        /** Each rank has all. */
        NONE,
        /** By outputs: column parallel. */
        ROWS,
        /** By outputs; several ranks have the same KV head if there are fewer than ranks. */
        KV_HEADS,
        /** By inputs: row parallel. A bias is not divided. */
        COLUMNS
    }

    final String defaultName; // within the layer, without .weight but of sinks; %d is the expert
    final Division division;

    TensorPart(String defaultName, Division division) {
        this.defaultName = defaultName;
        this.division = division;
    }
}
