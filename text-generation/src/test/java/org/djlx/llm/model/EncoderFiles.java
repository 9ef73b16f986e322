// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.google.gson.Gson;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.ScalarType;

/** Writes directories of small random embedding models in sentence-transformers' layout. */
public final class EncoderFiles {

    public static final List<String> MODEL_TYPES =
            List.of("bert", "xlm-roberta", "modernbert", "qwen3");

    private static final int VOCABULARY = 60;
    private static final int POSITIONS = 160;

    /**
     * Sizes of a model.
     *
     * @param heads of all types but qwen3
     * @param near tokens that a token of modernbert attends to in layers of near ones
     */
    public record Sizes(int hidden, int heads, int inner, int layers, int near) {

        public static final Sizes SMALL = new Sizes(24, 3, 40, 4, 12);
    }

    private final Sizes sizes;
    private final Map<String, Object> config = new LinkedHashMap<>();
    private final Map<String, Shape> shapes = new LinkedHashMap<>();

    private EncoderFiles(Sizes sizes) {
        this.sizes = sizes;
    }

    /** Writes a small model. */
    public static Path write(Path directory, String modelType, String prefix, String pooling)
            throws IOException {
        return write(directory, modelType, prefix, pooling, Sizes.SMALL);
    }

    /**
     * Writes a model. Names of tensors begin with the prefix; normalised.
     *
     * @param pooling such as {@code mean_tokens}
     */
    public static Path write(
            Path directory, String modelType, String prefix, String pooling, Sizes sizes)
            throws IOException {
        EncoderFiles files = new EncoderFiles(sizes);
        files.describe(modelType, prefix);
        write(directory.resolve("config.json"), files.config);
        List<TensorSpec> specs = new ArrayList<>();
        files.shapes.forEach(
                (name, shape) -> specs.add(TensorSpec.of(name, ScalarType.FLOAT32, shape)));
        try (NDManager manager = NDManager.newBaseManager()) {
            SafetensorsWriter.writeModel(
                    directory, specs, 30_000, spec -> LlamaFiles.values(manager, spec, 5));
        }
        write(
                directory.resolve("modules.json"),
                List.of(
                        module("", "Transformer"),
                        module("1_Pooling", "Pooling"),
                        module("2_Normalize", "Normalize")));
        write(
                directory.resolve("1_Pooling/config.json"),
                Map.of("word_embedding_dimension", sizes.hidden, "pooling_mode_" + pooling, true));
        write(
                directory.resolve("config_sentence_transformers.json"),
                Map.of("prompts", Map.of("query", "ab ")));
        write(directory.resolve("tokenizer.json"), tokenizer(modelType));
        return directory;
    }

    public static void write(Path file, Object json) throws IOException {
        Files.createDirectories(file.getParent());
        Files.writeString(file, new Gson().toJson(json));
    }

    private static Map<String, String> module(String path, String type) {
        return Map.of("path", path, "type", "sentence_transformers.models." + type);
    }

    private void describe(String modelType, String prefix) {
        config.put("model_type", modelType);
        config.put("vocab_size", VOCABULARY);
        config.put("hidden_size", sizes.hidden);
        config.put("intermediate_size", sizes.inner);
        config.put("num_hidden_layers", sizes.layers);
        config.put("num_attention_heads", sizes.heads);
        config.put("max_position_embeddings", POSITIONS);
        config.put("pad_token_id", 1);
        switch (modelType) {
            case "qwen3" -> qwen(prefix);
            case "modernbert" -> modernBert(prefix);
            default -> bert(modelType, prefix);
        }
    }

    private void bert(String modelType, String prefix) {
        int types = modelType.equals("bert") ? 2 : 1;
        config.put("layer_norm_eps", 1e-5);
        config.put("hidden_act", "gelu");
        config.put("type_vocab_size", types);
        put(prefix + "embeddings.word_embeddings.weight", VOCABULARY, sizes.hidden);
        put(prefix + "embeddings.position_embeddings.weight", POSITIONS, sizes.hidden);
        put(prefix + "embeddings.token_type_embeddings.weight", types, sizes.hidden);
        norm(prefix + "embeddings.LayerNorm");
        for (int i = 0; i < sizes.layers; i++) {
            String layer = prefix + "encoder.layer." + i + ".";
            for (String each : List.of("query", "key", "value")) {
                linear(layer + "attention.self." + each, sizes.hidden, sizes.hidden);
            }
            linear(layer + "attention.output.dense", sizes.hidden, sizes.hidden);
            norm(layer + "attention.output.LayerNorm");
            linear(layer + "intermediate.dense", sizes.inner, sizes.hidden);
            linear(layer + "output.dense", sizes.hidden, sizes.inner);
            norm(layer + "output.LayerNorm");
        }
        linear(prefix + "pooler.dense", sizes.hidden, sizes.hidden);
    }

