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
import java.util.function.DoubleUnaryOperator;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** Reference embedding models: float64, plain loops, one text, from the files alone. */
public final class EncoderReference {

    private final JsonObject config;
    private final Map<String, double[]> weights = new HashMap<>();
    private final int heads;

    public EncoderReference(Path directory, String prefix) throws IOException {
        String json = Files.readString(directory.resolve("config.json"));
        config = JsonParser.parseString(json).getAsJsonObject();
        heads = integer("num_attention_heads");
        try (Safetensors files = Safetensors.open(directory);
                NDManager manager = NDManager.newBaseManager()) {
            for (TensorSpec spec : files.specs()) {
                NDArray array = Torch.empty(manager, spec.shape(), ScalarType.FLOAT64);
                files.read(spec.name(), array);
                weights.put(spec.name().substring(prefix.length()), array.toDoubleArray());
            }
        }
    }

    private int integer(String name) {
        return config.get(name).getAsInt();
    }

    /** Returns the vectors of all tokens. */
    public double[][] hidden(int[] tokens) {
        return switch (config.get("model_type").getAsString()) {
            case "qwen3" -> qwen(tokens);
            case "modernbert" -> modernBert(tokens);
            default -> bert(tokens);
        };
    }

    /** Returns the vector of a text, of length 1, cut off after some dimensions. */
    public double[] vector(int[] tokens, String pooling, int dimensions) {
        double[][] x = hidden(tokens);
        int n = x.length;
        double[] pooled = new double[dimensions];
        double squares = 0;
        for (int i = 0; i < dimensions; i++) {
            double sum = 0;
            double weighted = 0;
            double max = Double.NEGATIVE_INFINITY;
            for (int t = 0; t < n; t++) {
                sum += x[t][i];
                weighted += x[t][i] * (t + 1);
                max = Math.max(max, x[t][i]);
            }
            pooled[i] =
                    switch (pooling) {
                        case "cls_token" -> x[0][i];
                        case "lasttoken" -> x[n - 1][i];
                        case "max_tokens" -> max;
                        case "mean_sqrt_len_tokens" -> sum / Math.sqrt(n);
                        case "weightedmean_tokens" -> weighted / (n * (n + 1) / 2);
                        default -> sum / n;
                    };
            squares += pooled[i] * pooled[i];
        }
        for (int i = 0; i < dimensions; i++) {
            pooled[i] /= Math.sqrt(squares);
        }
        return pooled;
    }

    private double[][] bert(int[] tokens) {
        boolean isRoberta = !config.get("model_type").getAsString().equals("bert");
        int first = isRoberta ? integer("pad_token_id") + 1 : 0;
        double[][] x = new double[tokens.length][];
        for (int t = 0; t < tokens.length; t++) {
            double[] sum = row("embeddings.word_embeddings", tokens[t]);
            addTo(sum, row("embeddings.position_embeddings", first + t));
            addTo(sum, row("embeddings.token_type_embeddings", 0));
            x[t] = layerNorm(sum, "embeddings.LayerNorm");
        }
        for (int i = 0; i < integer("num_hidden_layers"); i++) {
            String layer = "encoder.layer." + i + ".";
            String self = layer + "attention.self.";
            double[][] mixed =
                    attention(
                            all(x, self + "query"),
                            all(x, self + "key"),
                            all(x, self + "value"),
                            heads,
                            -1,
                            false);
            for (int t = 0; t < x.length; t++) {
                double[] middle = linear(mixed[t], layer + "attention.output.dense");
                addTo(middle, x[t]);
                middle = layerNorm(middle, layer + "attention.output.LayerNorm");
                double[] inner = linear(middle, layer + "intermediate.dense");
                apply(inner, EncoderReference::gelu);
                x[t] = linear(inner, layer + "output.dense");
                addTo(x[t], middle);
                x[t] = layerNorm(x[t], layer + "output.LayerNorm");
            }
        }
        return x;
    }

