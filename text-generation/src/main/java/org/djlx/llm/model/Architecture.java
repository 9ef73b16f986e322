// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.llm.model.ConfigEntries.check;

import com.google.gson.JsonElement;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.djlx.llm.model.LayerConfig.Activation;
import org.djlx.llm.model.LayerConfig.Norms;
import org.djlx.nativeops.torch.ScalarType;

/**
 * What is particular to an architecture: how its {@code config.json} is read, where its weights
 * are, and what its layers compute. A subclass describes its layers as data; one forward pass
 * computes them. To add one, write a subclass and add it to {@link #ALL}; see {@code
 * docs/design/models.md}.
 */
abstract class Architecture {

    /** The architectures by {@code model_type}. */
    private static final Map<String, Architecture> ALL =
            new TreeMap<>(
                    Map.ofEntries(
                            Map.entry("gemma", new Gemma()),
                            Map.entry("gemma2", new Gemma2()),
                            Map.entry("gemma3_text", new Gemma3()),
                            Map.entry("glm", new Glm(Norms.INPUTS)),
                            Map.entry("glm4", new Glm(Norms.INPUTS_AND_RESULTS)),
                            Map.entry("gpt_oss", new GptOss()),
                            Map.entry("granite", new Granite()),
                            Map.entry("llama", new Llama()),
                            Map.entry("mistral", new Mistral()),
                            Map.entry("mixtral", new Mixtral()),
                            Map.entry("olmo2", new Olmo2()),
                            Map.entry("phi3", new Phi3()),
                            Map.entry("qwen2", new Qwen2()),
                            Map.entry("qwen3", new Qwen3()),
                            Map.entry("qwen3_moe", new Qwen3Moe()),
                            Map.entry("smollm3", new SmolLm3())));

    static ModelConfig read(ConfigEntries json, KvCacheDtype kvCacheDtype) {
        String type = json.text("model_type", "");
        check(
                !type.matches("qwen3_5.*|qwen3_next"),
                "model_type '%s' is not supported: the KV cache has no state for layers with linear"
                        + " attention; use a Qwen 3 model",
                type);
        Architecture architecture = ALL.get(type);
        check(
                architecture != null,
                "model_type '%s' is not supported; supported are %s; of a model for images and"
                        + " text, take its text model",
                type,
                ALL.keySet());
        PackedFormat.read(json); // Refuses those that are not supported.
        check(
                !PackedFormat.isMxfp4(json) || architecture.readsMxfp4(),
                "quantization_config of %s must not be mxfp4, which gpt_oss alone has",
                type);
        return architecture.config(type, json, kvCacheDtype);
    }

    static Architecture of(ModelConfig config) {
        return ALL.get(config.modelType());
    }

    /** Describes a layer. */
    abstract LayerConfig layer(ConfigEntries json, int index);

    /** Returns the names of tensors that differ from {@link TensorPart}'s. */
    Map<TensorPart, String> names() {
        return Map.of();
    }

    /** Returns whether norms multiply by 1 plus their weight. */
    boolean isGemma() {
        return false;
    }

    /** Returns whether the output matrix is the embedding if {@code config.json} does not say. */
    boolean isTied() {
        return isGemma();
    }

    /** Returns the type of weights if {@code config.json} has none. */
    String defaultType() {
        return "float32";
    }

    /** Returns whether experts may be in MXFP4. */
    boolean readsMxfp4() {
        return false;
    }

    double epsilon(ConfigEntries json) {
        return json.number("rms_norm_eps", 1e-6);
    }

    /** Returns the factor of embeddings in a model that computes in {@code type}. */
    double embeddingScale(ConfigEntries json, ScalarType type) {
        return 1;
    }

    double logitScale(ConfigEntries json) {
        return 1;
    }

    /** Returns the head size if {@code config.json} has none; 0 for hidden size / heads. */
    int defaultHeadSize() {
        return 0;
    }

    private ModelConfig config(String type, ConfigEntries json, KvCacheDtype kvCacheDtype) {
        int hidden = json.integer("hidden_size", null);
        int heads = json.integer("num_attention_heads", null);
        int count = json.integer("num_hidden_layers", null);
        ModelConfig.checkLayers(count);
        int headSize = headSize(json);
        ScalarType dtype = type(json.text("torch_dtype", json.text("dtype", defaultType())));
        List<LayerConfig> layers = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            layers.add(layer(json, i));
        }
        int length = json.integer("max_position_embeddings", 2048);
        for (LayerConfig layer : layers) {
            length = Math.max(length, layer.attention().rope().maxLength());
        }
        return new ModelConfig(
                type,
                json.integer("vocab_size", null),
                hidden,
                heads,
                json.integer("num_key_value_heads", heads),
                headSize,
                length,
                epsilon(json),
                json.flag("tie_word_embeddings", isTied()),
                json.integers("eos_token_id"),
                dtype,
                layers,
                embeddingScale(json, dtype),
                logitScale(json),
                json.number("final_logit_softcapping", 0.0),
                isGemma(),
                kvCacheDtype);
    }

    static ScalarType type(String name) {
        return switch (name) {
            case "float32" -> ScalarType.FLOAT32;
            case "float16" -> ScalarType.FLOAT16;
            case "bfloat16" -> ScalarType.BFLOAT16;
            default ->
                    throw new IllegalArgumentException(
                            "torch_dtype must be float32, float16 or bfloat16, not '" + name + "'");
        };
    }

    int headSize(ConfigEntries json) {
        int hidden = json.integer("hidden_size", null);
        int heads = json.integer("num_attention_heads", null);
        ModelConfig.size("num_attention_heads", heads);
        if (defaultHeadSize() != 0) {
            return json.integer("head_dim", defaultHeadSize());
        }
        check(
                json.has("head_dim") || hidden % heads == 0,
                "hidden_size %d is not a multiple of num_attention_heads %d, and head_dim is"
                        + " missing",
                hidden,
                heads);
        return json.integer("head_dim", hidden / heads);
    }

    /** Reads the rotary embedding that all layers share. */
    Rope rope(ConfigEntries json) {
        // Newer files have these entries in rope_parameters.
        String name = json.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
        double theta = json.number("rope_theta", 10000.0);
        return Rope.read(json, json.entries(name), theta, headSize(json));
    }

    /** Reads attention as in Llama, without biases. */
    LayerConfig.Attention attention(ConfigEntries json) {
        return LayerConfig.Attention.of(rope(json), headSize(json), false);
    }

    static LayerConfig.Mlp mlp(ConfigEntries json) {
        return new LayerConfig.Mlp(
                json.integer("intermediate_size", null), activation(json), false, null);
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