    private void modernBert(String prefix) {
        config.put("norm_eps", 1e-5);
        config.put("hidden_activation", "gelu");
        config.put("global_attn_every_n_layers", 3);
        config.put("local_attention", sizes.near);
        config.put("global_rope_theta", 160000);
        config.put("local_rope_theta", 10000);
        put(prefix + "embeddings.tok_embeddings.weight", VOCABULARY, sizes.hidden);
        put(prefix + "embeddings.norm.weight", sizes.hidden);
        for (int i = 0; i < sizes.layers; i++) {
            String layer = prefix + "layers." + i + ".";
            if (i > 0) {
                put(layer + "attn_norm.weight", sizes.hidden);
            }
            put(layer + "attn.Wqkv.weight", 3 * sizes.hidden, sizes.hidden);
            put(layer + "attn.Wo.weight", sizes.hidden, sizes.hidden);
            put(layer + "mlp_norm.weight", sizes.hidden);
            put(layer + "mlp.Wi.weight", 2 * sizes.inner, sizes.hidden);
            put(layer + "mlp.Wo.weight", sizes.hidden, sizes.inner);
        }
        put(prefix + "final_norm.weight", sizes.hidden);
    }

    private void qwen(String prefix) {
        config.put("num_attention_heads", 4);
        config.put("num_key_value_heads", 2);
        config.put("head_dim", 8);
        config.put("rms_norm_eps", 1e-6);
        config.put("rope_theta", 10000);
        config.put("tie_word_embeddings", false);
        put(prefix + "embed_tokens.weight", VOCABULARY, sizes.hidden);
        for (int i = 0; i < sizes.layers; i++) {
            String layer = prefix + "layers." + i + ".";
            put(layer + "input_layernorm.weight", sizes.hidden);
            put(layer + "self_attn.q_proj.weight", 32, sizes.hidden);
            put(layer + "self_attn.k_proj.weight", 16, sizes.hidden);
            put(layer + "self_attn.v_proj.weight", 16, sizes.hidden);
            put(layer + "self_attn.o_proj.weight", sizes.hidden, 32);
            put(layer + "self_attn.q_norm.weight", 8);
            put(layer + "self_attn.k_norm.weight", 8);
            put(layer + "post_attention_layernorm.weight", sizes.hidden);
            put(layer + "mlp.gate_proj.weight", sizes.inner, sizes.hidden);
            put(layer + "mlp.up_proj.weight", sizes.inner, sizes.hidden);
            put(layer + "mlp.down_proj.weight", sizes.hidden, sizes.inner);
        }
        put(prefix + "norm.weight", sizes.hidden);
    }

    private void put(String name, long... shape) {
        shapes.put(name, new Shape(shape));
    }

    private void norm(String name) {
        put(name + ".weight", sizes.hidden);
        put(name + ".bias", sizes.hidden);
    }

    private void linear(String name, long outputs, long inputs) {
        put(name + ".weight", outputs, inputs);
        put(name + ".bias", outputs);
    }

    /** WordPiece for BERT, Unigram for the others: letters, pairs of letters, and markers. */
    private static Object tokenizer(String modelType) {
        boolean wordPiece = modelType.contains("bert") && !modelType.startsWith("xlm");
        List<String> tokens = new ArrayList<>(List.of("[CLS]", "[PAD]", "[SEP]", "[UNK]"));
        for (char c = 'a'; c <= 'z'; c++) {
            tokens.add(wordPiece ? "" + c : "\u2581" + c);
            tokens.add(wordPiece ? "##" + c : "" + c);
        }
        tokens.add(wordPiece ? "ab" : "\u2581ab");
        tokens.add("cd");
        Map<String, Object> model = new LinkedHashMap<>();
        if (wordPiece) {
            Map<String, Integer> vocabulary = new LinkedHashMap<>();
            tokens.forEach(token -> vocabulary.put(token, vocabulary.size()));
            model.put("type", "WordPiece");
            model.put("unk_token", "[UNK]");
            model.put("continuing_subword_prefix", "##");
            model.put("max_input_chars_per_word", 100);
            model.put("vocab", vocabulary);
        } else {
            List<Object> vocabulary = new ArrayList<>();
            tokens.forEach(
                    token -> vocabulary.add(List.of(token, -1.0 - vocabulary.size() / 100.0)));
            model.put("type", "Unigram");
            model.put("unk_id", 3);
            model.put("vocab", vocabulary);
        }
        List<Object> added = new ArrayList<>();
        for (int i = 0; i < 4; i++) {
            Map<String, Object> token = new LinkedHashMap<>();
            token.put("id", i);
            token.put("content", tokens.get(i));
            for (String flag : List.of("single_word", "lstrip", "rstrip", "normalized")) {
                token.put(flag, false);
            }
            token.put("special", true);
            added.add(token);
        }
        Map<String, Object> json = new LinkedHashMap<>();
        json.put("version", "1.0");
        json.put("added_tokens", added);
        if (wordPiece) {
            Map<String, Object> normalizer = new LinkedHashMap<>();
            normalizer.put("type", "BertNormalizer");
            normalizer.put("clean_text", true);
            normalizer.put("handle_chinese_chars", true);
            normalizer.put("strip_accents", null);
            normalizer.put("lowercase", true);
            json.put("normalizer", normalizer);
        }
        json.put(
                "pre_tokenizer",
                wordPiece
                        ? Map.of("type", "BertPreTokenizer")
                        : Map.of(
                                "type",
                                "Metaspace",
                                "replacement",
                                "\u2581",
                                "prepend_scheme",
                                "always",
                                "split",
                                true));
        json.put(
                "post_processor",
                Map.of(
                        "type",
                        "BertProcessing",
                        "sep",
                        List.of("[SEP]", 2),
                        "cls",
                        List.of("[CLS]", 0)));
        json.put("model", model);
        return json;
    }
}
