// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.ScalarType;

/** Writes directories of small random Llamas in Hugging Face's layout. */
public final class LlamaFiles {

    private LlamaFiles() {}

    /**
     * A model with everything that is particular: grouped heads, Llama 3's rope, odd vocabulary.
     */
    public static ModelConfig config(ScalarType type, boolean tied) {
        return config(type, tied, 203, 7);
    }

    /** The rotary embedding that {@link #json} writes. */
    public static Rope rope(int headSize) {
        return Rope.llama3(10000, headSize / 2, 4, 1, 4, 64);
    }

    /** A model whose sizes GPUs have kernels for, among up to 8 ranks. */
    public static ModelConfig decodable(ScalarType type, boolean tied, int headSize) {
        return decodable(type, tied, headSize, false);
    }

    /** Such a model; all of its projections have biases or none has. */
    public static ModelConfig decodable(
            ScalarType type, boolean tied, int headSize, boolean biased) {
        LayerConfig.Mlp mlp = new LayerConfig.Mlp(128, LayerConfig.Activation.SILU, biased, null);
        LayerConfig.Attention attention =
                LayerConfig.Attention.of(rope(headSize), headSize, biased);
        return LlamaConfig.builder()
                .heads(8, 2, headSize)
                .tied(tied)
                .type(type)
                .layers(2, new LayerConfig(attention, mlp))
                .build();
    }

    public static ModelConfig config(ScalarType type, boolean tied, int vocabulary, int end) {
        return LlamaConfig.builder()
                .vocabulary(vocabulary)
                .hidden(40)
                .heads(8, 2, 6)
                .maxLength(256)
                .tied(tied)
                .endTokens(end)
                .type(type)
                .layers(2, 48)
                .build();
    }

    public static Path write(Path directory, ModelConfig config, long seed) throws IOException {
        Files.createDirectories(directory);
        Files.writeString(directory.resolve("config.json"), json(config).toString());
        Map<String, Shape> shapes = WeightMap.shapes(config);
        List<TensorSpec> specs = new ArrayList<>();
        shapes.forEach((name, shape) -> specs.add(TensorSpec.of(name, config.type(), shape)));
        try (NDManager manager = NDManager.newBaseManager()) {
            // Several files.
            SafetensorsWriter.writeModel(
                    directory, specs, 30_000, spec -> values(manager, spec, seed));
        }
        return directory;
    }

    /** Values that depend on the tensor's name and the seed alone. */
    public static NDArray values(NDManager manager, TensorSpec spec, long seed) {
        Random random = new Random(seed * 31 + spec.name().hashCode());
        boolean isVector = spec.shape().dimension() == 1;
        boolean norm = isVector && !spec.name().endsWith(".bias");
        double scale = isVector ? 0.2 : 1 / Math.sqrt(spec.shape().get(1));
        float[] values = new float[(int) spec.shape().size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) ((norm ? 1 : 0) + scale * random.nextGaussian());
        }
        return manager.create(values, spec.shape());
    }

    public static JsonObject json(ModelConfig config) {
        JsonObject rope = new JsonObject();
        rope.addProperty("rope_type", "llama3");
        rope.addProperty("factor", 4);
        rope.addProperty("low_freq_factor", 1);
        rope.addProperty("high_freq_factor", 4);
        rope.addProperty("original_max_position_embeddings", 64);
        JsonArray end = new JsonArray();
        config.endTokens().forEach(end::add);
        JsonObject json = new JsonObject();
        json.addProperty("model_type", "llama");
        json.addProperty("vocab_size", config.vocabularySize());
        json.addProperty("hidden_size", config.hiddenSize());
        json.addProperty("intermediate_size", config.intermediateSize());
        json.addProperty("num_hidden_layers", config.layers());
        json.addProperty("num_attention_heads", config.heads());
        json.addProperty("num_key_value_heads", config.kvHeads());
        json.addProperty("head_dim", config.headSize());
        json.addProperty("max_position_embeddings", config.maxLength());
        json.addProperty("rms_norm_eps", config.epsilon());
        json.addProperty("rope_theta", config.rope().theta());
        json.add("rope_scaling", rope);
        json.addProperty("attention_bias", config.layer(0).attention().inputBias());
        json.addProperty("mlp_bias", config.layer(0).mlp().bias());
        json.addProperty("tie_word_embeddings", config.tied());
        json.add("eos_token_id", end);
        json.addProperty("torch_dtype", config.type().name().toLowerCase());
        return json;
    }
}
