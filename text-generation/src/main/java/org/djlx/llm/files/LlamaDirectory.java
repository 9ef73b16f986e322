// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Rope;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.host.FileWrites;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Writes the model directory of a Llama, or of a Qwen 3 with experts in all layers, with bytes as
 * tokens in Hugging Face's layout.
 */
public final class LlamaDirectory {

    private static final Gson GSON =
            new GsonBuilder().setPrettyPrinting().disableHtmlEscaping().create();

    /** Llama 3's chat template, in Jinja. */
    private static final String CHAT_TEMPLATE =
            "{{ bos_token }}{% if tools %}<|start_header_id|>system<|end_header_id|>\n\n"
                    + "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
                    + "A call: <tool_call>{\"name\": …, \"arguments\": …}</tool_call><|eot_id|>"
                    + "{% endif %}{% for message in messages %}<|start_header_id|>"
                    + "{{ message['role'] }}<|end_header_id|>\n\n"
                    + "{{ message['content'] | default('', true) | trim }}<|eot_id|>{% endfor %}"
                    + "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>"
                    + "\n\n{% endif %}";

    private LlamaDirectory() {}

    /** Returns a configuration without RoPE scaling and with the usual epsilon. */
    public static ModelConfig config(
            int vocabulary,
            int hidden,
            int intermediate,
            int layers,
            int heads,
            int kvHeads,
            int maxLength,
            double theta,
            boolean tied,
            ScalarType type) {
        return new ModelConfig(
                "llama",
                vocabulary,
                hidden,
                heads,
                kvHeads,
                hidden / heads,
                maxLength,
                1e-5,
                tied,
                List.of(),
                type,
                Collections.nCopies(
                        layers,
                        LayerConfig.llama(
                                Rope.of(theta, hidden / heads), hidden / heads, intermediate)),
                1,
                1,
                0,
                false,
                KvCacheDtype.AUTO);
    }

    /**
     * Writes a model. Creates the directory if it is missing, and replaces its files.
     *
     * @param config the sizes; RoPE scaling is not written
     * @param ranks the number of ranks on which DJL Serving loads the model
     * @param weights supplies each of the {@linkplain WeightMap#tensors tensors}
     */
    public static void write(
            Path directory,
            ModelConfig config,
            int ranks,
            long maxFileBytes,
            Function<TensorSpec, NDArray> weights)
            throws IOException {
        writeAllButWeights(directory, config, ranks);
        SafetensorsWriter.writeModel(directory, WeightMap.tensors(config), maxFileBytes, weights);
    }

    /** Writes all files of a model except its weights, as {@link #write} does. */
    public static void writeAllButWeights(Path directory, ModelConfig config, int ranks)
            throws IOException {
        ByteLevelTokenizer tokenizer = new ByteLevelTokenizer(config.vocabularySize());
        Files.createDirectories(directory);
        write(directory, "config.json", config(config, tokenizer));
        write(directory, "generation_config.json", textTokens(tokenizer));
        write(directory, "tokenizer.json", tokenizer.toJson());
        Map<String, Object> tokens = new LinkedHashMap<>();
        tokens.put("bos_token", ByteLevelTokenizer.BEGIN);
        tokens.put("eos_token", ByteLevelTokenizer.END_OF_TURN);
        tokens.put("chat_template", CHAT_TEMPLATE);
        tokens.put("model_max_length", config.maxLength());
        tokens.put("tokenizer_class", "PreTrainedTokenizerFast");
        write(directory, "tokenizer_config.json", tokens);
        write(directory.resolve("serving.properties"), servingProperties(ranks));
    }

    /** Returns random weights that keep the variance from layer to layer. */
    public static NDArray random(NDManager manager, TensorSpec weight) {
        Shape shape = weight.shape();
        if (shape.dimension() == 1) {
            return manager.randomNormal(1, 0.1f, shape, DataType.FLOAT32); // a normalisation
        }
        float deviation = (float) (1 / Math.sqrt(shape.get(1)));
        return manager.randomNormal(0, deviation, shape, DataType.FLOAT32);
    }

    private static String servingProperties(int ranks) {
        return String.join(
                "\n",
                "engine=PyTorch-P2P",
                "option.tensor_parallel_degree=" + ranks,
                "# One worker: the model itself serves many requests at a time.",
                "minWorkers=1",
                "maxWorkers=1",
                "");
    }

    private static void write(Path directory, String name, Object json) throws IOException {
        write(directory.resolve(name), GSON.toJson(json) + "\n");
    }

    public static void write(Path file, String text) throws IOException {
        FileWrites.naming(file, () -> Files.writeString(file, text));
    }

    private static Map<String, Object> textTokens(ByteLevelTokenizer tokenizer) {
        int end = tokenizer.id(ByteLevelTokenizer.END);
        int endOfTurn = tokenizer.id(ByteLevelTokenizer.END_OF_TURN);
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("bos_token_id", tokenizer.id(ByteLevelTokenizer.BEGIN));
        json.put("eos_token_id", List.of(end, endOfTurn));
        return json;
    }

    private static Map<String, Object> config(ModelConfig config, ByteLevelTokenizer tokenizer) {
        Map<String, Object> json = textTokens(tokenizer);
        LayerConfig.Experts experts = config.layer(0).mlp().experts();
        json.put(
                "architectures",
                List.of(experts == null ? "LlamaForCausalLM" : "Qwen3MoeForCausalLM"));
        json.put("model_type", config.modelType());
        if (experts != null) {
            json.put("num_experts", experts.count());
            json.put("num_experts_per_tok", experts.chosen());
            json.put("norm_topk_prob", experts.normalizes());
            json.put("moe_intermediate_size", config.intermediateSize());
        }
        json.put("vocab_size", config.vocabularySize());
        json.put("hidden_size", config.hiddenSize());
        json.put("intermediate_size", config.intermediateSize());
        json.put("num_hidden_layers", config.layers());
        json.put("num_attention_heads", config.heads());
        json.put("num_key_value_heads", config.kvHeads());
        json.put("head_dim", config.headSize());
        json.put("max_position_embeddings", config.maxLength());
        json.put("rms_norm_eps", config.epsilon());
        json.put("rope_theta", config.rope().theta());
        json.put("tie_word_embeddings", config.tied());
        json.put("hidden_act", "silu");
        json.put("attention_bias", false);
        json.put("mlp_bias", false);
        json.put("torch_dtype", config.type().name().toLowerCase(Locale.ROOT));
        return json;
    }
}