    private double[][] modernBert(int[] tokens) {
        double[][] x = new double[tokens.length][];
        for (int t = 0; t < tokens.length; t++) {
            x[t] = layerNorm(row("embeddings.tok_embeddings", tokens[t]), "embeddings.norm");
        }
        for (int i = 0; i < integer("num_hidden_layers"); i++) {
            String layer = "layers." + i + ".";
            boolean far = i % integer("global_attn_every_n_layers") == 0;
            double theta = integer(far ? "global_rope_theta" : "local_rope_theta");
            double[][][] parts = new double[3][x.length][];
            for (int t = 0; t < x.length; t++) {
                double[] in = i == 0 ? x[t] : layerNorm(x[t], layer + "attn_norm");
                double[] qkv = linear(in, layer + "attn.Wqkv");
                int size = in.length;
                for (int part = 0; part < 3; part++) {
                    parts[part][t] = Arrays.copyOfRange(qkv, part * size, (part + 1) * size);
                    if (part < 2) {
                        rotate(parts[part][t], size / heads, t, theta);
                    }
                }
            }
            int reach = far ? -1 : integer("local_attention") / 2;
            double[][] mixed = attention(parts[0], parts[1], parts[2], heads, reach, false);
            for (int t = 0; t < x.length; t++) {
                addTo(x[t], linear(mixed[t], layer + "attn.Wo"));
                double[] inner = linear(layerNorm(x[t], layer + "mlp_norm"), layer + "mlp.Wi");
                double[] gated = new double[inner.length / 2];
                for (int k = 0; k < gated.length; k++) {
                    gated[k] = gelu(inner[k]) * inner[gated.length + k];
                }
                addTo(x[t], linear(gated, layer + "mlp.Wo"));
            }
        }
        for (int t = 0; t < x.length; t++) {
            x[t] = layerNorm(x[t], "final_norm");
        }
        return x;
    }

    private double[][] qwen(int[] tokens) {
        int size = integer("head_dim");
        double[][] x = new double[tokens.length][];
        for (int t = 0; t < tokens.length; t++) {
            x[t] = row("embed_tokens", tokens[t]);
        }
        for (int i = 0; i < integer("num_hidden_layers"); i++) {
            String layer = "layers." + i + ".";
            double[][] q = new double[x.length][];
            double[][] k = new double[x.length][];
            double[][] v = new double[x.length][];
            for (int t = 0; t < x.length; t++) {
                double[] in = rmsNorm(x[t], layer + "input_layernorm");
                q[t] =
                        headNorms(
                                linear(in, layer + "self_attn.q_proj"), layer + "self_attn.q_norm");
                k[t] =
                        headNorms(
                                linear(in, layer + "self_attn.k_proj"), layer + "self_attn.k_norm");
                v[t] = linear(in, layer + "self_attn.v_proj");
                rotate(q[t], size, t, integer("rope_theta"));
                rotate(k[t], size, t, integer("rope_theta"));
            }
            double[][] mixed = attention(q, k, v, integer("num_key_value_heads"), -1, true);
            for (int t = 0; t < x.length; t++) {
                addTo(x[t], linear(mixed[t], layer + "self_attn.o_proj"));
                double[] in = rmsNorm(x[t], layer + "post_attention_layernorm");
                double[] gate = linear(in, layer + "mlp.gate_proj");
                double[] up = linear(in, layer + "mlp.up_proj");
                for (int j = 0; j < gate.length; j++) {
                    gate[j] = gate[j] / (1 + Math.exp(-gate[j])) * up[j];
                }
                addTo(x[t], linear(gate, layer + "mlp.down_proj"));
            }
        }
        for (int t = 0; t < x.length; t++) {
            x[t] = rmsNorm(x[t], "norm");
        }
        return x;
    }

    private double[] headNorms(double[] x, String name) {
        int size = integer("head_dim");
        double[] result = new double[x.length];
        for (int from = 0; from < x.length; from += size) {
            double[] head = rmsNorm(Arrays.copyOfRange(x, from, from + size), name);
            System.arraycopy(head, 0, result, from, size);
        }
        return result;
    }

