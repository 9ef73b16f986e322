// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.nativeops.host.Required.check;

import com.google.gson.JsonElement;
import java.util.List;
import org.djlx.llm.model.LayerConfig.Activation;
import org.djlx.llm.model.LayerConfig.Attention;
import org.djlx.llm.model.LayerConfig.Experts;
import org.djlx.llm.model.LayerConfig.HeadNorms;
import org.djlx.llm.model.LayerConfig.Mlp;
import org.djlx.llm.model.LayerConfig.Norms;

/** Reads what the layers of each {@link Architecture} compute from {@code config.json}. */
final class Layers {

    private static final String ROTATED_SHARE = "partial_rotary_factor";

    private Layers() {}

    /** Llama 1 to 3, and models with its configuration; projections may have biases. */
    static LayerConfig llama(ConfigEntries json, int index) {
        return new LayerConfig(
                attention(json, hasBias(json)), mlp(json, json.flag("mlp_bias", false)));
    }

    /**
     * Mistral: Llama with a sliding window in all layers, which newer files leave out. Phi 3 and 4,
     * too: with fused weights, LongRoPE and, in some files, no sliding window.
     */
    static LayerConfig mistral(ConfigEntries json, int index) {
        Attention attention = attention(json, false).withWindow(window(json, index, true));
        return new LayerConfig(attention, mlp(json, false));
    }

    /** Mixtral: Mistral with a mixture of experts in each layer. */
    static LayerConfig mixtral(ConfigEntries json, int index) {
        Experts experts =
                new Experts(
                        json.integer("num_local_experts", 8),
                        json.integer("num_experts_per_tok", 2),
                        true);
        return mistral(json, index).withExperts(json.integer("intermediate_size", null), experts);
    }

    /** OLMo 2: Llama with norms of results, of all queries and of all keys, none before layers. */
    static LayerConfig olmo2(ConfigEntries json, int index) {
        LayerConfig llama = llama(json, index);
        return new LayerConfig(
                llama.attention().withHeadNorms(HeadNorms.ALL_HEADS), llama.mlp(), Norms.RESULTS);
    }

    /** OLMo 3: OLMo 2 with a sliding window in three of four layers, whose rope is not scaled. */
    static LayerConfig olmo3(ConfigEntries json, int index) {
        boolean slides = slides(json, index, (index + 1) % 4 != 0);
        ConfigEntries parameters = json.entries("rope_parameters");
        ConfigEntries own = parameters.entries(slides ? "sliding_attention" : "full_attention");
        double theta = json.number("rope_theta", 10000.0);
        Rope common = rope(json);
        Rope unscaled = Rope.of(common.theta(), headSize(json));
        Rope rope =
                parameters.has("full_attention")
                        ? Rope.read(json, own, theta, headSize(json))
                        : slides ? unscaled : common;
        LayerConfig olmo2 = olmo2(json, index);
        int window = slides ? json.integer("sliding_window", 0) : 0;
        return new LayerConfig(
                olmo2.attention().withRope(rope).withWindow(window), olmo2.mlp(), Norms.RESULTS);
    }

    /**
     * EXAONE 4: norms of results as in OLMo 2, and of each head. If layers have a sliding window,
     * the layers without one have no rotary embedding.
     */
    static LayerConfig exaone4(ConfigEntries json, int index) {
        boolean isHybrid = json.has("sliding_window");
        boolean slides = isHybrid && slidesByPattern(json, index, 4);
        Attention attention =
                attention(json, false)
                        .withHeadNorms(HeadNorms.EACH_HEAD)
                        .withWindow(slides ? json.integer("sliding_window", 0) : 0);
        return new LayerConfig(
                isHybrid && !slides ? attention.withoutRotation() : attention,
                mlp(json, false),
                Norms.RESULTS);
    }

