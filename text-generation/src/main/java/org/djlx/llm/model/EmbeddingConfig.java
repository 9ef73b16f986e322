// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.nativeops.host.Required.check;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * How the vectors of a text's tokens become one: pooling, normalisation and prompts, from
 * sentence-transformers' {@code modules.json} and the files that it names. Without that file, the
 * mean of all tokens, not normalised, as in sentence-transformers.
 *
 * @param normalizes whether vectors are scaled to length 1
 * @param maxLength the maximum number of tokens of a text; 0 for that of the model
 * @param prompts prefixes of texts, by their names, such as {@code query}
 * @param defaultPrompt the name of the prompt that is used if none is named; null for none
 */
public record EmbeddingConfig(
        Pooling pooling,
        boolean normalizes,
        int maxLength,
        Map<String, String> prompts,
        String defaultPrompt) {

    public static final String MODULES = "modules.json";

    /** How the vectors of a text's tokens become one. */
    public enum Pooling {
        CLS("cls_token", "cls"),
        LAST_TOKEN("lasttoken", "lasttoken"),
        MAX("max_tokens", "max"),
        MEAN("mean_tokens", "mean"),
        /** The sum divided by the root of the number of tokens. */
        MEAN_SQRT("mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        /** The mean with weight i for the i-th token. */
        WEIGHTED_MEAN("weightedmean_tokens", "weightedmean");

        private final String flag; // in 1_Pooling/config.json, after pooling_mode_
        private final String mode; // the value of pooling_mode in newer files

        Pooling(String flag, String mode) {
            this.flag = flag;
            this.mode = mode;
        }
    }

    public EmbeddingConfig {
        prompts = Map.copyOf(prompts);
        check(
                defaultPrompt == null || prompts.containsKey(defaultPrompt),
                "default_prompt_name is '%s', and prompts has %s",
                defaultPrompt,
                prompts.keySet());
    }

    /** {@return whether a model is for embeddings: an encoder, or a model with {@link #MODULES}} */
    public static boolean isEmbeddingModel(Path directory) throws IOException {
        return Files.exists(directory.resolve(MODULES))
                || Files.exists(directory.resolve("config.json"))
                        && EncoderConfig.isEncoder(directory);
    }

    /**
     * Reads the files of a model directory.
     *
     * @throws IllegalArgumentException if a module or an entry is not supported; the message names
     *     the file
     */
    public static EmbeddingConfig read(Path directory) throws IOException {
        Pooling pooling = Pooling.MEAN;
        boolean normalizes = false;
        for (ConfigEntries module : modules(directory.resolve(MODULES))) {
            String type = module.text("type", "");
            switch (type.substring(type.lastIndexOf('.') + 1)) {
                case "Transformer" -> {}
                case "Pooling" -> pooling = pooling(directory.resolve(module.text("path", "")));
                case "Normalize" -> normalizes = true;
                default ->
                        throw new IllegalArgumentException(
                                "%s has a module '%s'; supported are Transformer, Pooling and Normalize"
                                        .formatted(directory.resolve(MODULES), type));
            }
        }
        ConfigEntries texts = optional(directory.resolve("sentence_bert_config.json"));
        ConfigEntries all = optional(directory.resolve("config_sentence_transformers.json"));
        Map<String, String> prompts = new LinkedHashMap<>();
        ConfigEntries given = all.entries("prompts");
        given.json().keySet().forEach(name -> prompts.put(name, given.text(name, "")));
        return new EmbeddingConfig(
                pooling,
                normalizes,
                texts.integer("max_seq_length", 0),
                prompts,
                all.text("default_prompt_name", null));
    }

    private static List<ConfigEntries> modules(Path file) throws IOException {
        if (!Files.exists(file)) {
            return List.of();
        }
        try {
            JsonElement modules = JsonParser.parseString(Files.readString(file));
            return modules.getAsJsonArray().asList().stream()
                    .map(each -> new ConfigEntries(each.getAsJsonObject()))
                    .toList();
        } catch (RuntimeException e) {
            throw new IllegalArgumentException(file + ": not a list of modules", e);
        }
    }

    private static ConfigEntries optional(Path file) throws IOException {
        return Files.exists(file) ? ConfigEntries.read(file) : new ConfigEntries(new JsonObject());
    }

    private static Pooling pooling(Path folder) throws IOException {
        Path file = folder.resolve("config.json");
        ConfigEntries json = ConfigEntries.read(file);
        check(
                json.flag("include_prompt", true),
                "%s: include_prompt must be true: prompts are pooled, too",
                file);
        String mode = json.text("pooling_mode", null);
        List<Pooling> chosen = new ArrayList<>();
        for (Pooling each : Pooling.values()) {
            boolean isSet =
                    mode == null
                            ? json.flag("pooling_mode_" + each.flag, false)
                            : mode.toLowerCase(Locale.ROOT).equals(each.mode);
            if (isSet) {
                chosen.add(each);
            }
        }
        check(chosen.size() == 1, "%s: one pooling mode must be set, not %s", file, chosen);
        return chosen.get(0);
    }

    /**
     * Returns the vector of a text: the first {@code dimensions} elements of the pooled vector,
     * scaled to length 1 if the model normalises.
     */
    public float[] finish(float[] pooled, int dimensions) {
        float[] vector = Arrays.copyOf(pooled, dimensions);
        if (normalizes) {
            double squares = 0;
            for (float x : vector) {
                squares += (double) x * x;
            }
            double length = Math.max(Math.sqrt(squares), 1e-12);
            for (int i = 0; i < vector.length; i++) {
                vector[i] = (float) (vector[i] / length);
            }
        }
        return vector;
    }
}
