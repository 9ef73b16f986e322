// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.nativeops.host.Required.check;

import ai.djl.ndarray.types.DataType;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The configuration of an encoder, whose tokens attend to each other in both directions, from
 * Hugging Face's {@code config.json}.
 */
public sealed interface EncoderConfig {

    /** The values of {@code model_type}. */
    List<String> MODEL_TYPES = List.of("bert", "modernbert", "roberta", "xlm-roberta");

    /** The activation function of an MLP. */
    enum Activation {
        GELU,
        /** The tanh approximation of GELU. */
        GELU_TANH,
        RELU,
        SILU
    }

    /**
     * The sizes of an encoder.
     *
     * @param maxLength the maximum number of tokens of a sequence
     * @param epsilon of layer norms
     */
    record Sizes(
            int vocabulary,
            int hidden,
            int layers,
            int heads,
            int intermediate,
            int maxLength,
            double epsilon,
            Activation activation,
            ScalarType type) {

        /** Throws an {@link IllegalArgumentException} if a value is out of range. */
        public Sizes {
            ModelConfig.size("vocab_size", vocabulary);
            ModelConfig.size("hidden_size", hidden);
            ModelConfig.checkLayers(layers);
            ModelConfig.size("num_attention_heads", heads);
            ModelConfig.size("intermediate_size", intermediate);
            ModelConfig.size("max_position_embeddings, less its first positions,", maxLength);
            check(
                    hidden % heads == 0,
                    "hidden_size %d is not a multiple of num_attention_heads %d",
                    hidden,
                    heads);
            check(
                    epsilon > 0 && epsilon < 1,
                    "the epsilon of norms must be above 0 and below 1, not %s",
                    epsilon);
        }

        static Sizes read(
                ConfigEntries json,
                String activation,
                String epsilon,
                double defaultEpsilon,
                int reservedPositions) {
            return new Sizes(
                    json.integer("vocab_size", null),
                    json.integer("hidden_size", null),
                    json.integer("num_hidden_layers", null),
                    json.integer("num_attention_heads", null),
                    json.integer("intermediate_size", null),
                    json.integer("max_position_embeddings", 512) - reservedPositions,
                    json.number(epsilon, defaultEpsilon),
                    Sizes.activation(activation, json.text(activation, "gelu")),
                    Architecture.type(json.text("torch_dtype", json.text("dtype", "float32"))));
        }

        private static Activation activation(String name, String value) {
            return switch (value) {
                case "gelu" -> Activation.GELU;
                case "gelu_new", "gelu_pytorch_tanh" -> Activation.GELU_TANH;
                case "relu" -> Activation.RELU;
                case "silu", "swish" -> Activation.SILU;
                default ->
                        throw new IllegalArgumentException(
                                "%s must be gelu, gelu_new, gelu_pytorch_tanh, relu or silu, not '%s'"
                                        .formatted(name, value));
            };
        }

        public int headSize() {
            return hidden / heads;
        }
    }

    Sizes sizes();

    /**
     * BERT: learned position embeddings, and norms after attention and MLP. RoBERTa and XLM-RoBERTa
     * have other tensor names and another first position.
     *
     * @param firstPosition the index of the first token's position embedding
     */
    record Bert(Sizes sizes, int positions, int firstPosition, int tokenTypes)
            implements EncoderConfig {

        private static Bert read(ConfigEntries json, boolean isRoberta) {
            String kind = json.text("position_embedding_type", "absolute");
            check(
                    kind.equals("absolute"),
                    "position_embedding_type must be absolute, not '%s'",
                    kind);
            check(
                    !json.flag("is_decoder", false),
                    "is_decoder must be false: decoders of this architecture are not supported");
            int first = isRoberta ? json.integer("pad_token_id", 1) + 1 : 0;
            return new Bert(
                    Sizes.read(json, "hidden_act", "layer_norm_eps", 1e-12, first),
                    json.integer("max_position_embeddings", 512),
                    first,
                    json.integer("type_vocab_size", 2));
        }
    }

    /**
     * ModernBERT (Warner et al., 2024, <a
     * href="https://arxiv.org/abs/2412.13663">arXiv:2412.13663</a>): rotary embeddings, norms
     * before attention and MLP, gated activations, and sliding windows in some layers.
     */
    record ModernBert(Sizes sizes, List<Attention> layers) implements EncoderConfig {

        /**
         * What a layer attends to.
         *
         * @param reach how far a token attends in each direction, in tokens; 0 for all
         */
        public record Attention(Rope rope, int reach) {}

        private static ModernBert read(ConfigEntries json) {
            for (String bias : List.of("attention_bias", "mlp_bias", "norm_bias")) {
                check(!json.flag(bias, false), "%s must be false", bias);
            }
            Sizes sizes = Sizes.read(json, "hidden_activation", "norm_eps", 1e-5, 0);
            check(
                    sizes.headSize() % 2 == 0,
                    "the size of a head must be even, not %d",
                    sizes.headSize());
            ConfigEntries ropes = json.entries("rope_parameters");
            double local = theta(json, ropes, "sliding_attention", "local_rope_theta", 10_000);
            double global = theta(json, ropes, "full_attention", "global_rope_theta", 160_000);
            int every = json.integer("global_attn_every_n_layers", 3);
            ModelConfig.size("global_attn_every_n_layers", every);
            int reach = json.integer("local_attention", 128) / 2;
            ModelConfig.size("half of local_attention", reach);
            return new ModernBert(
                    sizes,
                    IntStream.range(0, sizes.layers)
                            .mapToObj(i -> !Layers.slides(json, i, i % every != 0))
                            .map(
                                    isGlobal ->
                                            new Attention(
                                                    Rope.of(
                                                            isGlobal ? global : local,
                                                            sizes.headSize()),
                                                    isGlobal ? 0 : reach))
                            .toList());
        }

        private static double theta(
                ConfigEntries json, ConfigEntries ropes, String kind, String name, double usual) {
            ConfigEntries entries = ropes.entries(kind);
            String type = entries.text("rope_type", "default");
            check(type.equals("default"), "rope_type must be default, not '%s'", type);
            // Newer files have the bases of all kinds of layers in rope_parameters.
            double theta = entries.number("rope_theta", json.number(name, usual));
            check(theta > 0 && Double.isFinite(theta), "%s must be above 0, not %s", name, theta);
            return theta;
        }
    }

    /** {@return whether a model is an encoder, by its {@code config.json}} */
    static boolean isEncoder(Path directory) throws IOException {
        ConfigEntries json = ConfigEntries.read(directory.resolve("config.json"));
        return MODEL_TYPES.contains(json.text("model_type", ""));
    }

    /**
     * Reads {@code config.json} of a model directory.
     *
     * @param type the type of weights and computation; null for that of {@code config.json}
     * @throws IllegalArgumentException if the architecture or an entry is not supported; the
     *     message names the file and the entry
     */
    static EncoderConfig read(Path directory, DataType type) throws IOException {
        Path file = directory.resolve("config.json");
        ConfigEntries entries = ConfigEntries.read(file);
        entries.setType(type);
        return Required.naming(file, () -> of(entries));
    }

    private static EncoderConfig of(ConfigEntries entries) {
        String name = entries.text("model_type", "");
        check(
                MODEL_TYPES.contains(name),
                "model_type '%s' is not an encoder; supported are %s",
                name,
                MODEL_TYPES);
        return name.equals("modernbert")
                ? ModernBert.read(entries)
                : Bert.read(entries, !name.equals("bert"));
    }
}
