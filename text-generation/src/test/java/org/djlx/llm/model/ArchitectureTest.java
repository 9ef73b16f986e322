// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.types.Shape;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.djlx.llm.model.LayerConfig.HeadNorms;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** How configurations and weights of the architectures are read. */
class ArchitectureTest {

    @TempDir private Path directory;

    static Stream<String> names() throws IOException {
        return ModelFixture.names().stream();
    }

    private ModelConfig read(JsonObject json) throws IOException {
        Files.writeString(directory.resolve("config.json"), json.toString());
        return ModelConfig.read(directory);
    }

    /** Files of transformers 4 have rope_theta, rope_scaling and torch_dtype. */
    @ParameterizedTest
    @MethodSource("names")
    void olderFilesGiveTheSameConfiguration(String name) throws IOException {
        ModelConfig expected = read(ModelFixture.config(name));
        JsonObject json = ModelFixture.config(name);
        JsonObject rope = json.remove("rope_parameters").getAsJsonObject();
        if (rope.has("full_attention")) {
            JsonObject sliding = rope.getAsJsonObject("sliding_attention");
            json.add("rope_local_base_freq", sliding.get("rope_theta"));
            rope = rope.getAsJsonObject("full_attention");
            JsonArray types = json.getAsJsonArray("layer_types");
            assertTrue(types.contains(new JsonPrimitive("full_attention")), types.toString());
        } else if (!name.matches("gemma3|granite4")) { // Others have the usual layers.
            json.remove("layer_types");
        }
        json.add("rope_theta", rope.remove("rope_theta"));
        rope.add("type", rope.remove("rope_type"));
        boolean plain = rope.get("type").getAsString().equals("default");
        json.add("rope_scaling", plain ? null : rope);
        json.add("torch_dtype", json.remove("dtype"));
        assertEquals(expected, read(json));
        assertEquals(expected.toString(), read(json).toString());
    }

    /** Each entry matters, so ranks whose files differ do not agree. */
    @ParameterizedTest
    @CsvSource({
        "mistral, sliding_window, 17",
        "qwen2, max_window_layers, 2",
        "qwen3, attention_bias, true",
        "qwen3, rms_norm_eps, 1e-5",
        "gemma2, query_pre_attn_scalar, 25",
        "gemma2, attn_logit_softcapping, 6",
        "gemma2, final_logit_softcapping, 6",
        "gemma2, hidden_activation, silu",
        "llama-dynamic, max_position_embeddings, 45",
        "mixtral, num_experts_per_tok, 1",
        "qwen3-moe, norm_topk_prob, false",
        "qwen3-moe, decoder_sparse_step, 2",
        "qwen3-moe, mlp_only_layers, 0"
    })
    void entriesChangeTheConfiguration(String name, String entry, String value) throws IOException {
        ModelConfig before = read(ModelFixture.config(name));
        JsonObject json = ModelFixture.config(name);
        json.remove("layer_types");
        boolean text = value.equals("silu");
        json.add(entry, JsonParser.parseString(text ? '"' + value + '"' : value));
        assertNotEquals(before.toString(), read(json).toString());
    }

    @Test
    void slidingLayersFollowThePattern() throws IOException {
        JsonObject json = ModelFixture.config("gemma3");
        json.remove("layer_types");
        json.addProperty("num_hidden_layers", 12);
        ModelConfig config = read(json);
        for (int i = 0; i < 12; i++) {
            LayerConfig.Attention attention = config.layer(i).attention();
            assertEquals(i == 5 || i == 11 ? 0 : 16, attention.window(), "layer " + i);
            assertEquals(i == 5 || i == 11 ? 100_000 : 10_000, attention.rope().theta());
        }
        json = ModelFixture.config("gemma2");
        json.remove("layer_types");
        assertEquals(16, read(json).layer(0).attention().window());
        assertEquals(0, read(json).layer(1).attention().window());
        json.add("sliding_window", null);
        assertEquals(0, read(json).layer(0).attention().window());
    }

