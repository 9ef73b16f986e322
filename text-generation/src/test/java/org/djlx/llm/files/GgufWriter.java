// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.IntStream;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Rope;

/** Writes GGUF files, of Hugging Face's models as llama.cpp's convert_hf_to_gguf.py does. */
public final class GgufWriter {

    private record Tensor(long[] sizes, int type, byte[] data) {}

    private final ByteArrayOutputStream metadata = new ByteArrayOutputStream();
    private final Map<String, Tensor> tensors = new LinkedHashMap<>();
    private int entries;

    public GgufWriter put(String key, Object value) {
        entries++;
        text(metadata, key);
        value(metadata, value, true);
        return this;
    }

    /** Adds a tensor; {@code sizes} begin with that of rows. */
    GgufWriter tensor(String name, int type, byte[] data, long... sizes) {
        tensors.put(name, new Tensor(sizes, type, data));
        return this;
    }

    /** Converts rows of float32 numbers, whose length is given. */
    interface Conversion {

        byte[] apply(byte[] rows, long columns);
    }

    /** Returns the same model with all matrices in another type. */
    GgufWriter converted(int type, Conversion conversion) {
        GgufWriter result = new GgufWriter();
        result.metadata.writeBytes(metadata.toByteArray());
        result.entries = entries;
        tensors.forEach(
                (name, tensor) -> {
                    long columns = tensor.sizes[tensor.sizes.length - 1];
                    result.tensors.put(
                            name,
                            tensor.sizes.length == 1
                                    ? tensor
                                    : new Tensor(
                                            tensor.sizes,
                                            type,
                                            conversion.apply(tensor.data, columns)));
                });
        return result;
    }

    static byte[] floats(float[] numbers) {
        ByteBuffer bytes = buffer(4 * numbers.length);
        for (float number : numbers) {
            bytes.putFloat(number);
        }
        return bytes.array();
    }

    private static ByteBuffer buffer(int size) {
        return ByteBuffer.allocate(size).order(ByteOrder.LITTLE_ENDIAN);
    }

    private static void int4(ByteArrayOutputStream out, int value) {
        out.writeBytes(buffer(4).putInt(value).array());
    }

    private static void int8(ByteArrayOutputStream out, long value) {
        out.writeBytes(buffer(8).putLong(value).array());
    }

    private static void text(ByteArrayOutputStream out, String text) {
        byte[] utf8 = text.getBytes(StandardCharsets.UTF_8);
        int8(out, utf8.length);
        out.writeBytes(utf8);
    }

    private static void value(ByteArrayOutputStream out, Object value, boolean typed) {
        int type =
                value instanceof Integer
                        ? 4
                        : value instanceof Float
                                ? 6
                                : value instanceof Boolean ? 7 : value instanceof String ? 8 : 9;
        if (typed) {
            int4(out, type);
        }
        switch (type) {
            case 4 -> int4(out, (Integer) value);
            case 6 -> out.writeBytes(buffer(4).putFloat((Float) value).array());
            case 7 -> out.write((Boolean) value ? 1 : 0);
            case 8 -> text(out, (String) value);
            default -> {
                List<?> list = (List<?>) value;
                int4(
                        out,
                        list.isEmpty() || list.get(0) instanceof String
                                ? 8
                                : list.get(0) instanceof Float ? 6 : 5);
                int8(out, list.size());
                list.forEach(each -> value(out, each, false));
            }
        }
    }

    byte[] bytes() {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream data = new ByteArrayOutputStream();
        out.writeBytes("GGUF".getBytes(StandardCharsets.US_ASCII));
        int4(out, 3);
        int8(out, tensors.size());
        int8(out, entries);
        out.writeBytes(metadata.toByteArray());
        tensors.forEach(
                (name, tensor) -> {
                    text(out, name);
                    int4(out, tensor.sizes.length);
                    for (int i = tensor.sizes.length - 1; i >= 0; i--) {
                        int8(out, tensor.sizes[i]);
                    }
                    int4(out, tensor.type);
                    int8(out, data.size());
                    data.writeBytes(tensor.data);
                    data.writeBytes(new byte[(32 - tensor.data.length % 32) % 32]);
                });
        out.writeBytes(new byte[(32 - out.size() % 32) % 32]);
        out.writeBytes(data.toByteArray());
        return out.toByteArray();
    }

