// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.stream.IntStream;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Random tiny models of architectures, and their references: subclasses of {@link LlamaReference}
 * written from transformers' modeling files. Names and shapes of tensors stand here once more, so
 * that those of {@link WeightMap} are checked, too.
 */
public final class ReferenceModels {

    private static final int VOCABULARY = 131;

    private static final String BASE =
            "'hidden_size': 64, 'intermediate_size': 48, 'num_hidden_layers': 3,"
                    + " 'num_attention_heads': 4, 'num_key_value_heads': 2, 'head_dim': 16,"
                    + " 'max_position_embeddings': 256, 'rms_norm_eps': 1e-5, 'eos_token_id': 1,"
                    + " 'tie_word_embeddings': false, 'dtype': 'float32',"
                    + " 'rope_parameters': {'rope_type': 'default', 'rope_theta': 10000}";

    private static final String GPT_OSS =
            "'intermediate_size': 64, 'num_hidden_layers': 4, 'num_local_experts': 5,"
                    + " 'num_experts_per_tok': 2, 'sliding_window': 9, 'attention_bias': true";

    private static final String GRANITE4 =
            "'shared_intermediate_size': 56, 'num_local_experts': 0, 'layer_types': ['attention',"
                    + " 'attention', 'attention'], 'position_embedding_type': '%s',"
                    + " 'embedding_multiplier': 6.0, 'logits_scaling': 3.0,"
                    + " 'residual_multiplier': 0.3, 'attention_multiplier': 0.4";

    /** By name: model_type, and entries that differ from those of {@link #BASE}. */
    private static final Map<String, String> MODELS =
            new TreeMap<>(
                    Map.ofEntries(
                            Map.entry("ernie4_5", "'use_bias': true, 'tie_word_embeddings': true"),
                            Map.entry(
                                    "exaone4",
                                    "'num_hidden_layers': 4, 'sliding_window': 9,"
                                            + " 'sliding_window_pattern': 3"),
                            Map.entry("exaone4-full", "'tie_word_embeddings': true"),
                            Map.entry(
                                    "gemma",
                                    "'hidden_act': 'gelu_pytorch_tanh', 'head_dim': 24,"
                                            + " 'tie_word_embeddings': true"),
                            Map.entry(
                                    "granite",
                                    "'attention_bias': true, 'mlp_bias': true,"
                                            + " 'embedding_multiplier': 6.0, 'logits_scaling': 3.0,"
                                            + " 'residual_multiplier': 0.3, 'attention_multiplier':"
                                            + " 0.4"),
                            Map.entry("granitemoehybrid", GRANITE4.formatted("rope")),
                            Map.entry("granitemoehybrid-nope", GRANITE4.formatted("nope")),
                            Map.entry(
                                    "glm",
                                    "'attention_bias': false, 'rope_parameters': {'rope_type':"
                                            + " 'default', 'rope_theta': 10000,"
                                            + " 'partial_rotary_factor': 1.0}"),
                            Map.entry(
                                    "glm4",
                                    "'attention_bias': true, 'rope_parameters': {'rope_type':"
                                            + " 'default', 'rope_theta': 10000,"
                                            + " 'partial_rotary_factor': 0.5}"),
                            Map.entry("gpt_oss", GPT_OSS),
                            Map.entry(
                                    "gpt_oss-mxfp4",
                                    GPT_OSS + ", 'quantization_config': {'quant_method': 'mxfp4'}"),
                            Map.entry("olmo2", "'num_key_value_heads': 4"),
                            Map.entry("olmo2-grouped", "'attention_bias': true"),
                            Map.entry(
                                    "olmo3",
                                    "'num_hidden_layers': 5, 'sliding_window': 9,"
                                            + " 'rope_parameters': {'rope_type': 'linear',"
                                            + " 'rope_theta': 10000, 'factor': 3.0}"),
                            Map.entry(
                                    "seed_oss",
                                    "'attention_bias': true, 'attention_out_bias': false,"
                                            + " 'mlp_bias': true"),
                            Map.entry(
                                    "seed_oss-out",
                                    "'attention_bias': false, 'attention_out_bias': true"),
                            Map.entry(
                                    "smollm3",
                                    "'num_hidden_layers': 4, 'no_rope_layers': [1, 0, 1, 1]"),
                            Map.entry(
                                    "smollm3-every-fourth",
                                    "'num_hidden_layers': 5, 'tie_word_embeddings': true"),
                            Map.entry(
                                    "smollm3-window",
                                    "'use_sliding_window': true, 'sliding_window': 9,"
                                            + " 'no_rope_layer_interval': 2")));