    /** Scores that are limited, scaled or hidden do not take libtorch's attention. */
    @Test
    void attentionWithoutWindowCapAndScaleIsPlain() {
        Rope rope = Rope.of(10_000, 16);
        LayerConfig.Attention plain = LayerConfig.Attention.of(rope, 16, false);
        assertTrue(plain.isPlain(16, 1000));
        assertTrue(plain.withWindow(40).isPlain(16, 40));
        assertFalse(plain.withWindow(40).isPlain(16, 41));
        assertFalse(
                new LayerConfig.Attention(rope, 0, 0.25, 5, false, false, HeadNorms.NONE, false)
                        .isPlain(16, 1));
        assertFalse(plain.withScale(0.2).isPlain(16, 1));
    }

    @Test
    void gptOssRefusesAnotherActivation() throws IOException {
        JsonObject json = ReferenceModels.config("gpt_oss");
        json.remove("dtype");
        assertEquals(ScalarType.BFLOAT16, read(json).type());
        assertEquals(9, read(json).layer(0).attention().window());
        assertEquals(0, read(json).layer(1).attention().window());
        json.addProperty("swiglu_limit", 6.5);
        String message =
                assertThrows(IllegalArgumentException.class, () -> read(json)).getMessage();
        assertTrue(message.contains("swiglu_limit must be 7.0, not 6.5"), message);
    }

    /** Each multiplier matters. */
    @ParameterizedTest
    @CsvSource({
        "embedding_multiplier",
        "residual_multiplier",
        "attention_multiplier",
        "logits_scaling"
    })
    void multipliersChangeTheConfiguration(String name) throws IOException {
        JsonObject json = ReferenceModels.config("granite");
        ModelConfig before = read(json);
        json.addProperty(name, 0.5);
        assertNotEquals(before.toString(), read(json).toString());
        json.addProperty(name, 0);
        String message =
                assertThrows(IllegalArgumentException.class, () -> read(json)).getMessage();
        assertTrue(message.contains(name + " must be above 0, not 0.0"), message);
    }

    @Test
    void layersWithoutRopeAreNotRotated() throws IOException {
        JsonObject json = ReferenceModels.config("smollm3");
        assertEquals("[true, false, true, true]", rotated(json));
        json.remove("no_rope_layers");
        assertEquals("[true, true, true, false]", rotated(json));
        json.addProperty("no_rope_layer_interval", 3);
        assertEquals("[true, true, false, true]", rotated(json));
        json.add("no_rope_layers", JsonParser.parseString("[1]"));
        String message =
                assertThrows(IllegalArgumentException.class, () -> read(json)).getMessage();
        assertTrue(message.contains("no_rope_layers has no entry for layer 1"), message);
    }

    private String rotated(JsonObject json) throws IOException {
        return read(json).layerConfigs().stream()
                .map(layer -> layer.attention().rope().frequencies(16, 0, 64)[1] != 0)
                .toList()
                .toString();
    }

    /** Positions beyond max_position_embeddings are allowed if the scaling is for them. */
    @Test
    void scalingExtendsTheLength() throws IOException {
        assertEquals(88, read(ModelFixture.config("llama-dynamic")).maxLength());
        JsonObject json = ModelFixture.config("llama-yarn");
        json.addProperty("max_position_embeddings", 64); // as Qwen 2.5 does
        assertEquals(256, read(json).maxLength());
    }