    /** ERNIE 4.5 without experts: one switch for all biases; adjacent elements are rotated. */
    static LayerConfig ernie(ConfigEntries json, int index) {
        boolean bias = json.flag("use_bias", false);
        Rope rope = rope(json).ofInterleavedPairs();
        return new LayerConfig(Attention.of(rope, headSize(json), bias), mlp(json, bias));
    }

    /** Seed-OSS: Llama with a switch of its own for the bias of the output projection. */
    static LayerConfig seedOss(ConfigEntries json, int index) {
        LayerConfig llama = llama(json, index);
        boolean outputBias = json.flag("attention_out_bias", false);
        return new LayerConfig(
                llama.attention().withBiases(hasBias(json), outputBias), llama.mlp());
    }

    /**
     * SmolLM 3: Llama with some layers, by default every fourth, without rotary embedding (NoPE).
     */
    static LayerConfig smolLm3(ConfigEntries json, int index) {
        List<Integer> rotated = json.integers("no_rope_layers"); // 1 for a layer with rope
        check(
                rotated.isEmpty() || index < rotated.size(),
                "no_rope_layers has no entry for layer %d",
                index);
        int interval = json.integer("no_rope_layer_interval", 4);
        check(interval >= 1, "no_rope_layer_interval must be 1 or more, not %d", interval);
        boolean rotates = rotated.isEmpty() ? (index + 1) % interval != 0 : rotated.get(index) != 0;
        LayerConfig llama = llama(json, index);
        boolean slides = json.flag("use_sliding_window", false);
        Attention attention =
                llama.attention().withWindow(slides ? window(json, index, !rotates) : 0);
        return new LayerConfig(rotates ? attention : attention.withoutRotation(), llama.mlp());
    }

    /** Granite 2 and 3 without experts: Llama with four multipliers. */
    static LayerConfig granite(ConfigEntries json, int index) {
        LayerConfig llama = llama(json, index);
        double scale = positive(json, "attention_multiplier");
        return new LayerConfig(llama.attention().withScale(scale), llama.mlp());
    }

    /** Granite 4 without Mamba layers and experts: Granite 3, with or without rotary embedding. */
    static LayerConfig granite4(ConfigEntries json, int index) {
        List<JsonElement> types = json.array("layer_types");
        String type = index < types.size() ? types.get(index).getAsString() : "mamba";
        check(
                type.equals("attention") || type.equals("full_attention"),
                "layer_types must be attention in every layer, not %s in layer %d: the KV cache has"
                        + " no state for Mamba layers; use a Granite 4 model without -h- in its"
                        + " name",
                type,
                index);
        int experts = json.integer("num_local_experts", 8);
        check(experts == 0, "num_local_experts must be 0, not %d", experts);
        String position = json.text("position_embedding_type", "nope");
        check(
                position.equals("rope") || position.equals("nope"),
                "position_embedding_type must be rope or nope, not '%s'",
                position);
        Attention attention = granite(json, index).attention();
        int inner = json.integer("shared_intermediate_size", null);
        return new LayerConfig(
                position.equals("rope") ? attention : attention.withoutRotation(),
                new Mlp(inner, activation(json), false, null));
    }

    /** Qwen 2 and 2.5: biases of queries, keys and values; the last layers may have a window. */
    static LayerConfig qwen2(ConfigEntries json, int index) {
        Attention attention =
                attention(json, false).withBiases(true, false).withWindow(qwenWindow(json, index));
        return new LayerConfig(attention, mlp(json, false));
    }

    /** Qwen 3: Qwen 2 with norms of queries and keys, and without biases unless stated. */
    static LayerConfig qwen3(ConfigEntries json, int index) {
        Attention attention =
                attention(json, hasBias(json))
                        .withHeadNorms(HeadNorms.EACH_HEAD)
                        .withWindow(qwenWindow(json, index));
        return new LayerConfig(attention, mlp(json, false));
    }

    /** Returns the window of a layer; 0 unless {@code use_sliding_window}. */
    private static int qwenWindow(ConfigEntries json, int index) {
        return json.flag("use_sliding_window", false)
                ? window(json, index, index >= json.integer("max_window_layers", 28))
                : 0;
    }

