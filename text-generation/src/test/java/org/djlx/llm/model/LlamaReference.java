// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.function.BiFunction;
import java.util.function.UnaryOperator;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** A reference Llama: float64, plain loops, one sequence, no cache. */
public final class LlamaReference {

    private final ModelConfig config;
    private final UnaryOperator<double[]> cached;
    private final double[] frequencies;
    private final Map<String, double[]> weights = new HashMap<>();

    public LlamaReference(Path directory) throws IOException {
        this(directory, (spec, values) -> values, heads -> heads);
    }

    /**
     * Reads a model, and changes its tensors; a tied embedding also as the output matrix.
     *
     * @param cached changes the heads of keys, or of values, of a token
     */
    public LlamaReference(
            Path directory,
            BiFunction<TensorSpec, double[], double[]> change,
            UnaryOperator<double[]> cached)
            throws IOException {
        this.cached = cached;
        config = ModelConfig.read(directory);
        String json = Files.readString(directory.resolve("config.json"));
        frequencies =
                frequencies(JsonParser.parseString(json).getAsJsonObject(), config.headSize());
        try (Safetensors files = Safetensors.open(directory);
                NDManager manager = NDManager.newBaseManager()) {
            for (TensorSpec spec : files.specs()) {
                NDArray array = Torch.empty(manager, spec.shape(), ScalarType.FLOAT64);
                files.read(spec.name(), array);
                double[] values = array.toDoubleArray();
                weights.put(spec.name(), change.apply(spec, values));
                if (config.tied() && spec.name().equals("model.embed_tokens.weight")) {
                    TensorSpec head = TensorSpec.of("lm_head.weight", spec.type(), spec.shape());
                    weights.put(head.name(), change.apply(head, values));
                }
            }
        }
    }

    /** Returns the logits after each token. */
    public double[][] logits(int[] tokens) {
        int hidden = config.hiddenSize();
        double[] embedding = weights.get("model.embed_tokens.weight");
        double[][] x = new double[tokens.length][];
        for (int t = 0; t < tokens.length; t++) {
            x[t] = Arrays.copyOfRange(embedding, tokens[t] * hidden, (tokens[t] + 1) * hidden);
        }
        for (int layer = 0; layer < config.layers(); layer++) {
            layer(x, "model.layers." + layer + ".");
        }
        double[] head = weights.get("lm_head.weight");
        double[][] logits = new double[tokens.length][];
        for (int t = 0; t < tokens.length; t++) {
            logits[t] = product(head, normalized(x[t], "model.norm.weight"));
        }
        return logits;
    }

    private void layer(double[][] x, String name) {
        int length = x.length;
        int size = config.headSize();
        double[][] q = new double[length][];
        double[][] k = new double[length][];
        double[][] v = new double[length][];
        for (int t = 0; t < length; t++) {
            double[] h = normalized(x[t], name + "input_layernorm.weight");
            q[t] = turned(projection(name + "self_attn.q_proj", h), t);
            k[t] = turned(projection(name + "self_attn.k_proj", h), t);
            k[t] = cached.apply(k[t]);
            v[t] = cached.apply(projection(name + "self_attn.v_proj", h));
        }
        int sharing = config.heads() / config.kvHeads();
        for (int t = 0; t < length; t++) {
            double[] attended = new double[config.heads() * size];
            for (int head = 0; head < config.heads(); head++) {
                int from = head / sharing * size;
                double[] shares = new double[t + 1];
                double sum = 0;
                for (int s = 0; s <= t; s++) {
                    double dot = 0;
                    for (int i = 0; i < size; i++) {
                        dot += q[t][head * size + i] * k[s][from + i];
                    }
                    shares[s] = Math.exp(dot / Math.sqrt(size));
                    sum += shares[s];
                }
                for (int s = 0; s <= t; s++) {
                    for (int i = 0; i < size; i++) {
                        attended[head * size + i] += shares[s] / sum * v[s][from + i];
                    }
                }
            }
            add(x[t], projection(name + "self_attn.o_proj", attended));
        }
        for (int t = 0; t < length; t++) {
            double[] h = normalized(x[t], name + "post_attention_layernorm.weight");
            double[] gate = projection(name + "mlp.gate_proj", h);
            double[] up = projection(name + "mlp.up_proj", h);
            for (int i = 0; i < gate.length; i++) {
                gate[i] *= up[i] / (1 + Math.exp(-gate[i]));
            }
            add(x[t], projection(name + "mlp.down_proj", gate));
        }
    }

