// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.nativeops.host.Required.check;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.djlx.llm.model.LayerConfig.Norms;
import org.djlx.nativeops.torch.ScalarType;

/**
 * What is particular to an architecture, as data; one forward pass computes all of them. To add
 * one, add it to {@link #ALL}; see {@code docs/design/models.md}.
 *
 * @param layers describes the layers
 * @param defaults the values of entries that {@code config.json} leaves out, if they differ from
 *     Llama's
 * @param names the names of tensors that differ from {@link TensorPart}'s
 */
record Architecture(LayerReader layers, Map<String, ?> defaults, Map<TensorPart, String> names) {

    /** Reads what a layer computes. */
    interface LayerReader {
        LayerConfig layer(ConfigEntries json, int index);
    }

    private static final Map<String, ?> ERNIE =
            Map.of(
                    "head_dim",
                    128,
                    "rms_norm_eps",
                    1e-5,
                    "rope_theta",
                    500_000,
                    "tie_word_embeddings",
                    true);
    private static final Map<String, ?> GEMMA =
            Map.of("head_dim", 256, "tie_word_embeddings", true);
    private static final Map<String, ?> GEMMA3 =
            Map.of(
                    "head_dim", 256,
                    "hidden_activation", "gelu_pytorch_tanh",
                    "max_position_embeddings", 131_072,
                    "num_attention_heads", 8,
                    "num_key_value_heads", 4,
                    "tie_word_embeddings", true,
                    "vocab_size", 262_208);
    private static final Map<TensorPart, String> GEMMA_NAMES =
            Map.of(TensorPart.MLP_NORM, "pre_feedforward_layernorm");
    private static final Map<String, ?> GLM = Map.of("head_dim", 128, "attention_bias", true);
    private static final Map<TensorPart, String> GLM_NAMES =
            Map.of(
                    TensorPart.GATE, "mlp.gate_up_proj",
                    TensorPart.UP, "mlp.gate_up_proj",
                    TensorPart.ATTENTION_POST_NORM, "post_self_attn_layernorm",
                    TensorPart.MLP_POST_NORM, "post_mlp_layernorm");
    private static final Map<String, ?> GPT_OSS = // Files in MXFP4 name no type.
            Map.of("head_dim", 64, "attention_bias", true, "dtype", "bfloat16");
    private static final Map<TensorPart, String> GRANITE4_NAMES =
            Map.of(
                    TensorPart.GATE, "shared_mlp.input_linear",
                    TensorPart.UP, "shared_mlp.input_linear",
                    TensorPart.DOWN, "shared_mlp.output_linear");
    private static final Map<TensorPart, String> MIXTRAL_NAMES =
            Map.of(
                    TensorPart.ROUTER, "block_sparse_moe.gate",
                    TensorPart.EXPERT_GATE, "block_sparse_moe.experts.%d.w1",
                    TensorPart.EXPERT_UP, "block_sparse_moe.experts.%d.w3",
                    TensorPart.EXPERT_DOWN, "block_sparse_moe.experts.%d.w2");
    private static final Map<String, ?> OLMO3 = Map.of("rms_norm_eps", 1e-5, "rope_theta", 500_000);
    private static final Map<TensorPart, String> PHI3_NAMES =
            Map.of(
                    TensorPart.QUERIES, "self_attn.qkv_proj",
                    TensorPart.KEYS, "self_attn.qkv_proj",
                    TensorPart.VALUES, "self_attn.qkv_proj",
                    TensorPart.GATE, "mlp.gate_up_proj",
                    TensorPart.UP, "mlp.gate_up_proj");
    private static final Map<String, ?> QWEN3 = Map.of("head_dim", 128);
    private static final Map<String, ?> SEED_OSS = Map.of("head_dim", 128, "attention_bias", true);

    private static final Map<String, ?> TIED = Map.of("tie_word_embeddings", true);

    /** The architectures by {@code model_type}. */
    private static final Map<String, Architecture> ALL =
            new TreeMap<>(
                    Map.ofEntries(
                            entry("ernie4_5", Layers::ernie, ERNIE, Map.of()),
                            entry(
                                    "exaone4",
                                    Layers::exaone4,
                                    Map.of("rms_norm_eps", 1e-5),
                                    Map.of()),
                            entry("gemma", Layers::gemma, GEMMA, Map.of()),
                            entry("gemma2", Layers::gemma2, GEMMA, GEMMA_NAMES),
                            entry("gemma3_text", Layers::gemma3, GEMMA3, GEMMA_NAMES),
                            entry("glm", (j, i) -> Layers.glm(j, Norms.INPUTS), GLM, GLM_NAMES),
                            entry(
                                    "glm4",
                                    (j, i) -> Layers.glm(j, Norms.INPUTS_AND_RESULTS),
                                    GLM,
                                    GLM_NAMES),
                            entry(
                                    "gpt_oss",
                                    Layers::gptOss,
                                    GPT_OSS,
                                    Map.of(TensorPart.ROUTER, "mlp.router")),
                            entry("granite", Layers::granite, Map.of(), Map.of()),
                            entry("granitemoehybrid", Layers::granite4, Map.of(), GRANITE4_NAMES),
                            entry("llama", Layers::llama, Map.of(), Map.of()),
                            entry("mistral", Layers::mistral, Map.of(), Map.of()),
                            entry("mixtral", Layers::mixtral, Map.of(), MIXTRAL_NAMES),
                            entry("olmo2", Layers::olmo2, Map.of(), Map.of()),
                            entry("olmo3", Layers::olmo3, OLMO3, Map.of()),
                            entry("phi3", Layers::mistral, Map.of(), PHI3_NAMES),
                            entry("qwen2", Layers::qwen2, Map.of(), Map.of()),
                            entry("qwen3", Layers::qwen3, QWEN3, Map.of()),
                            entry("qwen3_moe", Layers::qwen3Moe, QWEN3, Map.of()),
                            entry("seed_oss", Layers::seedOss, SEED_OSS, Map.of()),
                            entry("smollm3", Layers::smolLm3, TIED, Map.of())));