    @ParameterizedTest
    @CsvSource({
        "llama-bias, model_type, bloom, 'model_type ''bloom'' is not supported'",
        "llama-bias, model_type, qwen3_5_text, 'layers with linear attention'",
        "llama-bias, quantization_config, '{\"quant_method\": \"mxfp4\"}', gpt_oss alone",
        "gemma3, model_type, gemma3, is not supported",
        "llama-bias, hidden_act, relu, 'hidden_act must be silu or gelu_pytorch_tanh'",
        "gemma2, hidden_activation, gelu, 'hidden_activation must be'",
        "gemma3, use_bidirectional_attention, true, use_bidirectional_attention",
        "gemma3, layer_types, '[\"chunked_attention\", \"\", \"\"]', 'chunked_attention'",
        "gemma3, layer_types, '[\"full_attention\"]', layer_types has no entry for layer 1",
        "qwen3, quantization_config, {}, quantization_config",
        "qwen3, quantization_config, '{\"quant_method\": \"awq\", \"bits\": 8}', 'must be 4, not"
                + " 8'",
        "qwen3, quantization_config, '{\"quant_method\": \"gptq\"}', bits is missing",
        "qwen3, quantization_config, '{\"quant_method\": \"awq\", \"version\": \"GEMV\"}', 'gemv'",
        "qwen3, quantization_config, '{\"quant_method\": \"gptq\", \"checkpoint_format\":"
                + " \"marlin\"}', 'gptq'' (as version or checkpoint_format ''marlin'",
        "qwen3, quantization_config, '{\"quant_method\": \"bitsandbytes\"}', 'bitsandbytes'",
        "qwen3, quantization_config, '{\"quant_method\": \"fp8\"}', 'fp8'",
        "qwen3, quantization_config, '{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\":"
                + " 0}', group_size",
        "qwen3-moe, use_sliding_window, true, use_sliding_window",
        "qwen3-moe, decoder_sparse_step, 0, decoder_sparse_step",
        "mixtral, num_experts_per_tok, 5, 'not 5 of 4'",
        "mistral, sliding_window, -1, sliding_window",
        "phi3-longrope, num_attention_heads, 2, 'must have 12 numbers, not 6'",
        "phi3, rope_parameters, '{\"rope_type\": \"ntk\"}', '''ntk'''",
        "llama-yarn, partial_rotary_factor, 0.2, partial_rotary_factor 0.2",
        "qwen2, rope_parameters, '{\"rope_type\": \"yarn\", \"factor\": 0.5}', factor",
        "qwen2, rope_parameters, '{\"rope_type\": \"yarn\", \"beta_slow\": 64}', beta_slow"
    })
    void refusesByName(String name, String entry, String value, String problem) throws IOException {
        JsonObject json = ModelFixture.config(name);
        boolean text = value.matches("[a-z_0-9]*[a-z][a-z_0-9]*") && !value.equals("true");
        json.add(entry, JsonParser.parseString(text ? '"' + value + '"' : value));
        String message =
                assertThrows(IllegalArgumentException.class, () -> read(json)).getMessage();
        assertTrue(message.contains(problem) && message.contains("config.json"), message);
    }

