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

/**
 * A reference Llama: float64, plain loops, one sequence, no cache. Reads {@code config.json}
 * itself. {@link ReferenceModels} has subclasses for other architectures.
 */
public class LlamaReference {

    final JsonObject json;
    final int hidden;
    final int heads;
    final int kvHeads;
    final int headSize;
    final double[] frequencies; // of the pairs that are rotated
    private final UnaryOperator<double[]> cached;
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
        json =
                JsonParser.parseString(Files.readString(directory.resolve("config.json")))
                        .getAsJsonObject();
        hidden = integer("hidden_size");
        heads = integer("num_attention_heads");
        kvHeads = integer("num_key_value_heads");
        headSize = integer("head_dim");
        frequencies = frequencies(json, headSize);
        try (Safetensors files = Safetensors.open(directory);
                NDManager manager = NDManager.newBaseManager()) {
            for (TensorSpec spec : files.specs()) {
                NDArray array = Torch.empty(manager, spec.shape(), ScalarType.FLOAT64);
                files.read(spec.name(), array);
                double[] values = array.toDoubleArray();
                weights.put(spec.name(), change.apply(spec, values));
                if (spec.name().equals("model.embed_tokens.weight")
                        && json.get("tie_word_embeddings").getAsBoolean()) {
                    TensorSpec head = TensorSpec.of("lm_head.weight", spec.type(), spec.shape());
                    weights.put(head.name(), change.apply(head, values));
                }
            }
        }
    }

    final int integer(String name) {
        return json.get(name).getAsInt();
    }

    final double number(String name) {
        return json.get(name).getAsDouble();
    }

    /** Returns the logits after each token. */
    public double[][] logits(int[] tokens) {
        double[] embedding = weight("model.embed_tokens.weight");
        double[][] x = new double[tokens.length][];
        for (int t = 0; t < tokens.length; t++) {
            x[t] = Arrays.copyOfRange(embedding, tokens[t] * hidden, (tokens[t] + 1) * hidden);
            scale(x[t], embeddingScale());
        }
        for (int layer = 0; layer < integer("num_hidden_layers"); layer++) {
            layer(x, layer, "model.layers." + layer + ".");
        }
        double[] head = weight("lm_head.weight");
        double[][] logits = new double[tokens.length][];
        for (int t = 0; t < tokens.length; t++) {
            logits[t] = product(head, normalized(x[t], "model.norm.weight"));
            scale(logits[t], logitScale());
        }
        return logits;
    }

    double embeddingScale() {
        return 1;
    }

    double logitScale() {
        return 1;
    }

    double scoreScale() {
        return 1 / Math.sqrt(headSize);
    }

    /** Adds what a layer computes to the residual stream. */
    void layer(double[][] x, int layer, String name) {
        add(x, attention(normalized(x, name + "input_layernorm.weight"), layer, name));
        add(x, mlps(normalized(x, name + "post_attention_layernorm.weight"), name));
    }

    final double[][] attention(double[][] x, int layer, String name) {
        int length = x.length;
        int size = headSize;
        double[][] q = new double[length][];
        double[][] k = new double[length][];
        double[][] v = new double[length][];
        for (int t = 0; t < length; t++) {
            q[t] = turned(heads(name + "self_attn.q", x[t]), t, layer);
            k[t] = cached.apply(turned(heads(name + "self_attn.k", x[t]), t, layer));
            v[t] = cached.apply(projection(name + "self_attn.v_proj", x[t]));
        }
        int sharing = heads / kvHeads;
        double[][] results = new double[length][];
        for (int t = 0; t < length; t++) {
            double[] attended = new double[heads * size];
            for (int head = 0; head < heads; head++) {
                int from = head / sharing * size;
                double[] shares = new double[t + 1];
                double sum = hiddenShare(name, head);
                for (int s = firstAttended(t, layer); s <= t; s++) {
                    double dot = 0;
                    for (int i = 0; i < size; i++) {
                        dot += q[t][head * size + i] * k[s][from + i];
                    }
                    shares[s] = Math.exp(dot * scoreScale());
                    sum += shares[s];
                }
                for (int s = 0; s <= t; s++) {
                    for (int i = 0; i < size; i++) {
                        attended[head * size + i] += shares[s] / sum * v[s][from + i];
                    }
                }
            }
            results[t] = projection(name + "self_attn.o_proj", attended);
        }
        return results;
    }

    /** Returns the heads of queries or keys before the rotation. */
    double[] heads(String name, double[] x) {
        return projection(name + "_proj", x);
    }

    /** Returns the first token that a token of a layer attends to. */
    int firstAttended(int token, int layer) {
        return 0;
    }

    /** Returns a part of the sum of exponentials that belongs to no token. */
    double hiddenShare(String name, int head) {
        return 0;
    }

    final double[][] mlps(double[][] x, String name) {
        return Arrays.stream(x).map(token -> mlp(token, name)).toArray(double[][]::new);
    }

    double[] mlp(double[] x, String name) {
        double[] gate = projection(name + "mlp.gate_proj", x);
        double[] up = projection(name + "mlp.up_proj", x);
        for (int i = 0; i < gate.length; i++) {
            gate[i] = activation(gate[i]) * up[i];
        }
        return projection(name + "mlp.down_proj", gate);
    }

    /** As {@link #mlp}, with the rows of the gate before those of the values in one matrix. */
    final double[] fusedMlp(double[] x, String gateUpName, String downName) {
        double[] gateUp = projection(gateUpName, x);
        double[] inner = new double[gateUp.length / 2];
        for (int i = 0; i < inner.length; i++) {
            inner[i] = activation(gateUp[i]) * gateUp[inner.length + i];
        }
        return projection(downName, inner);
    }

    double activation(double x) {
        return x / (1 + Math.exp(-x));
    }

    /**
     * Returns the angles from one position to the next: what {@code _compute_llama3_parameters} and
     * {@code _compute_linear_scaling_rope_parameters} of Hugging Face's transformers compute of a
     * config.json, by wavelengths.
     */
    static double[] frequencies(JsonObject json, int headSize) {
        boolean older = json.has("rope_scaling");
        JsonObject scaling = json.getAsJsonObject(older ? "rope_scaling" : "rope_parameters");
        double theta = (older ? json : scaling).get("rope_theta").getAsDouble();
        String kind = scaling.get("rope_type").getAsString();
        boolean partial = scaling.has("partial_rotary_factor");
        double part = partial ? scaling.get("partial_rotary_factor").getAsDouble() : 1;
        double[] frequencies = new double[(int) (headSize * part) / 2];
        for (int i = 0; i < frequencies.length; i++) {
            double frequency = 1 / Math.pow(theta, (double) i / frequencies.length);
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

    /** Returns rotated heads: of each, element i with element i of the second half. */
    double[] turned(double[] heads, int position, int layer) {
        double[] turned = heads.clone();
        for (int head = 0; head < heads.length; head += headSize) {
            for (int i = 0; i < frequencies.length; i++) {
                turn(heads, turned, head + i, head + headSize / 2 + i, position * frequencies[i]);
            }
        }
        return turned;
    }

    static void turn(double[] from, double[] to, int first, int second, double angle) {
        to[first] = from[first] * Math.cos(angle) - from[second] * Math.sin(angle);
        to[second] = from[second] * Math.cos(angle) + from[first] * Math.sin(angle);
    }

    final double[][] normalized(double[][] x, String name) {
        return Arrays.stream(x).map(token -> normalized(token, name)).toArray(double[][]::new);
    }

    final double[] normalized(double[] x, String name) {
        double[] weight = weight(name);
        double squares = 0;
        for (double value : x) {
            squares += value * value;
        }
        double factor = 1 / Math.sqrt(squares / x.length + number("rms_norm_eps"));
        double[] y = new double[x.length];
        for (int i = 0; i < x.length; i++) {
            y[i] = x[i] * factor * (weight[i] + addedToNorms());
        }
        return y;
    }

    double addedToNorms() {
        return 0;
    }

    final double[] weight(String name) {
        double[] weight = weights.get(name);
        if (weight == null) {
            throw new IllegalArgumentException("no tensor " + name);
        }
        return weight;
    }

    final double[] projection(String name, double[] x) {
        double[] y = product(weight(name + ".weight"), x);
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

    static void add(double[][] x, double[][] y) {
        for (int i = 0; i < x.length; i++) {
            add(x[i], y[i]);
        }
    }

    static void add(double[] x, double[] y) {
        for (int i = 0; i < x.length; i++) {
            x[i] += y[i];
        }
    }

    static void scale(double[] x, double factor) {
        for (int i = 0; i < x.length; i++) {
            x[i] *= factor;
        }
    }
}
