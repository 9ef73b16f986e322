// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import ai.djl.ndarray.types.Shape;
import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.WeightMap.Slice;
import org.djlx.nativeops.host.FileWrites;
import org.djlx.nativeops.host.Required;

/**
 * The configuration of a LoRA adapter (Hu et al., 2021, <a
 * href="https://arxiv.org/abs/2106.09685">arXiv:2106.09685</a>) in the layout of Hugging Face's
 * PEFT: a directory with {@code adapter_config.json} and {@code adapter_model.safetensors}. A
 * projection with weight W computes {@code x Wᵀ + scale (x Aᵀ) Bᵀ}, with A of shape (rank, inputs)
 * and B of shape (outputs, rank).
 *
 * @param rsLora whether the scale is {@code alpha / sqrt(rank)} (rank-stabilized: Kalajdzievski,
 *     2023, <a href="https://arxiv.org/abs/2312.03732">arXiv:2312.03732</a>)
 * @param dropout the share of an adapter's inputs that training sets to 0
 * @param targets the last names of the modules with adapters, such as {@code q_proj}; empty if the
 *     file has a pattern: the tensors then say which modules have adapters
 */
public record LoraConfig(
        int rank, double alpha, boolean rsLora, double dropout, List<String> targets) {

    /** The name of the file with the configuration. */
    public static final String CONFIG = "adapter_config.json";

    /** The name of the file with the tensors. */
    public static final String WEIGHTS = "adapter_model.safetensors";

    /** The prefix of tensor names: PeftModel's field, then LoraModel's. */
    public static final String PREFIX = "base_model.model.";

    /** The highest rank that generators load. */
    public static final int MAX_RANK = 256;

    // Entries that change what an adapter computes: refused if they are set.
    private static final List<String> UNSUPPORTED =
            List.of(
                    ("use_dora use_qalora fan_in_fan_out lora_bias modules_to_save rank_pattern"
                                    + " alpha_pattern layers_to_transform layer_replication"
                                    + " alora_invocation_tokens target_parameters"
                                    + " trainable_token_indices")
                            .split(" "));

    private static final Gson GSON =
            new GsonBuilder().setPrettyPrinting().serializeNulls().disableHtmlEscaping().create();

    private static final Set<String> UNSET = Set.of("null", "false", "[]", "{}");

    // The projections that may have adapters.
    private static final Set<TensorPart> PARTS =
            Set.of(
                    TensorPart.QUERIES,
                    TensorPart.KEYS,
                    TensorPart.VALUES,
                    TensorPart.ATTENTION_OUT,
                    TensorPart.GATE,
                    TensorPart.UP,
                    TensorPart.DOWN);

    /**
     * Reads an adapter's configuration.
     *
     * @throws IllegalArgumentException if the adapter is not plain LoRA, or an entry is missing or
     *     out of range; the message names the entry
     */
    public static LoraConfig read(Path directory) throws IOException {
        Path file = directory.resolve(CONFIG);
        if (!Files.isRegularFile(file)) {
            throw new IllegalArgumentException(
                    "%s has no %s; name the directory of an adapter in PEFT's layout"
                            .formatted(directory, CONFIG));
        }
        ConfigEntries entries = ConfigEntries.read(file);
        return Required.naming(file, () -> of(entries));
    }

    private static LoraConfig of(ConfigEntries json) {
        require("peft_type", "LORA", json.text("peft_type", "LORA"));
        require("bias", "none", json.text("bias", "none"));
        for (String name : UNSUPPORTED) {
            JsonElement value = json.get(name);
            Required.check(
                    value == null || UNSET.contains(value.toString()),
                    "%s is not supported, but it is %s",
                    name,
                    value);
        }
        String start = String.valueOf(json.get("init_lora_weights"));
        Required.check(
                !start.matches("\"(?i:pissa|corda|olora|loftq).*"),
                "init_lora_weights is %s, which changes the model's own weights, too; convert the"
                        + " adapter to plain LoRA with PEFT",
                start);
        int rank = json.integer("r", null);
        double alpha = json.number("lora_alpha", null);
        Required.check(rank >= 1, "r must be 1 or more, not %d", rank);
        Required.check(Double.isFinite(alpha), "lora_alpha must be finite, not %s", alpha);
        JsonElement targets = json.get("target_modules");
        boolean isPattern = targets == null || targets.isJsonPrimitive();
        return new LoraConfig(
                rank,
                alpha,
                json.flag("use_rslora", false),
                json.number("lora_dropout", 0.0),
                isPattern
                        ? List.of()
                        : json.array("target_modules").stream().map(LoraConfig::target).toList());
    }

    private static String target(JsonElement name) {
        Required.check(
                name.isJsonPrimitive(), "target_modules must list names of modules, not %s", name);
        return name.getAsString();
    }

    /**
     * Writes {@code adapter_config.json}.
     *
     * @param base the directory of the model without the adapter, null if there is none
     */
    public void write(Path directory, Path base) throws IOException {
        JsonObject json = new JsonObject();
        json.addProperty("peft_type", "LORA");
        json.addProperty("task_type", "CAUSAL_LM");
        json.addProperty("base_model_name_or_path", base == null ? null : base.toString());
        json.addProperty("r", rank);
        boolean isWhole = alpha == Math.rint(alpha);
        json.addProperty("lora_alpha", isWhole ? (Number) (long) alpha : (Number) alpha);
        json.addProperty("lora_dropout", dropout);
        json.addProperty("use_rslora", rsLora);
        json.addProperty("bias", "none");
        json.addProperty("inference_mode", true);
        json.add("target_modules", GSON.toJsonTree(targets));
        Path config = directory.resolve(CONFIG);
        FileWrites.naming(config, () -> Files.writeString(config, GSON.toJson(json) + "\n"));
    }

    private static void require(String name, String expected, String value) {
        Required.check(value.equals(expected), "%s must be %s, not %s", name, expected, value);
    }

    /** {@return the factor of {@code (x Aᵀ) Bᵀ}} */
    public double scale() {
        return alpha / (rsLora ? Math.sqrt(rank) : rank);
    }

    /** {@return the name of the tensor A of a projection} */
    public static String a(Slice projection) {
        return name(projection, "lora_A");
    }

    /** {@return the name of the tensor B of a projection} */
    public static String b(Slice projection) {
        return name(projection, "lora_B");
    }

    private static String name(Slice projection, String matrix) {
        return PREFIX + projection.name().replaceFirst("weight$", matrix + ".weight");
    }

    /**
     * Opens the tensors of an adapter and checks that they fit a model. The caller closes them.
     *
     * @throws IllegalArgumentException if they do not fit the model; the message names the
     *     directory and the tensor
     */
    public Safetensors open(Path directory, ModelConfig config) throws IOException {
        Path file = directory.resolve(WEIGHTS);
        if (!Files.isRegularFile(file)) {
            throw new IllegalArgumentException(
                    "%s has no %s; save the adapter with PEFT as safetensors"
                            .formatted(directory, WEIGHTS));
        }
        Safetensors files = Safetensors.open(file);
        try {
            check(config, files);
            return files;
        } catch (IllegalArgumentException e) {
            files.close();
            throw new IllegalArgumentException(directory + ": " + e.getMessage(), e);
        }
    }

    private void check(ModelConfig config, TensorFiles files) {
        Required.check(rank <= MAX_RANK, "r must be 1 to %d, not %d", MAX_RANK, rank);
        Map<String, Shape> shapes = new LinkedHashMap<>();
        for (int i = 0; i < config.layers(); i++) {
            WeightMap.Layer layer = new WeightMap.Layer(config, i);
            for (TensorPart part : PARTS) {
                Slice slice = layer.get(part, 0, false);
                if (slice != null) {
                    shapes.put(a(slice), new Shape(rank, slice.columns()));
                    // Several parts may be rows of one tensor, such as qkv_proj.
                    shapes.merge(
                            b(slice),
                            new Shape(slice.first() + slice.rows(), rank),
                            (one, other) -> one.get(0) > other.get(0) ? one : other);
                }
            }
        }
        Required.check(!files.specs().isEmpty(), "%s has no tensors", WEIGHTS);
        for (TensorSpec spec : files.specs()) {
            String name = spec.name();
            Shape shape = shapes.get(name);
            Required.check(
                    shape != null,
                    "the adapter has a tensor '%s', but adapters of this model may have A and B"
                            + " (lora_A, lora_B) of the attention's and the MLP's projections in"
                            + " layers 0 to %d only; take an adapter of this model",
                    name,
                    config.layers() - 1);
            Required.check(
                    spec.type().isFloatingPoint(),
                    "the tensor '%s' has elements of type %s; take an adapter with floating-point"
                            + " elements",
                    name,
                    spec.type());
            Required.check(
                    spec.shape().equals(shape),
                    "the tensor '%s' has the shape %s, but this model and rank %d require %s; take"
                            + " an adapter of this model",
                    name,
                    spec.shape(),
                    rank,
                    shape);
            String other =
                    name.contains(".lora_A.")
                            ? name.replace(".lora_A.", ".lora_B.")
                            : name.replace(".lora_B.", ".lora_A.");
            Required.check(files.contains(other), "the adapter has '%s', but no '%s'", name, other);
        }
    }
}