    /** The sizes of published models, and the number of parameters that their pages state. */
    @ParameterizedTest(name = "{0} with {11} parameters")
    @CsvSource({
        "llama, 4096, 14336, 32, 32, 8, 128, 128256, false, 0, 0, 8030261248",
        "mistral, 4096, 14336, 32, 32, 8, 128, 32000, false, 0, 0, 7241732096",
        "mixtral, 4096, 14336, 32, 32, 8, 128, 32000, false, 8, 0, 46702792704",
        "qwen2, 3584, 18944, 28, 28, 4, 128, 152064, false, 0, 0, 7615616512",
        "qwen3, 4096, 12288, 36, 32, 8, 128, 151936, false, 0, 0, 8190735360",
        "qwen3_moe, 2048, 6144, 48, 32, 4, 128, 151936, false, 128, 768, 30532122624",
        "gemma, 2048, 16384, 18, 8, 1, 256, 256000, true, 0, 0, 2506172416",
        "gemma2, 3584, 14336, 42, 16, 8, 256, 256000, true, 0, 0, 9241705984",
        "gemma3_text, 1152, 6912, 26, 4, 1, 256, 262144, true, 0, 0, 999885952",
        "glm4, 4096, 13696, 40, 32, 2, 128, 151552, false, 0, 0, 9400279040",
        "ernie4_5, 1024, 3072, 18, 16, 2, 128, 103424, true, 0, 0, 360748032",
        "exaone4, 5120, 27392, 64, 40, 8, 128, 102400, false, 0, 0, 32003216384",
        "gpt_oss, 2880, 2880, 24, 64, 8, 64, 201088, false, 32, 0, 20914757184",
        "granite, 2048, 8192, 40, 32, 8, 64, 49155, true, 0, 0, 2533531648",
        "olmo2, 4096, 11008, 32, 32, 32, 128, 100352, false, 0, 0, 7298617344",
        "olmo3, 4096, 11008, 32, 32, 32, 128, 100278, false, 0, 0, 7298011136",
        "phi3, 3072, 8192, 32, 32, 32, 96, 32064, false, 0, 0, 3821079552",
        "seed_oss, 5120, 27648, 64, 80, 8, 128, 155136, false, 0, 0, 36151104512",
        "smollm3, 2048, 11008, 36, 16, 4, 128, 128256, true, 0, 0, 3075098624"
    })
    void countsTheParametersOfPublishedModels(
            String type,
            int hidden,
            int inner,
            int layers,
            int heads,
            int kvHeads,
            int headSize,
            int vocabulary,
            boolean tied,
            int experts,
            int expertSize,
            long parameters)
            throws IOException {
        JsonObject json = new JsonObject();
        json.addProperty("model_type", type);
        json.addProperty("hidden_size", hidden);
        json.addProperty("intermediate_size", inner);
        json.addProperty("num_hidden_layers", layers);
        json.addProperty("num_attention_heads", heads);
        json.addProperty("num_key_value_heads", kvHeads);
        json.addProperty("head_dim", headSize);
        json.addProperty("vocab_size", vocabulary);
        json.addProperty("torch_dtype", "bfloat16");
        json.addProperty("partial_rotary_factor", 0.5);
        if (!type.matches("gemma.*|smollm3")) { // Their files leave it out.
            json.addProperty("tie_word_embeddings", tied);
        }
        if (experts > 0) {
            json.addProperty("num_local_experts", experts);
            json.addProperty("moe_intermediate_size", expertSize);
        }
        ModelConfig config = read(json);
        Map<String, Shape> shapes = WeightMap.shapes(config);
        assertEquals(parameters, shapes.values().stream().mapToLong(Shape::size).sum());
        long normBytes = type.startsWith("gemma") ? 2 * norms(shapes) : 0; // in float32
        assertEquals(2 * parameters + normBytes, WeightMap.byteSize(config, 1));
    }

    private static long norms(Map<String, Shape> shapes) {
        return shapes.values().stream()
                .filter(s -> s.dimension() == 1)
                .mapToLong(Shape::size)
                .sum();
    }

    /** The page docs/design/models.md shows {@link Layers#seedOss}. */
    @Test
    void theExampleOfTheDocsWorks() throws IOException {
        String code = Files.readString(Path.of("src/main/java/org/djlx/llm/model/Layers.java"));
        int begin = code.indexOf("/** Seed-OSS");
        String example = code.substring(begin, code.indexOf("\n\n", begin));
        assertTrue(Files.readString(Path.of("../docs/design/models.md")).contains(example));
        JsonObject json = ModelFixture.config("llama-bias");
        json.remove("attention_bias");
        json.remove("head_dim");
        json.addProperty("model_type", "seed_oss");
        ModelConfig config = read(json);
        assertEquals(128, config.headSize());
        LayerConfig layer = config.layer(0);
        assertTrue(layer.attention().inputBias() && layer.mlp().bias());
        assertFalse(layer.attention().outputBias());
    }