    private ReferenceModels() {}

    /** Returns the names of all models; the part before a dash is the model_type. */
    public static List<String> names() {
        return List.copyOf(MODELS.keySet());
    }

    static JsonObject config(String name) {
        JsonObject json = JsonParser.parseString("{" + BASE + "}").getAsJsonObject();
        json.addProperty("vocab_size", VOCABULARY);
        json.addProperty("model_type", name.replaceFirst("-.*", ""));
        JsonObject own = JsonParser.parseString("{" + MODELS.get(name) + "}").getAsJsonObject();
        own.entrySet().forEach(entry -> json.add(entry.getKey(), entry.getValue()));
        return json;
    }

    /** Writes a model in float32, and returns its reference. */
    public static LlamaReference write(String name, Path directory) throws IOException {
        JsonObject json = config(name);
        Files.writeString(directory.resolve("config.json"), json.toString());
        List<TensorSpec> specs = new ArrayList<>();
        shapes(json).forEach((key, shape) -> specs.add(TensorSpec.of(key, type(key), shape)));
        try (NDManager manager = NDManager.newBaseManager()) {
            SafetensorsWriter.writeModel(directory, specs, 30_000, spec -> values(manager, spec));
        }
        return read(directory);
    }

    /** Returns the reference of a model directory. */
    public static LlamaReference read(Path directory) throws IOException {
        String json = Files.readString(directory.resolve("config.json"));
        String type =
                JsonParser.parseString(json).getAsJsonObject().get("model_type").getAsString();
        return switch (type) {
            case "ernie4_5" -> new AdjacentPairs(directory);
            case "exaone4" -> new Exaone4(directory);
            case "gemma" -> new Gemma1(directory);
            case "glm", "glm4" -> new Glm(directory);
            case "gpt_oss" -> new GptOss(directory);
            case "granite" -> new Granite(directory);
            case "granitemoehybrid" -> new Granite4(directory);
            case "olmo2" -> new Olmo2(directory);
            case "olmo3" -> new Olmo3(directory);
            case "seed_oss" -> new LlamaReference(directory);
            case "smollm3" -> new SmolLm3(directory);
            default -> throw new IllegalArgumentException(type);
        };
    }

    private static ScalarType type(String name) {
        return name.matches(".*_(blocks|scales)") ? ScalarType.UINT8 : ScalarType.FLOAT32;
    }

    private static NDArray values(NDManager manager, TensorSpec spec) {
        if (spec.type() != ScalarType.UINT8) {
            return LlamaFiles.values(manager, spec, 3);
        }
        boolean isScale = spec.name().endsWith("_scales"); // powers of 2 from -6 to -3
        Random random = new Random(spec.name().hashCode());
        int[] bytes =
                random.ints(spec.shape().size(), isScale ? 121 : 0, isScale ? 125 : 256).toArray();
        return manager.create(bytes, spec.shape());
    }

