// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.djlx.nativeops.host.Required;

/** Writes the metadata of a GGUF file as the entries of a {@code config.json}. */
record GgufConfig(GgufFile file) {

    /** The architectures by llama.cpp's names; mixtral's name is llama. */
    private static final Set<String> SUPPORTED =
            new TreeSet<>(
                    Set.of(
                            "gemma",
                            "gemma2",
                            "gemma3",
                            "granite",
                            "llama",
                            "olmo2",
                            "phi3",
                            "qwen2",
                            "qwen3",
                            "qwen3moe",
                            "smollm3"));

    /** Layers of the models of 27 billion parameters, whose scores have another scale. */
    private static final Map<String, Long> LARGE_GEMMAS = Map.of("gemma2", 46L, "gemma3", 62L);

    /** The entries of {@code config.json} that have a number of the metadata. */
    private static final Map<String, String> NUMBERS =
            Map.ofEntries(
                    Map.entry("hidden_size", "embedding_length"),
                    Map.entry("num_hidden_layers", "block_count"),
                    Map.entry("max_position_embeddings", "context_length"),
                    Map.entry("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
                    Map.entry("rope_theta", "rope.freq_base"),
                    Map.entry("rope_local_base_freq", "rope.freq_base_swa"),
                    Map.entry("sliding_window", "attention.sliding_window"),
                    Map.entry("attn_logit_softcapping", "attn_logit_softcapping"),
                    Map.entry("final_logit_softcapping", "final_logit_softcapping"),
                    Map.entry("moe_intermediate_size", "expert_feed_forward_length"),
                    Map.entry("attention_multiplier", "attention.scale"),
                    Map.entry("embedding_multiplier", "embedding_scale"),
                    Map.entry("residual_multiplier", "residual_scale"),
                    Map.entry("logits_scaling", "logit_scale"));

    /** Throws an IllegalArgumentException if the architecture is not supported. */
    String architecture() {
        Object name = file.metadata().get("general.architecture");
        Required.check(
                name instanceof String && SUPPORTED.contains(name),
                "the architecture '%s' is not supported; supported are %s",
                name,
                SUPPORTED);
        return (String) name;
    }

    long headSize() {
        Number size = optional("attention.key_length");
        if (size != null) {
            return size.longValue();
        }
        long heads = number("attention.head_count").longValue();
        Required.check(heads > 0, "attention.head_count is %d", heads);
        return number("embedding_length").longValue() / heads;
    }

    private Object value(String key) {
        return file.metadata().get(architecture() + "." + key);
    }

    /** Returns a number of the architecture; null if it is missing. */
    private Number optional(String key) {
        Object value = value(key);
        if (value instanceof List<?> each && !each.isEmpty()) { // of each layer
            Required.check(
                    each.stream().distinct().count() == 1,
                    "%s differs from layer to layer, which is not supported",
                    key);
            value = each.get(0);
        }
        Required.check(
                value == null || value instanceof Number,
                "%s must be a number, not %s",
                key,
                value);
        return (Number) value;
    }

    private Number number(String key) {
        Number value = optional(key);
        Required.check(value != null, "it has no %s.%s", architecture(), key);
        return value;
    }

    /** Returns the entries, apart from those of the tokenizer. */
    JsonObject json() throws IOException {
        String architecture = architecture();
        long experts = optional("expert_count") == null ? 0 : number("expert_count").longValue();
        Map<String, Object> json = new LinkedHashMap<>();
        json.put(
                "model_type",
                switch (architecture) {
                    case "llama" -> experts == 0 ? "llama" : "mixtral";
                    case "qwen3moe" -> "qwen3_moe";
                    case "gemma3" -> "gemma3_text";
                    default -> architecture;
                });
        NUMBERS.forEach(
                (name, key) -> {
                    Number number = optional(key);
                    if (number != null) {
                        json.put(name, number);
                    }
                });
        GgufFile.Tensor embedding = file.tensors().get("token_embd.weight");
        Required.check(embedding != null, "it has no tensor token_embd.weight");
        Number heads = number("attention.head_count");
        Number kvHeads = optional("attention.head_count_kv");
        json.put("vocab_size", embedding.rows());
        json.put("num_attention_heads", heads);
        json.put("num_key_value_heads", kvHeads == null ? heads : kvHeads);
        json.put("head_dim", headSize());
        json.put("intermediate_size", number("feed_forward_length"));
        json.put("tie_word_embeddings", !file.tensors().containsKey("output.weight"));
        boolean biased = file.tensors().containsKey("blk.0.attn_q.bias");
        json.put("attention_bias", biased);
        json.put("mlp_bias", file.tensors().containsKey("blk.0.ffn_gate.bias"));
        if (experts != 0) {
            json.put("num_local_experts", experts);
            json.put("num_experts", experts);
            json.put("num_experts_per_tok", number("expert_used_count"));
            json.put("norm_topk_prob", true);
        }
        if (architecture.startsWith("gemma")) {
            json.put("hidden_activation", "gelu_pytorch_tanh");
            Long large = LARGE_GEMMAS.get(architecture);
            boolean isLarge = large != null && large == number("block_count").longValue();
            long width = number("embedding_length").longValue();
            json.put("query_pre_attn_scalar", isLarge ? width / heads.longValue() : headSize());
            json.putIfAbsent("sliding_window", 4096);
            if (architecture.equals("gemma2")) {
                json.putIfAbsent("attn_logit_softcapping", 50.0);
                json.putIfAbsent("final_logit_softcapping", 30.0);
            }
        } else if (!architecture.equals("phi3")) {
            json.remove("sliding_window");
        }
        Number rotated = optional("rope.dimension_count");
        if (rotated != null && rotated.longValue() != headSize()) {
            json.put("partial_rotary_factor", rotated.doubleValue() / headSize());
        }
        Map<String, Object> scaling = scaling(json);
        if (!scaling.isEmpty()) {
            json.put("rope_scaling", scaling);
        }
        json.put("torch_dtype", type());
        return new Gson().toJsonTree(json).getAsJsonObject();
    }

    /** Returns the entries of rope_scaling; empty if there is none. */
    private Map<String, Object> scaling(Map<String, Object> json) throws IOException {
        Map<String, Object> scaling = new LinkedHashMap<>();
        Number original = optional("rope.scaling.original_context_length");
        if (original != null) {
            scaling.put("original_max_position_embeddings", original);
        }
        List<Float> longer = factors("rope_factors_long.weight");
        List<Float> shorter = factors("rope_factors_short.weight");
        List<Float> all = factors("rope_freqs.weight");
        if (!all.isEmpty() || !longer.isEmpty()) {
            Number magnitude = optional("rope.scaling.attn_factor");
            scaling.put("rope_type", "longrope");
            scaling.put("short_factor", all.isEmpty() ? shorter : all);
            scaling.put("long_factor", all.isEmpty() ? longer : all);
            if (magnitude != null || !all.isEmpty()) {
                scaling.put("attention_factor", magnitude == null ? 1 : magnitude);
            }
            scaling.putIfAbsent(
                    "original_max_position_embeddings", json.get("max_position_embeddings"));
            return scaling;
        }
        Number factor = optional("rope.scaling.factor");
        Object type = value("rope.scaling.type");
        if (factor == null || factor.doubleValue() == 0 || "none".equals(type)) {
            return Map.of();
        }
        scaling.put("rope_type", type == null ? "linear" : type);
        scaling.put("factor", factor);
        return scaling;
    }

    private List<Float> factors(String name) throws IOException {
        GgufFile.Tensor tensor = file.tensors().get(name);
        if (tensor == null) {
            tensor = file.tensors().get("blk.0." + name);
        }
        List<Float> factors = new ArrayList<>();
        if (tensor != null) {
            Required.check(
                    tensor.type() == GgufType.F32 && tensor.rows() == 1 && tensor.columns() < 1024,
                    "the tensor %s must be up to 1023 numbers of F32",
                    name);
            ByteBuffer bytes = ByteBuffer.allocate((int) tensor.rowBytes());
            try (FileChannel channel = FileChannel.open(file.path())) {
                channel.read(bytes, tensor.offset());
            }
            bytes.flip().order(ByteOrder.LITTLE_ENDIAN);
            while (bytes.hasRemaining()) {
                factors.add(bytes.getFloat());
            }
        }
        return factors;
    }

    /**
     * Returns the type to compute in: that of the first layer's values, float16 for quantized ones.
     * The activations of Gemmas do not fit float16.
     */
    private String type() {
        GgufFile.Tensor values = file.tensors().get("blk.0.attn_v.weight");
        values = values == null ? file.tensors().get("blk.0.attn_qkv.weight") : values;
        GgufType type = values == null ? GgufType.F32 : values.type();
        return switch (type) {
            case F32 -> "float32";
            case BF16 -> "bfloat16";
            default -> architecture().startsWith("gemma") ? "bfloat16" : "float16";
        };
    }
}