    /** The published file leaves most entries out; the report states 675 M and 3,209 M weights. */
    @Test
    void readsTheTextModelOfGemma3ForImages() throws IOException {
        String json =
                """
                {"model_type": "gemma3", "eos_token_id": [1, 106], "torch_dtype": "bfloat16",
                "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type":
                "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type":
                "linear"}, "sliding_window": 1024}, "vision_config": {"hidden_size": 1152}}\
                """;
        ModelConfig config = read(JsonParser.parseString(json).getAsJsonObject());
        assertEquals(List.of(1, 106), config.endTokens());
        assertEquals(ScalarType.BFLOAT16, config.type());
        assertEquals(131_072, config.maxLength());
        assertEquals(LayerConfig.Activation.GELU_TANH, config.layer(0).mlp().activation());
        Map<String, Shape> shapes = WeightMap.shapes(config);
        assertEquals(671_252_480, shapes.remove(WeightMap.EMBEDDING).size());
        long others = shapes.values().stream().mapToLong(Shape::size).sum();
        assertEquals(3_209_010_688L, others);
    }

    @ParameterizedTest
    @CsvSource({
        "layer_types, '[\"attention\", \"mamba\", \"attention\"]', not mamba in layer 1",
        "layer_types, '[\"attention\"]', not mamba in layer 1",
        "num_local_experts, 62, 'num_local_experts must be 0, not 62'",
        "position_embedding_type, '\"alibi\"', must be rope or nope"
    })
    void refusesGranite4WithMambaLayersOrExperts(String entry, String value, String problem)
            throws IOException {
        JsonObject json = ReferenceModels.config("granitemoehybrid");
        json.add(entry, JsonParser.parseString(value));
        String message =
                assertThrows(IllegalArgumentException.class, () -> read(json)).getMessage();
        assertTrue(message.contains(problem), message);
    }

    /** Newer files have a rope for each type of layer, older ones one, which full layers scale. */
    @Test
    void slidingLayersOfOlmo3HaveAnUnscaledRope() throws IOException {
        JsonObject json = ReferenceModels.config("olmo3");
        ModelConfig config = read(json);
        JsonObject scaled = json.remove("rope_parameters").getAsJsonObject();
        JsonObject plain = new JsonObject();
        plain.addProperty("rope_type", "default");
        plain.addProperty("rope_theta", 10_000);
        JsonObject both = new JsonObject();
        both.add("sliding_attention", plain);
        both.add("full_attention", scaled);
        json.add("rope_parameters", both);
        assertEquals(config, read(json));
        json.remove("rope_parameters");
        json.add("rope_theta", scaled.remove("rope_theta"));
        json.add("rope_scaling", scaled);
        assertEquals(config, read(json));
        assertEquals(Rope.of(10_000, 16), config.layer(0).attention().rope());
        assertEquals(Rope.linear(10_000, 8, 3), config.layer(3).attention().rope());
    }

    @Test
    void readsSamplingDefaults() throws IOException {
        assertEquals(SamplingDefaults.NONE, SamplingDefaults.read(directory));
        Path file = directory.resolve("generation_config.json");
        Files.writeString(
                file,
                "{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95,"
                        + " \"min_p\": 0.05, \"repetition_penalty\": 1.1, \"eos_token_id\": 2}");
        SamplingDefaults defaults = new SamplingDefaults(0.6, 20, 0.95, 0.05, 1.1);
        assertEquals(defaults, SamplingDefaults.read(directory));
        Files.writeString(file, "{\"do_sample\": false, \"temperature\": 0.6, \"top_k\": -1}");
        assertEquals(new SamplingDefaults(0, 0, 1, 0, 1), SamplingDefaults.read(directory));
        for (String wrong :
                new String[] {
                    "temperature\": -1",
                    "top_k\": -2",
                    "top_p\": 0",
                    "min_p\": 2",
                    "repetition_penalty\": 0",
                    "do_sample\": 1"
                }) {
            Files.writeString(file, "{\"" + wrong + "}");
            String message =
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> SamplingDefaults.read(directory))
                            .getMessage();
            String name = wrong.substring(0, wrong.indexOf('"'));
            assertTrue(message.contains(file + ": " + name), message);
        }
    }
}