    /** Returns a random prompt and its greedy continuation with all log-probabilities. */
    public static ModelFixture.Case generate(LlamaReference reference, int length, int steps) {
        int[] prompt = new Random(length).ints(length, 3, VOCABULARY).toArray();
        int[] tokens = new int[steps];
        double[] logprobs = new double[steps];
        List<ModelFixture.Top> top = new ArrayList<>();
        double gap = Double.MAX_VALUE;
        int[] all = IntStream.range(0, VOCABULARY).toArray();
        for (int i = 0; i < steps; i++) {
            int[] text = Arrays.copyOf(prompt, length + i);
            System.arraycopy(tokens, 0, text, length, i);
            double[] row = reference.logits(text)[text.length - 1];
            double sum = Math.log(Arrays.stream(row).map(Math::exp).sum());
            double[] of = Arrays.stream(row).map(logit -> logit - sum).toArray();
            int[] order =
                    IntStream.range(0, VOCABULARY)
                            .boxed()
                            .sorted(Comparator.comparingDouble(token -> -of[token]))
                            .mapToInt(Integer::intValue)
                            .toArray();
            tokens[i] = order[0];
            logprobs[i] = of[order[0]];
            gap = Math.min(gap, of[order[0]] - of[order[1]]);
            top.add(new ModelFixture.Top(all, of));
        }
        return new ModelFixture.Case(prompt, tokens, logprobs, top, gap, 0, 0);
    }

    private static Map<String, Shape> shapes(JsonObject json) {
        long hidden = json.get("hidden_size").getAsLong();
        long inner = json.get("intermediate_size").getAsLong();
        long size = json.get("head_dim").getAsLong();
        long queries = size * json.get("num_attention_heads").getAsLong();
        long keys = size * json.get("num_key_value_heads").getAsLong();
        Map<String, Shape> shapes = new LinkedHashMap<>();
        shapes.put("model.embed_tokens.weight", new Shape(VOCABULARY, hidden));
        for (int i = 0; i < json.get("num_hidden_layers").getAsInt(); i++) {
            Map<String, Shape> layer = new LinkedHashMap<>();
            layer.put("input_layernorm.weight", new Shape(hidden));
            layer.put("post_attention_layernorm.weight", new Shape(hidden));
            layer.put("self_attn.q_proj.weight", new Shape(queries, hidden));
            layer.put("self_attn.k_proj.weight", new Shape(keys, hidden));
            layer.put("self_attn.v_proj.weight", new Shape(keys, hidden));
            layer.put("self_attn.o_proj.weight", new Shape(hidden, queries));
            layer.put("mlp.gate_proj.weight", new Shape(inner, hidden));
            layer.put("mlp.up_proj.weight", new Shape(inner, hidden));
            layer.put("mlp.down_proj.weight", new Shape(hidden, inner));
            if (isSet(json, "attention_bias") || isSet(json, "use_bias")) {
                layer.put("self_attn.q_proj.bias", new Shape(queries));
                layer.put("self_attn.k_proj.bias", new Shape(keys));
                layer.put("self_attn.v_proj.bias", new Shape(keys));
                layer.put("self_attn.o_proj.bias", new Shape(hidden));
            }
            if (json.has("attention_out_bias")) {
                layer.remove("self_attn.o_proj.bias");
            }
            if (isSet(json, "attention_out_bias")) {
                layer.put("self_attn.o_proj.bias", new Shape(hidden));
            }
            if (isSet(json, "mlp_bias") || isSet(json, "use_bias")) {
                layer.put("mlp.gate_proj.bias", new Shape(inner));
                layer.put("mlp.up_proj.bias", new Shape(inner));
                layer.put("mlp.down_proj.bias", new Shape(hidden));
            }
            String type = json.get("model_type").getAsString();
            if (type.startsWith("glm")) {
                layer.remove("self_attn.o_proj.bias");
                layer.remove("mlp.gate_proj.weight");
                layer.remove("mlp.up_proj.weight");
                layer.put("mlp.gate_up_proj.weight", new Shape(2 * inner, hidden));
            }
            if (type.equals("glm4")) {
                layer.put("post_self_attn_layernorm.weight", new Shape(hidden));
                layer.put("post_mlp_layernorm.weight", new Shape(hidden));
            }
            if (type.equals("gpt_oss")) {
                List.of("gate", "up", "down")
                        .forEach(p -> layer.remove("mlp." + p + "_proj.weight"));
                long experts = json.get("num_local_experts").getAsLong();
                layer.put(
                        "self_attn.sinks", new Shape(json.get("num_attention_heads").getAsLong()));
                layer.put("mlp.router.weight", new Shape(experts, hidden));
                layer.put("mlp.router.bias", new Shape(experts));
                String up = "mlp.experts.gate_up_proj";
                String down = "mlp.experts.down_proj";
                layer.put(up + "_bias", new Shape(experts, 2 * inner));
                layer.put(down + "_bias", new Shape(experts, hidden));
                if (json.has("quantization_config")) {
                    layer.put(up + "_blocks", new Shape(experts, 2 * inner, hidden / 32, 16));
                    layer.put(up + "_scales", new Shape(experts, 2 * inner, hidden / 32));
                    layer.put(down + "_blocks", new Shape(experts, hidden, inner / 32, 16));
                    layer.put(down + "_scales", new Shape(experts, hidden, inner / 32));
                } else {
                    layer.put(up, new Shape(experts, hidden, 2 * inner));
                    layer.put(down, new Shape(experts, inner, hidden));
                }
            }
            if (type.equals("granitemoehybrid")) {
                List.of("gate", "up", "down")
                        .forEach(p -> layer.remove("mlp." + p + "_proj.weight"));
                long shared = json.get("shared_intermediate_size").getAsLong();
                layer.put("shared_mlp.input_linear.weight", new Shape(2 * shared, hidden));
                layer.put("shared_mlp.output_linear.weight", new Shape(hidden, shared));
            }
            if (type.matches("olmo.|exaone4")) {
                boolean ofHeads = type.equals("exaone4");
                layer.remove("input_layernorm.weight");
                layer.put("post_feedforward_layernorm.weight", new Shape(hidden));
                layer.put("self_attn.q_norm.weight", new Shape(ofHeads ? size : queries));
                layer.put("self_attn.k_norm.weight", new Shape(ofHeads ? size : keys));
            }
            for (Map.Entry<String, Shape> entry : layer.entrySet()) {
                shapes.put("model.layers." + i + "." + entry.getKey(), entry.getValue());
            }
        }
        shapes.put("model.norm.weight", new Shape(hidden));
        if (!json.get("tie_word_embeddings").getAsBoolean()) {
            shapes.put("lm_head.weight", new Shape(VOCABULARY, hidden));
        }
        return shapes;
    }