    /** Attention; a token attends to tokens at most {@code reach} away unless that is negative. */
    private double[][] attention(
            double[][] q, double[][] k, double[][] v, int kvHeads, int reach, boolean causal) {
        int size = q[0].length / heads;
        double[][] result = new double[q.length][q[0].length];
        for (int h = 0; h < heads; h++) {
            int own = h / (heads / kvHeads) * size;
            for (int t = 0; t < q.length; t++) {
                double[] shares = new double[q.length];
                double sum = 0;
                for (int s = 0; s < q.length; s++) {
                    if (causal && s > t || reach >= 0 && Math.abs(t - s) > reach) {
                        continue;
                    }
                    double score = 0;
                    for (int d = 0; d < size; d++) {
                        score += q[t][h * size + d] * k[s][own + d];
                    }
                    shares[s] = Math.exp(score / Math.sqrt(size));
                    sum += shares[s];
                }
                for (int s = 0; s < q.length; s++) {
                    for (int d = 0; d < size; d++) {
                        result[t][h * size + d] += shares[s] / sum * v[s][own + d];
                    }
                }
            }
        }
        return result;
    }

    private static void rotate(double[] x, int size, int position, double theta) {
        int half = size / 2;
        for (int from = 0; from < x.length; from += size) {
            for (int i = 0; i < half; i++) {
                double angle = position * Math.pow(theta, -2.0 * i / size);
                double a = x[from + i];
                double b = x[from + half + i];
                x[from + i] = a * Math.cos(angle) - b * Math.sin(angle);
                x[from + half + i] = b * Math.cos(angle) + a * Math.sin(angle);
            }
        }
    }

    private double[] row(String name, int index) {
        double[] table = weights.get(name + ".weight");
        int size = integer("hidden_size");
        return Arrays.copyOfRange(table, index * size, (index + 1) * size);
    }

    private static void addTo(double[] x, double[] y) {
        for (int i = 0; i < x.length; i++) {
            x[i] += y[i];
        }
    }

    private static void apply(double[] x, DoubleUnaryOperator function) {
        for (int i = 0; i < x.length; i++) {
            x[i] = function.applyAsDouble(x[i]);
        }
    }

    private double[][] all(double[][] x, String name) {
        return Arrays.stream(x).map(each -> linear(each, name)).toArray(double[][]::new);
    }

    private double[] linear(double[] x, String name) {
        double[] weight = weights.get(name + ".weight");
        double[] bias = weights.get(name + ".bias");
        double[] y = new double[weight.length / x.length];
        for (int i = 0; i < y.length; i++) {
            y[i] = bias == null ? 0 : bias[i];
            for (int j = 0; j < x.length; j++) {
                y[i] += weight[i * x.length + j] * x[j];
            }
        }
        return y;
    }

    private double[] layerNorm(double[] x, String name) {
        double mean = Arrays.stream(x).average().orElseThrow();
        double variance =
                Arrays.stream(x).map(v -> (v - mean) * (v - mean)).average().orElseThrow();
        double[] weight = weights.get(name + ".weight");
        double[] bias = weights.get(name + ".bias");
        double[] y = new double[x.length];
        for (int i = 0; i < x.length; i++) {
            y[i] = (x[i] - mean) / Math.sqrt(variance + 1e-5) * weight[i];
            y[i] += bias == null ? 0 : bias[i];
        }
        return y;
    }

    private double[] rmsNorm(double[] x, String name) {
        double square = Arrays.stream(x).map(v -> v * v).average().orElseThrow();
        double[] weight = weights.get(name + ".weight");
        double[] y = new double[x.length];
        for (int i = 0; i < x.length; i++) {
            y[i] = x[i] / Math.sqrt(square + 1e-6) * weight[i];
        }
        return y;
    }

    /** {@code x Φ(x)}, by integrating the normal density (Simpson's rule). */
    private static double gelu(double x) {
        int steps = 200;
        double width = x / steps;
        double sum = 0;
        for (int i = 0; i <= steps; i++) {
            double factor = i == 0 || i == steps ? 1 : i % 2 == 1 ? 4 : 2;
            double at = i * width;
            sum += factor * Math.exp(-at * at / 2);
        }
        return x * (0.5 + sum * width / 3 / Math.sqrt(2 * Math.PI));
    }
}