    private static Map.Entry<String, Architecture> entry(
            String modelType,
            LayerReader layers,
            Map<String, ?> defaults,
            Map<TensorPart, String> names) {
        return Map.entry(modelType, new Architecture(layers, defaults, names));
    }

    /** Entries of a model for images and text that hold for its language model. */
    private static final List<String> COMMON =
            List.of(
                    "dtype",
                    "eos_token_id",
                    "quantization_config",
                    "tie_word_embeddings",
                    "torch_dtype");

    static ModelConfig read(ConfigEntries file, KvCacheDtype kvCacheDtype) {
        ConfigEntries json = file.has("text_config") ? textModel(file) : file;
        String type = json.text("model_type", "");
        check(
                !type.matches("qwen3_5.*|qwen3_next"),
                "model_type '%s' is not supported: the KV cache has no state for layers with linear"
                        + " attention; use a Qwen 3 model",
                type);
        Architecture architecture = ALL.get(type);
        check(
                architecture != null,
                "model_type '%s' is not supported; supported are %s",
                type,
                ALL.keySet());
        PackedFormat.read(json); // Refuses those that are not supported.
        check(
                !PackedFormat.isMxfp4(json) || type.equals("gpt_oss"),
                "quantization_config of %s must not be mxfp4, which gpt_oss alone has",
                type);
        return architecture.config(type, json, kvCacheDtype);
    }

    private static ConfigEntries textModel(ConfigEntries file) {
        ConfigEntries text = file.entries("text_config").withDefaults(Map.of());
        COMMON.stream().filter(file::has).forEach(each -> text.json().add(each, file.get(each)));
        return text;
    }

    static Architecture of(ModelConfig config) {
        return ALL.get(config.modelType());
    }

    ModelConfig config(String type, ConfigEntries file, KvCacheDtype kvCacheDtype) {
        ConfigEntries json = file.withDefaults(defaults);
        int hidden = json.integer("hidden_size", null);
        int heads = json.integer("num_attention_heads", null);
        int count = json.integer("num_hidden_layers", null);
        ModelConfig.checkLayers(count);
        int headSize = Layers.headSize(json);
        ScalarType dtype = type(json.text("torch_dtype", json.text("dtype", "float32")));
        List<LayerConfig> read = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            read.add(layers.layer(json, i));
        }
        int length = json.integer("max_position_embeddings", 2048);
        for (LayerConfig layer : read) {
            length = Math.max(length, layer.attention().rope().maxLength());
        }
        boolean isGemma = type.startsWith("gemma");
        double embeddingScale = isGemma ? gemmaScale(hidden, dtype) : 1;
        double epsilon = json.number("rms_norm_eps", 1e-6);
        double logitScale = 1;
        if (type.startsWith("granite")) {
            // Attention and MLP are multiplied by residual_multiplier before they are added to the
            // residual stream. Only norms read the stream, so it is divided by it instead:
            // embeddings are, and epsilon by its square.
            double residual = Layers.positive(json, "residual_multiplier");
            epsilon /= Math.pow(residual, 2);
            embeddingScale = Layers.positive(json, "embedding_multiplier") / residual;
            logitScale = 1 / Layers.positive(json, "logits_scaling");
        }
        return new ModelConfig(
                type,
                json.integer("vocab_size", null),
                hidden,
                heads,
                json.integer("num_key_value_heads", heads),
                headSize,
                length,
                epsilon,
                json.flag("tie_word_embeddings", false),
                json.integers("eos_token_id"),
                dtype,
                read,
                embeddingScale,
                logitScale,
                json.number("final_logit_softcapping", 0.0),
                isGemma,
                kvCacheDtype);
    }

    /** Returns a factor that is rounded to the model's type, as in transformers. */
    private static double gemmaScale(int hidden, ScalarType type) {
        double scale = Math.sqrt(hidden);
        int bits =
                switch (type) {
                    case BFLOAT16 -> 8;
                    case FLOAT16 -> 11;
                    default -> 24;
                };
        double unit = Math.scalb(1.0, Math.getExponent(scale) + 1 - bits);
        return Math.rint(scale / unit) * unit;
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
}