    private static boolean isSet(JsonObject json, String name) {
        return json.has(name) && json.get(name).getAsBoolean();
    }

    /** {@code models/gemma/modular_gemma.py}. */
    private static final class Gemma1 extends LlamaReference {

        Gemma1(Path directory) throws IOException {
            super(directory);
        }

        @Override
        double embeddingScale() {
            return Math.sqrt(hidden);
        }

        @Override
        double addedToNorms() {
            return 1;
        }

        @Override
        double activation(double x) {
            double inner = Math.sqrt(2 / Math.PI) * (x + 0.044715 * x * x * x);
            return x / 2 * (1 + Math.tanh(inner));
        }
    }

    /** {@code models/granite/modular_granite.py}. */
    private static class Granite extends LlamaReference {

        Granite(Path directory) throws IOException {
            super(directory);
        }

        @Override
        double embeddingScale() {
            return number("embedding_multiplier");
        }

        @Override
        double logitScale() {
            return 1 / number("logits_scaling");
        }

        @Override
        double scoreScale() {
            return number("attention_multiplier");
        }

        @Override
        void layer(double[][] x, int layer, String name) {
            double factor = number("residual_multiplier");
            double[][] h = normalized(x, name + "input_layernorm.weight");
            double[][] attended = attention(h, layer, name);
            Arrays.stream(attended).forEach(token -> scale(token, factor));
            add(x, attended);
            double[][] inner = mlps(normalized(x, name + "post_attention_layernorm.weight"), name);
            Arrays.stream(inner).forEach(token -> scale(token, factor));
            add(x, inner);
        }
    }

    /** {@code models/granitemoehybrid/modular_granitemoehybrid.py}, without experts. */
    private static final class Granite4 extends Granite {