    /**
     * Returns the angles from one position to the next: what {@code _compute_llama3_parameters} and
     * {@code _compute_linear_scaling_rope_parameters} of Hugging Face's transformers compute of a
     * config.json, by wavelengths.
     */
    static double[] frequencies(JsonObject json, int headSize) {
        JsonObject scaling = json.getAsJsonObject("rope_scaling");
        double theta = json.get("rope_theta").getAsDouble();
        String kind = scaling.get("rope_type").getAsString();
        double[] frequencies = new double[headSize / 2];
        for (int i = 0; i < frequencies.length; i++) {
            double frequency = 1 / Math.pow(theta, (double) (2 * i) / headSize);
            frequencies[i] =
                    switch (kind) {
                        case "default" -> frequency;
                        case "linear" -> frequency / scaling.get("factor").getAsDouble();
                        case "llama3" -> llama3(scaling, frequency);
                        default -> throw new IllegalArgumentException(kind);
                    };
        }
        return frequencies;
    }

    private static double llama3(JsonObject scaling, double frequency) {
        double factor = scaling.get("factor").getAsDouble();
        double low = scaling.get("low_freq_factor").getAsDouble();
        double high = scaling.get("high_freq_factor").getAsDouble();
        double length = scaling.get("original_max_position_embeddings").getAsDouble();
        double wavelength = 2 * Math.PI / frequency;
        if (wavelength > length / low) {
            return frequency / factor;
        }
        if (wavelength < length / high) {
            return frequency;
        }
        double smooth = (length / wavelength - low) / (high - low);
        return (1 - smooth) * (frequency / factor) + smooth * frequency;
    }

    private double[] turned(double[] heads, int position) {
        int size = config.headSize();
        double[] turned = new double[heads.length];
        for (int head = 0; head < heads.length / size; head++) {
            for (int i = 0; i < size / 2; i++) {
                double first = heads[head * size + i];
                double second = heads[head * size + size / 2 + i];
                double angle = position * frequencies[i];
                turned[head * size + i] = first * Math.cos(angle) - second * Math.sin(angle);
                turned[head * size + size / 2 + i] =
                        second * Math.cos(angle) + first * Math.sin(angle);
            }
        }
        return turned;
    }

    private double[] normalized(double[] x, String name) {
        double[] weight = weights.get(name);
        double squares = 0;
        for (double value : x) {
            squares += value * value;
        }
        double factor = 1 / Math.sqrt(squares / x.length + config.epsilon());
        double[] y = new double[x.length];
        for (int i = 0; i < x.length; i++) {
            y[i] = x[i] * factor * weight[i];
        }
        return y;
    }

    private double[] projection(String name, double[] x) {
        double[] y = product(weights.get(name + ".weight"), x);
        double[] bias = weights.get(name + ".bias");
        if (bias != null) {
            add(y, bias);
        }
        return y;
    }

    private static double[] product(double[] matrix, double[] x) {
        double[] y = new double[matrix.length / x.length];
        for (int row = 0; row < y.length; row++) {
            for (int i = 0; i < x.length; i++) {
                y[row] += matrix[row * x.length + i] * x[i];
            }
        }
        return y;
    }

    private static void add(double[] x, double[] y) {
        for (int i = 0; i < x.length; i++) {
            x[i] += y[i];
        }
    }
}