    /** Writes files, each with some of the tensors, as llama-gguf-split does; returns the first. */
    Path write(Path directory, String name, int count) throws IOException {
        List<GgufWriter> parts = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            parts.add(new GgufWriter());
        }
        parts.get(0).metadata.writeBytes(metadata.toByteArray());
        parts.get(0).entries = entries;
        int next = 0;
        for (Map.Entry<String, Tensor> tensor : tensors.entrySet()) {
            parts.get(next++ % count).tensors.put(tensor.getKey(), tensor.getValue());
        }
        List<Path> files = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            String file = "%s-%05d-of-%05d.gguf".formatted(name, i + 1, count);
            GgufWriter part = parts.get(i).put("split.no", i).put("split.count", count);
            files.add(part.put("split.tensors.count", next).write(directory.resolve(file)));
        }
        return files.get(0);
    }

    public Path write(Path file) throws IOException {
        return Files.write(file, bytes());
    }

    /** Writes a random Llama of {@link LlamaFiles}. */
    public static GgufWriter random(Path directory, ModelConfig config) throws IOException {
        LlamaFiles.write(directory, config, 1);
        JsonObject json = LlamaFiles.json(config);
        JsonObject rope = json.getAsJsonObject("rope_scaling");
        rope.add("rope_theta", json.get("rope_theta"));
        json.add("rope_parameters", rope);
        return of(directory, json);
    }

    /** Writes the float32 model of a directory with rope_parameters, and a tokenizer of letters. */
    public static GgufWriter of(Path directory, JsonObject config) throws IOException {
        GgufWriter writer = new GgufWriter();
        String type = config.get("model_type").getAsString();
        String name =
                switch (type) {
                    case "mixtral", "mistral" -> "llama";
                    case "qwen3_moe" -> "qwen3moe";
                    case "gemma3_text" -> "gemma3";
                    default -> type;
                };
        writer.put("general.architecture", name);
        int heads = config.get("num_attention_heads").getAsInt();
        int width = config.get("hidden_size").getAsInt();
        int head = config.has("head_dim") ? config.get("head_dim").getAsInt() : width / heads;
        writer.configuration(name, config, head);
        writer.letters(config.get("vocab_size").getAsInt());
        try (Safetensors files = Safetensors.open(directory);
                NDManager manager = NDManager.newBaseManager()) {
            Map<String, Map<Integer, float[]>> experts = new TreeMap<>();
            Map<String, long[]> expertSizes = new TreeMap<>();
            for (TensorSpec spec : files.specs()) {
                NDArray array = manager.zeros(spec.shape());
                files.read(spec.name(), array);
                float[] numbers = array.toFloatArray();
                long[] sizes = spec.shape().getShape();
                String own = rename(name, spec.name());
                if (name.startsWith("gemma") && own.endsWith("norm.weight")) {
                    for (int i = 0; i < numbers.length; i++) {
                        numbers[i] += 1;
                    }
                }
                if (List.of("llama", "granite", "smollm3").contains(name)
                        && own.matches(".*attn_[qk]\\..*")) {
                    // As in convert_hf_to_gguf.py: (heads, 2, half, columns), dimensions 1 and 2
                    // swapped.
                    long columns = numbers.length / sizes[0];
                    numbers =
                            array.reshape(sizes[0] / head, 2, head / 2, columns)
                                    .swapAxes(1, 2)
                                    .toFloatArray();
                }
                if (own.contains("_exps#")) {
                    String[] parts = own.split("#");
                    experts.computeIfAbsent(parts[0], key -> new TreeMap<>())
                            .put(Integer.valueOf(parts[1]), numbers);
                    expertSizes.put(parts[0], sizes);
                } else {
                    writer.tensor(own, 0, floats(numbers), sizes);
                }
            }
            experts.forEach(
                    (own, all) -> {
                        ByteArrayOutputStream data = new ByteArrayOutputStream();
                        all.values().forEach(each -> data.writeBytes(floats(each)));
                        long[] sizes = expertSizes.get(own);
                        writer.tensor(
                                own + ".weight",
                                0,
                                data.toByteArray(),
                                all.size(),
                                sizes[0],
                                sizes[1]);
                    });
        }
        return writer;
    }

    private static String rename(String architecture, String name) {
        boolean hasPostNorms = architecture.matches("gemma[23]|olmo2");
        String own =
                name.replace("model.embed_tokens", "token_embd")
                        .replace("model.norm", "output_norm")
                        .replace("lm_head", "output")
                        .replace("model.layers.", "blk.")
                        .replace("pre_feedforward_layernorm", "ffn_norm")
                        .replace("post_feedforward_layernorm", "post_ffw_norm")
                        .replace(
                                "post_attention_layernorm",
                                hasPostNorms ? "post_attention_norm" : "ffn_norm")
                        .replace("input_layernorm", "attn_norm")
                        .replaceAll("self_attn\\.([qkv]|qkv)_proj", "attn_$1")
                        .replaceAll("self_attn\\.([qk])_norm", "attn_$1_norm")
                        .replace("self_attn.o_proj", "attn_output")
                        .replace("mlp.gate_up_proj", "ffn_up")
                        .replaceAll("mlp\\.(gate|up|down)_proj", "ffn_$1")
                        .replaceAll("(mlp|block_sparse_moe)\\.gate\\.", "ffn_gate_inp.");
        return own.replaceAll(
                        "(mlp|block_sparse_moe)\\.experts\\.(\\d+)\\.(gate_proj|w1)\\.weight",
                        "ffn_gate_exps#$2")
                .replaceAll(
                        "(mlp|block_sparse_moe)\\.experts\\.(\\d+)\\.(up_proj|w3)\\.weight",
                        "ffn_up_exps#$2")
                .replaceAll(
                        "(mlp|block_sparse_moe)\\.experts\\.(\\d+)\\.(down_proj|w2)\\.weight",
                        "ffn_down_exps#$2");
    }

    private void configuration(String name, JsonObject config, int head) {
        Map<String, String> integers =
                Map.of(
                        "embedding_length", "hidden_size",
                        "block_count", "num_hidden_layers",
                        "context_length", "max_position_embeddings",
                        "feed_forward_length", "intermediate_size",
                        "attention.head_count", "num_attention_heads",
                        "attention.head_count_kv", "num_key_value_heads",
                        "attention.sliding_window", "sliding_window",
                        "expert_count", "num_local_experts",
                        "expert_used_count", "num_experts_per_tok",
                        "expert_feed_forward_length", "moe_intermediate_size");
        integers.forEach(
                (key, from) -> {
                    if (config.has(from) && !config.get(from).isJsonNull()) {
                        put(name + "." + key, config.get(from).getAsInt());
                    }
                });
        Map<String, String> numbers =
                Map.of(
                        "attn_logit_softcapping", "attn_logit_softcapping",
                        "final_logit_softcapping", "final_logit_softcapping",
                        "attention.scale", "attention_multiplier",
                        "embedding_scale", "embedding_multiplier",
                        "residual_scale", "residual_multiplier",
                        "logit_scale", "logits_scaling");
        numbers.forEach(
                (key, from) -> {
                    if (config.has(from) && !config.get(from).isJsonNull()) {
                        put(name + "." + key, config.get(from).getAsFloat());
                    }
                });
        put(name + ".attention.layer_norm_rms_epsilon", config.get("rms_norm_eps").getAsFloat());
        put(name + ".attention.key_length", head);
        put(name + ".attention.value_length", head);
        JsonObject rope = config.getAsJsonObject("rope_parameters");
        if (rope.has("full_attention")) {
            rope = rope.getAsJsonObject("full_attention");
        }
        put(name + ".rope.freq_base", rope.get("rope_theta").getAsFloat());
        boolean isPartial = rope.has("partial_rotary_factor");
        int rotated =
                (int) (head * (isPartial ? rope.get("partial_rotary_factor").getAsFloat() : 1));
        put(name + ".rope.dimension_count", rotated);
        String kind = rope.get("rope_type").getAsString();
        if (kind.equals("llama3")) {
            Rope scaled =
                    Rope.llama3(
                            rope.get("rope_theta").getAsDouble(),
                            head / 2,
                            rope.get("factor").getAsDouble(),
                            rope.get("low_freq_factor").getAsDouble(),
                            rope.get("high_freq_factor").getAsDouble(),
                            rope.get("original_max_position_embeddings").getAsInt());
            float[] factors = new float[head / 2];
            IntStream.range(0, head / 2)
                    .forEach(i -> factors[i] = scaled.divisors().get(i).floatValue());
            tensor("rope_freqs.weight", 0, floats(factors), head / 2);
        } else if (kind.equals("longrope")) {
            int original = rope.get("original_max_position_embeddings").getAsInt();
            put(name + ".rope.scaling.original_context_length", original);
            double factor = config.get("max_position_embeddings").getAsDouble() / original;
            put(
                    name + ".rope.scaling.attn_factor",
                    (float) Math.sqrt(1 + Math.log(factor) / Math.log(original)));
            tensor(
                    "rope_factors_long.weight",
                    0,
                    floats(numbers(rope, "long_factor")),
                    rotated / 2);
            tensor(
                    "rope_factors_short.weight",
                    0,
                    floats(numbers(rope, "short_factor")),
                    rotated / 2);
        } else if (!kind.equals("default")) {
            put(name + ".rope.scaling.type", kind);
            put(name + ".rope.scaling.factor", rope.get("factor").getAsFloat());
        }
    }

    private static float[] numbers(JsonObject json, String name) {
        JsonArray array = json.getAsJsonArray(name);
        float[] numbers = new float[array.size()];
        IntStream.range(0, numbers.length).forEach(i -> numbers[i] = array.get(i).getAsFloat());
        return numbers;
    }

    /** Adds a byte-level tokenizer: 128 letters, and further tokens that no text has. */
    private void letters(int size) {
        List<String> tokens = new ArrayList<>();
        for (int i = 0; i < size; i++) {
            tokens.add(
                    i < 94
                            ? Character.toString('!' + i)
                            : i == 94
                                    ? "\u0120"
                                    : i == 95 ? "\u010a" : i == 96 ? "ab" : "<t" + i + ">");
        }
        put("tokenizer.ggml.model", "gpt2");
        put("tokenizer.ggml.pre", "gpt-2");
        put("tokenizer.ggml.tokens", tokens);
        put(
                "tokenizer.ggml.token_type",
                IntStream.range(0, size).mapToObj(i -> i < 97 ? 1 : 3).toList());
        put("tokenizer.ggml.merges", List.of("a b"));
        put("tokenizer.ggml.bos_token_id", size - 2);
        put("tokenizer.ggml.eos_token_id", size - 1);
        put("tokenizer.ggml.add_bos_token", false);
    }
}