        Granite4(Path directory) throws IOException {
            super(directory);
        }

        @Override
        double[] turned(double[] heads, int position, int layer) {
            boolean isRope = json.get("position_embedding_type").getAsString().equals("rope");
            return isRope ? super.turned(heads, position, layer) : heads;
        }

        @Override
        double[] mlp(double[] x, String name) {
            return fusedMlp(x, name + "shared_mlp.input_linear", name + "shared_mlp.output_linear");
        }
    }

    /** {@code models/smollm3/modular_smollm3.py}. */
    private static final class SmolLm3 extends LlamaReference {

        SmolLm3(Path directory) throws IOException {
            super(directory);
        }

        private boolean hasRope(int layer) {
            if (json.has("no_rope_layers")) {
                return json.getAsJsonArray("no_rope_layers").get(layer).getAsInt() == 1;
            }
            boolean isGiven = json.has("no_rope_layer_interval");
            return (layer + 1) % (isGiven ? integer("no_rope_layer_interval") : 4) != 0;
        }

        @Override
        double[] turned(double[] heads, int position, int layer) {
            return hasRope(layer) ? super.turned(heads, position, layer) : heads;
        }

        @Override
        int firstAttended(int token, int layer) {
            boolean slides = json.has("use_sliding_window") && !hasRope(layer);
            return slides ? Math.max(0, token - integer("sliding_window") + 1) : 0;
        }
    }

    /** {@code models/olmo2/modular_olmo2.py}. */
    private static class Olmo2 extends LlamaReference {

        Olmo2(Path directory) throws IOException {
            super(directory);
        }

        @Override
        double[] heads(String name, double[] x) {
            return normalized(super.heads(name, x), name + "_norm.weight");
        }

        @Override
        void layer(double[][] x, int layer, String name) {
            double[][] attended = attention(x, layer, name);
            add(x, normalized(attended, name + "post_attention_layernorm.weight"));
            add(x, normalized(mlps(x, name), name + "post_feedforward_layernorm.weight"));
        }
    }

    /** {@code models/olmo3/modular_olmo3.py}. */
    private static final class Olmo3 extends Olmo2 {

        Olmo3(Path directory) throws IOException {
            super(directory);
        }

        @Override
        double[] turned(double[] heads, int position, int layer) {
            boolean slides = layer % 4 != 3;
            return super.turned(heads, slides ? 3 * position : position, layer); // of factor 3
        }

        @Override
        int firstAttended(int token, int layer) {
            return layer % 4 == 3 ? 0 : Math.max(0, token - integer("sliding_window") + 1);
        }
    }

    /** {@code models/exaone4/modular_exaone4.py}. */
    private static final class Exaone4 extends Olmo2 {

        Exaone4(Path directory) throws IOException {
            super(directory);
        }

        private boolean slides(int layer) {
            return json.has("sliding_window")
                    && (layer + 1) % integer("sliding_window_pattern") != 0;
        }

        @Override
        double[] heads(String name, double[] x) {
            double[] all = projection(name + "_proj", x);
            for (int head = 0; head < all.length; head += headSize) {
                double[] one = Arrays.copyOfRange(all, head, head + headSize);
                System.arraycopy(normalized(one, name + "_norm.weight"), 0, all, head, headSize);
            }
            return all;
        }

        @Override
        double[] turned(double[] heads, int position, int layer) {
            boolean turns = slides(layer) || !json.has("sliding_window");
            return turns ? super.turned(heads, position, layer) : heads;
        }

        @Override
        int firstAttended(int token, int layer) {
            return slides(layer) ? Math.max(0, token - integer("sliding_window") + 1) : 0;
        }
    }

    /** {@code models/ernie4_5/modular_ernie4_5.py}. */
    private static class AdjacentPairs extends LlamaReference {

        AdjacentPairs(Path directory) throws IOException {
            super(directory);
        }

