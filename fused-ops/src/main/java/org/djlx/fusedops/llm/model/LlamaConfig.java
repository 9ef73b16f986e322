// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.model;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The configuration of a Llama model, as in Hugging Face's {@code config.json}.
 *
 * @param vocabularySize the number of tokens in the vocabulary
 * @param hiddenSize the hidden size
 * @param intermediateSize the intermediate size of the MLP
 * @param layers the number of layers
 * @param heads the number of query heads
 * @param kvHeads the number of key-value heads; divides the number of query heads
 * @param headSize the head size
 * @param maxLength the maximum number of tokens of a sequence
 * @param epsilon the epsilon of RMSNorm
 * @param rope the rotary embedding
 * @param tied whether the output matrix is the embedding
 * @param endTokens the end-of-text tokens
 * @param type the type of the weights and of the computation: float32, float16 or bfloat16
 */
public record LlamaConfig(
        int vocabularySize,
        int hiddenSize,
        int intermediateSize,
        int layers,
        int heads,
        int kvHeads,
        int headSize,
        int maxLength,
        double epsilon,
        Rope rope,
        boolean tied,
        List<Integer> endTokens,
        ScalarType type) {

    private static final int MAX_LAYERS = 10_000; // bounds the list of tensor names
    private static final int MAX_SIZE = 1 << 24; // so that the product of two sizes fits a long

    /**
     * Rotary position embedding (Su et al., 2021, <a
     * href="https://arxiv.org/abs/2104.09864">arXiv:2104.09864</a>) and its scaling to longer
     * texts.
     *
     * @param theta the base of the frequencies
     * @param factor the factor of the wavelengths; 1 for no scaling
     * @param lowFrequency Llama 3: wavelengths longer than {@code originalLength / lowFrequency}
     *     are scaled; 0 for linear scaling, which scales all wavelengths
     * @param highFrequency Llama 3: wavelengths shorter than {@code originalLength / highFrequency}
     *     are not scaled
     * @param originalLength Llama 3: the length of the original training, in tokens
     */
    public record Rope(
            double theta,
            double factor,
            double lowFrequency,
            double highFrequency,
            int originalLength) {

        /**
         * {@return the rotation of each pair of elements of a head per position: {@code headSize /
         * 2} angles in radians}
         *
         * @param headSize the head size
         */
        public double[] frequencies(int headSize) {
            double[] frequencies = new double[headSize / 2];
            for (int i = 0; i < frequencies.length; i++) {
                frequencies[i] = scaled(Math.pow(theta, -2.0 * i / headSize));
            }
            return frequencies;
        }

        private double scaled(double frequency) {
            if (lowFrequency == 0) {
                return frequency / factor;
            }
            double turns = originalLength * frequency / (2 * Math.PI);
            if (turns < lowFrequency) {
                return frequency / factor;
            }
            if (turns > highFrequency) {
                return frequency;
            }
            double smooth = (turns - lowFrequency) / (highFrequency - lowFrequency);
            return (1 - smooth) * frequency / factor + smooth * frequency;
        }
    }

    /**
     * Checks the values.
     *
     * @param vocabularySize the number of tokens in the vocabulary
     * @param hiddenSize the hidden size
     * @param intermediateSize the intermediate size of the MLP
     * @param layers the number of layers
     * @param heads the number of query heads
     * @param kvHeads the number of key-value heads; divides the number of query heads
     * @param headSize the head size
     * @param maxLength the maximum number of tokens of a sequence
     * @param epsilon the epsilon of RMSNorm
     * @param rope the rotary embedding
     * @param tied whether the output matrix is the embedding
     * @param endTokens the end-of-text tokens
     * @param type the type of the weights and of the computation: float32, float16 or bfloat16
     * @throws IllegalArgumentException if a value is out of range
     */
    public LlamaConfig {
        size("vocab_size", vocabularySize);
        size("hidden_size", hiddenSize);
        size("intermediate_size", intermediateSize);
        size("num_hidden_layers", layers);
        check(
                layers <= MAX_LAYERS,
                "num_hidden_layers must be at most %d, not %d",
                MAX_LAYERS,
                layers);
        size("num_attention_heads", heads);
        size("num_key_value_heads", kvHeads);
        size("head_dim", headSize);
        size("max_position_embeddings", maxLength);
        check(
                heads % kvHeads == 0,
                "num_attention_heads %d is not a multiple of num_key_value_heads %d",
                heads,
                kvHeads);
        check(
                (long) heads * headSize <= MAX_SIZE,
                "num_attention_heads %d times head_dim %d is more than %d",
                heads,
                headSize,
                MAX_SIZE);
        check(headSize % 2 == 0, "head_dim must be even, not %d", headSize);
        check(epsilon >= 0 && epsilon < 1, "rms_norm_eps must be from 0 to 1, not %s", epsilon);
        check(
                rope.theta > 0 && Double.isFinite(rope.theta),
                "rope_theta must be above 0, not %s",
                rope.theta);
        check(
                rope.factor >= 1 && Double.isFinite(rope.factor),
                "the factor of rope_scaling must be 1 or more, not %s",
                rope.factor);
        if (rope.lowFrequency != 0) {
            check(
                    rope.lowFrequency > 0 && rope.lowFrequency < rope.highFrequency,
                    "rope_scaling must have 0 < low_freq_factor < high_freq_factor, not %s and %s",
                    rope.lowFrequency,
                    rope.highFrequency);
            size("original_max_position_embeddings of rope_scaling", rope.originalLength);
        }
        check(
                type == ScalarType.FLOAT32
                        || type == ScalarType.FLOAT16
                        || type == ScalarType.BFLOAT16,
                "the type must be float32, float16 or bfloat16, not %s",
                type);
        for (int token : endTokens) {
            check(
                    token >= 0 && token < vocabularySize,
                    "eos_token_id %d is out of range: the vocabulary has %d tokens",
                    token,
                    vocabularySize);
        }
        endTokens = List.copyOf(endTokens);
    }

    /**
     * Reads {@code config.json} of a model directory. The end-of-text tokens of {@code
     * generation_config.json}, if that exists, take precedence.
     *
     * @param directory the model directory
     * @return the configuration
     * @throws IOException if a file cannot be read
     * @throws IllegalArgumentException if this is not a Llama model, or an entry is not supported;
     *     the message names the file and the entry
     */
    public static LlamaConfig read(Path directory) throws IOException {
        Path file = directory.resolve("config.json");
        JsonObject json = object(file);
        Path generation = directory.resolve("generation_config.json");
        if (Files.exists(generation)) {
            JsonElement end = object(generation).get("eos_token_id");
            if (end != null && !end.isJsonNull()) {
                json.add("eos_token_id", end);
            }
        }
        try {
            return parse(new Entries(json));
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(file + ": " + e.getMessage(), e);
        }
    }

    private static JsonObject object(Path file) throws IOException {
        try (Reader reader = Files.newBufferedReader(file)) {
            JsonElement json = JsonParser.parseReader(reader);
            if (!json.isJsonObject()) {
                throw new IllegalArgumentException(file + ": not a JSON object");
            }
            return json.getAsJsonObject();
        } catch (NoSuchFileException e) {
            throw new NoSuchFileException(
                    file.toString(), null, "no such file; download it from where the weights are");
        } catch (JsonParseException e) {
            throw new IllegalArgumentException(
                    file + ": not JSON: " + e.getMessage() + "; download it again", e);
        }
    }

    private static LlamaConfig parse(Entries json) {
        String kind = json.text("model_type", "");
        check(kind.equals("llama"), "model_type must be llama, not '%s'", kind);
        String activation = json.text("hidden_act", "silu");
        check(activation.equals("silu"), "hidden_act must be silu, not '%s'", activation);
        for (String bias : List.of("attention_bias", "mlp_bias")) {
            check(!json.flag(bias, false), "%s must be false: biases are not supported", bias);
        }
        check(
                !json.has("quantization_config"),
                "quantization_config is not supported: use a model without quantization");
        int hidden = json.integer("hidden_size", null);
        int heads = json.integer("num_attention_heads", null);
        size("num_attention_heads", heads);
        check(
                json.has("head_dim") || hidden % heads == 0,
                "hidden_size %d is not a multiple of num_attention_heads %d, and head_dim is"
                        + " missing",
                hidden,
                heads);
        return new LlamaConfig(
                json.integer("vocab_size", null),
                hidden,
                json.integer("intermediate_size", null),
                json.integer("num_hidden_layers", null),
                heads,
                json.integer("num_key_value_heads", heads),
                json.integer("head_dim", hidden / heads),
                json.integer("max_position_embeddings", 2048),
                json.number("rms_norm_eps", 1e-6),
                rope(json),
                json.flag("tie_word_embeddings", false),
                endTokens(json.get("eos_token_id")),
                type(json.text("torch_dtype", json.text("dtype", "float32"))));
    }

    private static Rope rope(Entries json) {
        // Newer files have these entries in rope_parameters.
        Entries scaling =
                json.entries(json.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
        double theta = scaling.number("rope_theta", json.number("rope_theta", 10000.0));
        String kind = scaling.text("rope_type", scaling.text("type", "default"));
        return switch (kind) {
            case "default" -> new Rope(theta, 1, 0, 0, 0);
            case "linear" -> new Rope(theta, scaling.number("factor", null), 0, 0, 0);
            case "llama3" -> {
                double low = scaling.number("low_freq_factor", null);
                check(low > 0, "low_freq_factor of rope_scaling must be above 0, not %s", low);
                yield new Rope(
                        theta,
                        scaling.number("factor", null),
                        low,
                        scaling.number("high_freq_factor", null),
                        scaling.integer("original_max_position_embeddings", null));
            }
            default ->
                    throw new IllegalArgumentException(
                            "rope_type must be default, linear or llama3, not '" + kind + "'");
        };
    }

    private static List<Integer> endTokens(JsonElement value) {
        List<Integer> tokens = new ArrayList<>();
        if (value != null && value.isJsonArray()) {
            JsonArray array = value.getAsJsonArray();
            array.forEach(token -> tokens.add(Entries.wholeNumber("eos_token_id", token)));
        } else if (value != null) {
            tokens.add(Entries.wholeNumber("eos_token_id", value));
        }
        return tokens;
    }

    private static ScalarType type(String name) {
        return switch (name) {
            case "float32" -> ScalarType.FLOAT32;
            case "float16" -> ScalarType.FLOAT16;
            case "bfloat16" -> ScalarType.BFLOAT16;
            default ->
                    throw new IllegalArgumentException(
                            "torch_dtype must be float32, float16 or bfloat16, not '" + name + "'");
        };
    }

    /**
     * Checks that the model can be divided among ranks (tensor parallelism).
     *
     * @param ranks the number of ranks
     * @throws IllegalArgumentException if heads or the MLP cannot be divided
     */
    public void checkDivisible(int ranks) {
        check(ranks >= 1, "the number of ranks must be 1 or more, not %d", ranks);
        check(
                heads % ranks == 0,
                "num_attention_heads %d cannot be divided among %d ranks",
                heads,
                ranks);
        check(
                kvHeads % ranks == 0 || ranks % kvHeads == 0,
                "num_key_value_heads %d can neither be divided among nor shared evenly by %d ranks",
                kvHeads,
                ranks);
        check(
                intermediateSize % ranks == 0,
                "intermediate_size %d cannot be divided among %d ranks",
                intermediateSize,
                ranks);
    }

    private static void size(String name, long value) {
        check(
                value >= 1 && value <= MAX_SIZE,
                "%s must be from 1 to %d, not %d",
                name,
                MAX_SIZE,
                value);
    }

    private static void check(boolean condition, String problem, Object... values) {
        if (!condition) {
            throw new IllegalArgumentException(String.format(problem, values));
        }
    }

    /** The entries of a JSON object. An entry of null counts as missing. */
    private record Entries(JsonObject json) {

        JsonElement get(String name) {
            JsonElement value = json.get(name);
            return value == null || value.isJsonNull() ? null : value;
        }

        boolean has(String name) {
            return get(name) != null;
        }

        Entries entries(String name) {
            JsonElement value = get(name);
            check(
                    value == null || value.isJsonObject(),
                    "%s must be an object, not %s",
                    name,
                    value);
            return new Entries(value == null ? new JsonObject() : value.getAsJsonObject());
        }

        String text(String name, String defaultValue) {
            JsonElement value = get(name);
            if (value == null) {
                return defaultValue;
            }
            check(
                    value.isJsonPrimitive() && value.getAsJsonPrimitive().isString(),
                    "%s must be a string, not %s",
                    name,
                    value);
            return value.getAsString();
        }

        boolean flag(String name, boolean defaultValue) {
            JsonElement value = get(name);
            if (value == null) {
                return defaultValue;
            }
            check(
                    value.isJsonPrimitive() && value.getAsJsonPrimitive().isBoolean(),
                    "%s must be true or false, not %s",
                    name,
                    value);
            return value.getAsBoolean();
        }

        double number(String name, Double defaultValue) {
            JsonElement value = get(name);
            check(value != null || defaultValue != null, "%s is missing", name);
            return value == null ? defaultValue : anyNumber(name, value);
        }

        int integer(String name, Integer defaultValue) {
            JsonElement value = get(name);
            check(value != null || defaultValue != null, "%s is missing", name);
            return value == null ? defaultValue : wholeNumber(name, value);
        }

        static int wholeNumber(String name, JsonElement value) {
            double number = anyNumber(name, value);
            check((int) number == number, "%s must be a whole number, not %s", name, value);
            return (int) number;
        }

        private static double anyNumber(String name, JsonElement value) {
            check(
                    value.isJsonPrimitive() && value.getAsJsonPrimitive().isNumber(),
                    "%s must be a number, not %s",
                    name,
                    value);
            return value.getAsDouble();
        }
    }
}
