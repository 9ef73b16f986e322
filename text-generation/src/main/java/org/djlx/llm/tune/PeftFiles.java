// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.tune;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParseException;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.host.FileWrites;
import org.djlx.training.nn.Lora;

/** Adapters in the layout of Hugging Face's PEFT. */
final class PeftFiles {

    static final String WEIGHTS = "adapter_model.safetensors";

    /** The prefix of tensor names: PeftModel's field, then LoraModel's. */
    static final String PREFIX = "base_model.model.";

    private static final String CONFIG = "adapter_config.json";
    private static final Gson GSON =
            new GsonBuilder().setPrettyPrinting().serializeNulls().disableHtmlEscaping().create();

    // Entries that change what an adapter computes: refused unless they are unset.
    private static final List<String> UNSUPPORTED =
            List.of(
                    "use_dora",
                    "use_rslora",
                    "fan_in_fan_out",
                    "lora_bias",
                    "modules_to_save",
                    "rank_pattern",
                    "alpha_pattern",
                    "layers_to_transform",
                    "layer_replication",
                    "alora_invocation_tokens",
                    "target_parameters",
                    "trainable_token_indices");

    private PeftFiles() {}

    /**
     * {@code modules} are the module names of projections, such as {@code self_attn.q_proj}; {@code
     * base} is the directory of the model without the adapter, null if there is none.
     */
    static void writeConfig(Path directory, Lora lora, Map<String, String> modules, Path base)
            throws IOException {
        JsonObject json = new JsonObject();
        json.addProperty("peft_type", "LORA");
        json.addProperty("task_type", "CAUSAL_LM");
        json.addProperty("base_model_name_or_path", base == null ? null : base.toString());
        json.addProperty("r", lora.rank());
        if (lora.alpha() == Math.rint(lora.alpha())) {
            json.addProperty("lora_alpha", (long) lora.alpha());
        } else {
            json.addProperty("lora_alpha", lora.alpha());
        }
        json.addProperty("lora_dropout", 0.0);
        json.addProperty("bias", "none");
        json.addProperty("inference_mode", true);
        json.add(
                "target_modules",
                GSON.toJsonTree(
                        Lora.PROJECTIONS.stream()
                                .filter(lora.targets()::contains)
                                .map(each -> lastName(modules.get(each)))
                                .toList()));
        Path config = directory.resolve(CONFIG);
        FileWrites.naming(config, () -> Files.writeString(config, GSON.toJson(json) + "\n"));
    }

    private static String lastName(String module) {
        return module.substring(module.lastIndexOf('.') + 1);
    }

    /** Reads {@code adapter_config.json}; the parameters are those of {@link #writeConfig}. */
    static Lora readConfig(Path directory, Map<String, String> modules) throws IOException {
        Path file = directory.resolve(CONFIG);
        try {
            JsonObject json = JsonParser.parseString(Files.readString(file)).getAsJsonObject();
            require(json, "peft_type", "LORA");
            require(json, "bias", "none");
            for (String name : UNSUPPORTED) {
                JsonElement value = json.get(name);
                boolean unset =
                        value == null
                                || List.of("null", "false", "[]", "{}").contains(value.toString());
                if (!unset) {
                    throw new IllegalArgumentException(
                            "%s is not supported, but it is %s".formatted(name, value));
                }
            }
            String start = String.valueOf(json.get("init_lora_weights"));
            if (start.matches("\"(?i:pissa|corda|olora|loftq).*")) {
                throw new IllegalArgumentException(
                        "init_lora_weights is %s, which changes the model's own weights, too;"
                                        .formatted(start)
                                + " convert the adapter to plain LoRA with PEFT");
            }
            Set<String> targets = new LinkedHashSet<>();
            for (JsonElement target : json.get("target_modules").getAsJsonArray()) {
                targets.add(projection(target.getAsString(), modules));
            }
            return new Lora(
                    json.get("r").getAsInt(), json.get("lora_alpha").getAsDouble(), targets);
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException(file + ": " + e.getMessage(), e);
        } catch (JsonParseException
                | IllegalStateException
                | NullPointerException
                | UnsupportedOperationException e) { // A value is missing, null or of another type.
            throw new IllegalArgumentException(
                    file + ": not the configuration of an adapter: " + e.getMessage(), e);
        }
    }

    private static String projection(String target, Map<String, String> modules) {
        return Lora.PROJECTIONS.stream()
                .filter(each -> lastName(modules.get(each)).equals(target))
                .findFirst()
                .orElseThrow(
                        () ->
                                new IllegalArgumentException(
                                        "target_modules has '%s'; supported are the projections %s"
                                                .formatted(target, modules.values())));
    }

    private static void require(JsonObject json, String name, String expected) {
        JsonElement value = json.get(name);
        if (value != null && !value.getAsString().equals(expected)) {
            throw new IllegalArgumentException(
                    "%s must be %s, not %s".formatted(name, expected, value));
        }
    }

    static void check(Safetensors files, List<TensorSpec> expected) {
        for (TensorSpec spec : expected) {
            if (!files.contains(spec.name())
                    || !files.spec(spec.name()).shape().equals(spec.shape())) {
                throw new IllegalArgumentException(
                        "the adapter must have a tensor '%s' of shape %s; take an adapter of this"
                                        .formatted(spec.name(), spec.shape())
                                + " model");
            }
        }
        if (files.specs().size() != expected.size()) {
            throw new IllegalArgumentException(
                    "the adapter must have %d tensors, not %d; take an adapter of this model"
                            .formatted(expected.size(), files.specs().size()));
        }
    }
}