    /** Qwen 3 with a mixture of experts in most layers. */
    static LayerConfig qwen3Moe(ConfigEntries json, int index) {
        check(
                !json.flag("use_sliding_window", false),
                "use_sliding_window must be false: qwen3_moe with windows is not supported");
        LayerConfig dense = qwen3(json, index);
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

    /**
     * Gemma 1: Llama with GELU in its approximation by tanh and scaled embeddings. Norms multiply
     * by 1 plus their weight.
     */
    static LayerConfig gemma(ConfigEntries json, int index) {
        refuseEncoder(json);
        // The first files say gelu, but mean its approximation.
        boolean approximates =
                !json.has("hidden_activation") && json.text("hidden_act", "gelu").equals("gelu");
        int inner = json.integer("intermediate_size", null);
        return new LayerConfig(
                attention(json, hasBias(json)),
                approximates
                        ? new Mlp(inner, Activation.GELU_TANH, false, null)
                        : mlp(json, false));
    }

    /**
     * Gemma 2: Gemma with norms before and after attention and MLP, limited scores and logits, and
     * a sliding window in every second layer.
     */
    static LayerConfig gemma2(ConfigEntries json, int index) {
        return gemma2(json, window(json, index, index % 2 == 0), rope(json), HeadNorms.NONE);
    }

    private static LayerConfig gemma2(
            ConfigEntries json, int window, Rope rope, HeadNorms headNorms) {
        boolean bias = hasBias(json);
        double scale = 1 / Math.sqrt(json.number("query_pre_attn_scalar", 256.0));
        double cap = json.number("attn_logit_softcapping", 0.0);
        return new LayerConfig(
                new Attention(rope, window, scale, cap, bias, bias, headNorms, false),
                mlp(json, false),
                Norms.INPUTS_AND_RESULTS);
    }

    /**
     * Gemma 3 for text: Gemma 2 with norms of queries and keys. Layers with a sliding window have a
     * rotary embedding of their own.
     */
    static LayerConfig gemma3(ConfigEntries json, int index) {
        refuseEncoder(json);
        int window = slidesByPattern(json, index, 6) ? json.integer("sliding_window", 0) : 0;
        ConfigEntries parameters = json.entries("rope_parameters");
        ConfigEntries full =
                json.has("rope_parameters")
                        ? parameters.entries("full_attention")
                        : json.entries("rope_scaling");
        Rope rope =
                window == 0
                        ? Rope.read(json, full, json.number("rope_theta", 1e6), headSize(json))
                        : Rope.read(
                                json,
                                parameters.entries("sliding_attention"),
                                json.number("rope_local_base_freq", 10000.0),
                                headSize(json));
        return gemma2(json, window, rope, HeadNorms.EACH_HEAD);
    }

    private static void refuseEncoder(ConfigEntries json) {
        check(
                !json.flag("use_bidirectional_attention", false),
                "use_bidirectional_attention must be false: encoders are not supported");
    }

    /** GLM 4: half of each head is rotated, by pairs of adjacent elements. */
    static LayerConfig glm(ConfigEntries json, Norms norms) {
        check(
                json.has(ROTATED_SHARE) || json.entries("rope_parameters").has(ROTATED_SHARE),
                ROTATED_SHARE + " is missing");
        Rope rope = rope(json).ofInterleavedPairs();
        Attention attention = Attention.of(rope, headSize(json), false);
        return new LayerConfig(attention.withBiases(hasBias(json), false), mlp(json, false), norms);
    }

    /**
     * GPT-OSS: experts with biases and an activation of their own, attention sinks, and a sliding
     * window in every second layer. Experts in MXFP4 are read as bfloat16.
     */
    static LayerConfig gptOss(ConfigEntries json, int index) {
        require(json, "swiglu_alpha", 1.702);
        require(json, "swiglu_limit", 7.0);
        String activation = json.text("hidden_act", "silu");
        check(activation.equals("silu"), "hidden_act must be silu, not '%s'", activation);
        boolean bias = hasBias(json);
        int window = window(json, index, index % 2 == 0);
        double scale = 1 / Math.sqrt(headSize(json));
        Experts experts =
                new Experts(
                        json.integer("num_local_experts", null),
                        json.integer("num_experts_per_tok", 4),
                        true);
        int inner = json.integer("intermediate_size", null);
        return new LayerConfig(
                new Attention(rope(json), window, scale, 0, bias, bias, HeadNorms.NONE, true),
                new Mlp(inner, Activation.CLAMPED_SILU, true, experts));
    }

    private static void require(ConfigEntries json, String name, double value) {
        double own = json.number(name, value);
        check(own == value, "%s must be %s, not %s: no other is supported", name, value, own);
    }

    static double positive(ConfigEntries json, String name) {
        double value = json.number(name, 1.0);
        check(value > 0 && Double.isFinite(value), "%s must be above 0, not %s", name, value);
        return value;
    }

    private static boolean hasBias(ConfigEntries json) {
        return json.flag("attention_bias", false);
    }

    static int headSize(ConfigEntries json) {
        int hidden = json.integer("hidden_size", null);
        int heads = json.integer("num_attention_heads", null);
        ModelConfig.size("num_attention_heads", heads);
        check(
                json.has("head_dim") || hidden % heads == 0,
                "hidden_size %d is not a multiple of num_attention_heads %d, and head_dim is"
                        + " missing",
                hidden,
                heads);
        return json.integer("head_dim", hidden / heads);
    }

    /** Reads the rotary embedding that all layers share. */
    static Rope rope(ConfigEntries json) {
        // Newer files have these entries in rope_parameters.
        String name = json.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
        double theta = json.number("rope_theta", 10000.0);
        return Rope.read(json, json.entries(name), theta, headSize(json));
    }

    /** Reads attention as in Llama, over all tokens. */
    static Attention attention(ConfigEntries json, boolean bias) {
        return Attention.of(rope(json), headSize(json), bias);
    }

    static Mlp mlp(ConfigEntries json, boolean bias) {
        return new Mlp(json.integer("intermediate_size", null), activation(json), bias, null);
    }

    static Activation activation(ConfigEntries json) {
        String name = json.has("hidden_activation") ? "hidden_activation" : "hidden_act";
        String activation = json.text(name, "silu");
        check(
                List.of("silu", "gelu_pytorch_tanh").contains(activation),
                "%s must be silu or gelu_pytorch_tanh, not '%s'",
                name,
                activation);
        return activation.equals("silu") ? Activation.SILU : Activation.GELU_TANH;
    }

    /**
     * Returns the sliding window of a layer, 0 if it attends to all tokens. {@code sliding} is used
     * if {@code layer_types} is missing.
     */
    static int window(ConfigEntries json, int index, boolean sliding) {
        return slides(json, index, sliding) ? json.integer("sliding_window", 0) : 0;
    }

    /** As {@link #slides}; otherwise all layers slide but the last of each pattern. */
    private static boolean slidesByPattern(ConfigEntries json, int index, int usual) {
        if (json.has("layer_types")) {
            return slides(json, index, true);
        }
        int pattern = json.integer("sliding_window_pattern", usual);
        check(pattern >= 1, "sliding_window_pattern must be 1 or more, not %d", pattern);
        return (index + 1) % pattern != 0;
    }

    /** Returns whether {@code layer_types} gives a layer a window; {@code usual} if missing. */
    static boolean slides(ConfigEntries json, int index, boolean usual) {
        List<JsonElement> types = json.array("layer_types");
        if (types.isEmpty()) {
            return usual;
        }
        check(index < types.size(), "layer_types has no entry for layer %d", index);
        String type = types.get(index).getAsString();
        boolean slides = type.equals("sliding_attention");
        check(
                slides || type.equals("full_attention"),
                "layer_types must hold full_attention or sliding_attention, not '%s'",
                type);
        return slides;
    }
}
