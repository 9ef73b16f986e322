// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.TreeSet;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.ScalarType;

/** Random LoRA adapters in PEFT's layout, and models that have them merged. */
public record AdapterFiles(int rank, double alpha, boolean rsLora, String modules, long seed) {

    /** All projections of the attention and of an MLP without experts. */
    public static final String ALL = "self_attn\\.\\w+_proj|mlp\\.\\w+_proj";

    private static final String PREFIX = "base_model.model.";

    private double scale() {
        return rsLora ? alpha / Math.sqrt(rank) : alpha / rank;
    }

    private boolean adapts(String weight) {
        return weight.matches("model\\.layers\\.\\d+\\.(" + modules + ")\\.weight");
    }

    /** Returns the values of A or B; products of both have about the size of the weights. */
    private float[] values(String weight, String matrix, long size) {
        Random random = new Random(seed * 31 + (weight + matrix).hashCode());
        double deviation = matrix.equals("A") ? 0.3 : 1 / (scale() * Math.sqrt(rank));
        float[] values = new float[(int) size];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) (deviation * random.nextGaussian());
        }
        return values;
    }

    /** Writes an adapter of a model. */
    public Path write(Path model, Path directory) throws IOException {
        Files.createDirectories(directory);
        List<TensorSpec> specs = new ArrayList<>();
        TreeSet<String> targets = new TreeSet<>();
        try (Safetensors files = Safetensors.open(model)) {
            for (TensorSpec spec : files.specs()) {
                if (adapts(spec.name())) {
                    String module = spec.name().replaceFirst("weight$", "");
                    targets.add(module.replaceFirst("\\.$", "").replaceFirst(".*\\.", ""));
                    add(specs, module + "lora_A.weight", rank, spec.shape().get(1));
                    add(specs, module + "lora_B.weight", spec.shape().get(0), rank);
                }
            }
        }
        JsonObject json = new JsonObject();
        json.addProperty("peft_type", "LORA");
        json.addProperty("task_type", "CAUSAL_LM");
        json.addProperty("r", rank);
        json.addProperty("lora_alpha", alpha);
        json.addProperty("lora_dropout", 0.1);
        json.addProperty("bias", "none");
        json.addProperty("use_rslora", rsLora);
        json.addProperty("use_dora", false);
        JsonArray names = new JsonArray();
        targets.forEach(names::add);
        json.add("target_modules", names);
        Files.writeString(directory.resolve("adapter_config.json"), json.toString());
        try (NDManager manager = NDManager.newBaseManager()) {
            SafetensorsWriter.write(
                    directory.resolve("adapter_model.safetensors"),
                    specs,
                    spec -> array(manager, spec));
        }
        return directory;
    }

    private static void add(List<TensorSpec> to, String name, long rows, long columns) {
        to.add(TensorSpec.of(PREFIX + name, ScalarType.FLOAT32, new Shape(rows, columns)));
    }

    private NDArray array(NDManager manager, TensorSpec spec) {
        String name = spec.name().substring(PREFIX.length());
        String matrix = name.contains("lora_A") ? "A" : "B";
        String weight = name.replaceFirst("lora_[AB]\\.", "");
        return manager.create(values(weight, matrix, spec.shape().size()), spec.shape());
    }

    /** Sets an entry of an adapter's configuration. */
    public static void set(Path adapter, String entry, String value) throws IOException {
        Path file = adapter.resolve("adapter_config.json");
        JsonObject json = JsonParser.parseString(Files.readString(file)).getAsJsonObject();
        json.add(entry, JsonParser.parseString(value));
        Files.writeString(file, json.toString());
    }

    /** Writes a model with {@code W + scale B A} for each weight W that has an adapter. */
    public Path merge(Path model, Path directory) throws IOException {
        Files.createDirectories(directory);
        for (String name : List.of("config.json", "tokenizer.json")) {
            if (Files.exists(model.resolve(name))) {
                Files.copy(model.resolve(name), directory.resolve(name));
            }
        }
        try (Safetensors files = Safetensors.open(model);
                NDManager manager = NDManager.newBaseManager()) {
            SafetensorsWriter.writeModel(
                    directory,
                    List.copyOf(files.specs()),
                    1 << 20,
                    spec -> merged(manager, files, spec));
        }
        return directory;
    }

    private NDArray merged(NDManager manager, Safetensors files, TensorSpec spec) {
        NDArray weight = manager.zeros(spec.shape());
        files.read(spec.name(), weight);
        if (!adapts(spec.name())) {
            return weight;
        }
        int outputs = (int) spec.shape().get(0);
        int inputs = (int) spec.shape().get(1);
        float[] a = values(spec.name(), "A", (long) rank * inputs);
        float[] b = values(spec.name(), "B", (long) outputs * rank);
        float[] sum = weight.toFloatArray();
        for (int row = 0; row < outputs; row++) {
            for (int column = 0; column < inputs; column++) {
                double product = 0;
                for (int i = 0; i < rank; i++) {
                    product += (double) b[row * rank + i] * a[i * inputs + column];
                }
                sum[row * inputs + column] += (float) (scale() * product);
            }
        }
        return manager.create(sum, spec.shape());
    }
}
