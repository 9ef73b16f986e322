// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The names that Hugging Face's files give the tensors of a GGUF file, and how they differ. */
final class GgufNames {

    private static final Pattern OF_LAYER = Pattern.compile("blk\\.(\\d{1,6})\\.(\\w+)(\\.\\w+)");

    private static final Map<String, String> WHOLE =
            Map.of(
                    "token_embd.weight", "model.embed_tokens.weight",
                    "output_norm.weight", "model.norm.weight",
                    "output.weight", "lm_head.weight");

    private static final Map<String, String> PARTS =
            Map.ofEntries(
                    Map.entry("attn_norm", "input_layernorm"),
                    Map.entry("attn_q", "self_attn.q_proj"),
                    Map.entry("attn_k", "self_attn.k_proj"),
                    Map.entry("attn_v", "self_attn.v_proj"),
                    Map.entry("attn_qkv", "self_attn.qkv_proj"),
                    Map.entry("attn_output", "self_attn.o_proj"),
                    Map.entry("attn_q_norm", "self_attn.q_norm"),
                    Map.entry("attn_k_norm", "self_attn.k_norm"),
                    Map.entry("ffn_norm", "post_attention_layernorm"),
                    Map.entry("ffn_gate", "mlp.gate_proj"),
                    Map.entry("ffn_up", "mlp.up_proj"),
                    Map.entry("ffn_down", "mlp.down_proj"),
                    Map.entry("ffn_gate_inp", "mlp.gate"),
                    Map.entry("ffn_gate_exps", "mlp.experts.%d.gate_proj"),
                    Map.entry("ffn_up_exps", "mlp.experts.%d.up_proj"),
                    Map.entry("ffn_down_exps", "mlp.experts.%d.down_proj"));

    private static final Map<String, String> POST_NORMS =
            Map.of(
                    "ffn_norm", "pre_feedforward_layernorm",
                    "post_attention_norm", "post_attention_layernorm",
                    "post_ffw_norm", "post_feedforward_layernorm");

    private static final Map<String, String> MIXTRAL =
            Map.of(
                    "ffn_gate_inp", "block_sparse_moe.gate",
                    "ffn_gate_exps", "block_sparse_moe.experts.%d.w1",
                    "ffn_up_exps", "block_sparse_moe.experts.%d.w3",
                    "ffn_down_exps", "block_sparse_moe.experts.%d.w2");

    private static final Set<String> INTERLEAVED = Set.of("granite", "llama", "smollm3");

    /** Tensors that are read as a part of the configuration. */
    private static final Set<String> FACTORS =
            Set.of("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight");

    private final Map<String, String> parts = new HashMap<>(PARTS);
    private final String architecture;
    private final long headSize;

    GgufNames(GgufFile file) {
        GgufConfig config = new GgufConfig(file);
        architecture = config.architecture();
        headSize = config.headSize();
        if (architecture.matches("gemma[23]|olmo2")) {
            parts.putAll(POST_NORMS);
        } else if (architecture.equals("phi3")) {
            parts.put("ffn_up", "mlp.gate_up_proj");
        } else if (architecture.equals("llama")) {
            parts.putAll(MIXTRAL);
        }
    }

    /**
     * Returns the name of a tensor, with {@code %d} for the number of an expert if it has those of
     * all; its own if it is unknown, empty if it is not one of the weights.
     */
    Optional<String> of(GgufFile.Tensor tensor) {
        String name = tensor.name();
        // Newer files have them in each layer.
        if (FACTORS.contains(name.replaceFirst("^blk\\.\\d+\\.", ""))) {
            return Optional.empty();
        }
        Matcher layer = OF_LAYER.matcher(name);
        if (layer.matches() && parts.containsKey(layer.group(2))) {
            String part = parts.get(layer.group(2));
            return Optional.of("model.layers." + layer.group(1) + "." + part + layer.group(3));
        }
        return Optional.of(WHOLE.getOrDefault(name, name.replace("%", "%%")));
    }

    /**
     * Returns the rows of a head if halves of heads are interleaved: llama.cpp rotates neighbours
     * in {@link #INTERLEAVED} architectures.
     */
    long headRows(GgufFile.Tensor tensor) {
        boolean isRotated = tensor.name().matches("blk\\.\\d+\\.attn_[qk]\\.(weight|bias)");
        return INTERLEAVED.contains(architecture) && isRotated ? headSize : 0;
    }

    /** Returns what llama.cpp's files have added to each number: 1 to norms of Gemmas. */
    int addedTo(GgufFile.Tensor tensor) {
        return architecture.startsWith("gemma") && tensor.name().endsWith("norm.weight") ? 1 : 0;
    }
}