        @Override
        double[] turned(double[] heads, int position, int layer) {
            double[] turned = heads.clone();
            for (int head = 0; head < heads.length; head += headSize) {
                for (int i = 0; i < frequencies.length; i++) {
                    int first = head + 2 * i;
                    turn(heads, turned, first, first + 1, position * frequencies[i]);
                }
            }
            return turned;
        }
    }

    /** {@code models/glm/modular_glm.py} and {@code models/glm4/modular_glm4.py}. */
    private static final class Glm extends AdjacentPairs {

        Glm(Path directory) throws IOException {
            super(directory);
        }

        @Override
        double[] mlp(double[] x, String name) {
            return fusedMlp(x, name + "mlp.gate_up_proj", name + "mlp.down_proj");
        }

        @Override
        void layer(double[][] x, int layer, String name) {
            if (json.get("model_type").getAsString().equals("glm")) {
                super.layer(x, layer, name);
                return;
            }
            double[][] h = normalized(x, name + "input_layernorm.weight");
            double[][] attended = attention(h, layer, name);
            add(x, normalized(attended, name + "post_self_attn_layernorm.weight"));
            double[][] inner = mlps(normalized(x, name + "post_attention_layernorm.weight"), name);
            add(x, normalized(inner, name + "post_mlp_layernorm.weight"));
        }
    }

    /** {@code models/gpt_oss/modular_gpt_oss.py} and {@code integrations/mxfp4.py}. */
    private static final class GptOss extends LlamaReference {

        private static final double[] FP4 = {
            0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6
        };

        GptOss(Path directory) throws IOException {
            super(directory);
        }

        @Override
        double hiddenShare(String name, int head) {
            return Math.exp(weight(name + "self_attn.sinks")[head]);
        }

        @Override
        int firstAttended(int token, int layer) {
            return layer % 2 == 0 ? Math.max(0, token - integer("sliding_window") + 1) : 0;
        }

        @Override
        double[] mlp(double[] x, String name) {
            double[] scores = projection(name + "mlp.router", x);
            int[] chosen =
                    IntStream.range(0, scores.length)
                            .boxed()
                            .sorted(Comparator.comparingDouble(expert -> -scores[expert]))
                            .limit(integer("num_experts_per_tok"))
                            .mapToInt(Integer::intValue)
                            .toArray();
            double sum = Arrays.stream(chosen).mapToDouble(e -> Math.exp(scores[e])).sum();
            double[] result = new double[x.length];
            for (int expert : chosen) {
                double[] gateUp = expert(name + "mlp.experts.gate_up_proj", expert, x);
                double[] inner = new double[gateUp.length / 2];
                for (int i = 0; i < inner.length; i++) {
                    double gate = Math.min(7, gateUp[2 * i]);
                    double up = Math.max(-7, Math.min(7, gateUp[2 * i + 1]));
                    inner[i] = (up + 1) * gate / (1 + Math.exp(-1.702 * gate));
                }
                double[] out = expert(name + "mlp.experts.down_proj", expert, inner);
                scale(out, Math.exp(scores[expert]) / sum);
                add(result, out);
            }
            return result;
        }

        private double[] expert(String name, int expert, double[] x) {
            double[] biases = weight(name + "_bias");
            int outputs = biases.length / integer("num_local_experts");
            double[] y = Arrays.copyOfRange(biases, expert * outputs, (expert + 1) * outputs);
            for (int out = 0; out < outputs; out++) {
                for (int in = 0; in < x.length; in++) {
                    y[out] += x[in] * element(name, expert, out, outputs, in, x.length);
                }
            }
            return y;
        }

        private double element(String name, int expert, int out, int outputs, int in, int inputs) {
            if (!json.has("quantization_config")) {
                return weight(name)[(expert * inputs + in) * outputs + out];
            }
            int at = (expert * outputs + out) * inputs + in;
            int pair = (int) weight(name + "_blocks")[at / 2];
            double scale = Math.pow(2, weight(name + "_scales")[at / 32] - 127);
            return scale * FP4[in % 2 == 0 ? pair % 16 : pair / 16];
        }
    }
}
