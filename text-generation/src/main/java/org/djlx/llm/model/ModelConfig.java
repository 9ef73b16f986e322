// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.djlx.nativeops.host.Required.check;

import ai.djl.ndarray.types.DataType;
import com.google.gson.JsonElement;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The configuration of a model, from Hugging Face's {@code config.json}: its sizes, and what its
 * layers compute.
 *
 * @param kvHeads the number of key-value heads; divides the number of query heads
 * @param maxLength the maximum number of tokens of a sequence
 * @param tied whether the output matrix is the embedding
 * @param endTokens the end-of-text tokens
 * @param type the type of the weights and of the computation: float32, float16 or bfloat16
 * @param embeddingScale the factor of embeddings
 * @param logitScale the factor of logits, before {@code logitCap}
 * @param logitCap limits logits to {@code cap · tanh(logit / cap)}; 0 for no limit
 * @param addsOneToNorms whether norms multiply by 1 plus their weight
 * @param kvCacheDtype how keys and values are stored; not in {@code config.json}
 */
public record ModelConfig(
        String modelType,
        int vocabularySize,
        int hiddenSize,
        int heads,
        int kvHeads,
        int headSize,
        int maxLength,
        double epsilon,
        boolean tied,
        List<Integer> endTokens,
        ScalarType type,
        List<LayerConfig> layerConfigs,
        double embeddingScale,
        double logitScale,
        double logitCap,
        boolean addsOneToNorms,
        KvCacheDtype kvCacheDtype) {

    static final int MAX_LAYERS = 10_000; // bounds the list of tensor names
    static final int MAX_SIZE = 1 << 24; // so that the product of two sizes fits a long

    /** Throws an {@link IllegalArgumentException} if a value is out of range. */
    public ModelConfig {
        check(kvCacheDtype != null, "the KV cache dtype is null; use KvCacheDtype.AUTO");
        size("vocab_size", vocabularySize);
        size("hidden_size", hiddenSize);
        checkLayers(layerConfigs.size());
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
        for (LayerConfig layer : layerConfigs) {
            size("intermediate_size", layer.mlp().intermediateSize());
            int rotated = 2 * layer.attention().rope().pairs();
            check(rotated <= headSize, "head_dim %d has no %d elements", headSize, rotated);
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
        layerConfigs = List.copyOf(layerConfigs);
    }

    /**
     * Reads {@code config.json} of a model directory. The end-of-text tokens of {@code
     * generation_config.json}, if that exists, take precedence.
     *
     * @throws IllegalArgumentException if the architecture or an entry is not supported; the
     *     message names the file and the entry
     */
    public static ModelConfig read(Path directory) throws IOException {
        return read(directory, null, KvCacheDtype.AUTO);
    }

    /**
     * Reads {@code config.json} as {@link #read(Path)} does, for other types; {@code type} is null
     * for that of {@code config.json}.
     */
    public static ModelConfig read(Path directory, DataType type, KvCacheDtype kvCacheDtype)
            throws IOException {
        return parse(directory, entries(directory, type), kvCacheDtype);
    }

    /**
     * Reads {@code config.json} as {@link #read(Path, DataType, KvCacheDtype)} does, of a model
     * whose files may lack the output matrix, for embeddings: it counts as tied.
     */
    public static ModelConfig readWithoutOutput(Path directory, DataType type) throws IOException {
        ConfigEntries entries = entries(directory, type);
        entries.json().addProperty("tie_word_embeddings", true);
        return parse(directory, entries, KvCacheDtype.AUTO);
    }

    private static ConfigEntries entries(Path directory, DataType type) throws IOException {
        ConfigEntries entries = ConfigEntries.read(directory.resolve("config.json"));
        entries.setType(type);
        Path generation = directory.resolve("generation_config.json");
        if (Files.exists(generation)) {
            JsonElement end = ConfigEntries.read(generation).get("eos_token_id");
            if (end != null) {
                entries.json().add("eos_token_id", end);
            }
        }
        return entries;
    }

    private static ModelConfig parse(
            Path directory, ConfigEntries entries, KvCacheDtype kvCacheDtype) {
        return Required.naming(
                directory.resolve("config.json"), () -> Architecture.read(entries, kvCacheDtype));
    }

    public int layers() {
        return layerConfigs.size();
    }

    /** {@return what a layer computes} */
    public LayerConfig layer(int index) {
        return layerConfigs.get(index);
    }

    /** {@return the largest intermediate size of an MLP, or of an expert} */
    public int intermediateSize() {
        return layerConfigs.stream()
                .mapToInt(layer -> layer.mlp().intermediateSize())
                .max()
                .orElseThrow();
    }

    /** {@return whether layers have a mixture of experts} */
    public boolean hasExperts() {
        return layerConfigs.stream().anyMatch(layer -> layer.mlp().experts() != null);
    }

    /** {@return the rotary embedding of the first layer} */
    public Rope rope() {
        return layer(0).attention().rope();
    }

    /**
     * Throws an {@link IllegalArgumentException} if heads or the MLP cannot be divided among ranks.
     */
    public void checkDivisible(int ranks) {
        check(ranks >= 1, "the number of ranks must be 1 or more, not %d", ranks);
        check(
                heads % ranks == 0,
                "num_attention_heads %d cannot be divided among %d ranks: use a number of ranks"
                        + " that divides it",
                heads,
                ranks);
        check(
                kvHeads % ranks == 0 || ranks % kvHeads == 0,
                "num_key_value_heads %d can neither be divided among nor shared evenly by %d ranks",
                kvHeads,
                ranks);
        for (LayerConfig layer : layerConfigs) {
            check(
                    layer.mlp().intermediateSize() % ranks == 0,
                    "intermediate_size %d cannot be divided among %d ranks",
                    layer.mlp().intermediateSize(),
                    ranks);
        }
    }

    static void checkLayers(int layers) {
        size("num_hidden_layers", layers);
        check(
                layers <= MAX_LAYERS,
                "num_hidden_layers must be at most %d, not %d",
                MAX_LAYERS,
                layers);
    }

    static void size(String name, long value) {
        check(
                value >= 1 && value <= MAX_SIZE,
                "%s must be from 1 to %d, not %d",
                name,
                MAX_SIZE,
                value);
    }

    /** {@return a summary, which differs if the configurations differ} */
    @Override
    public String toString() {
        // Not hashCode(), which differs between processes for enums.
        List<Object> rest =
                List.of(
                        kvHeads,
                        headSize,
                        maxLength,
                        epsilon,
                        tied,
                        endTokens,
                        layerConfigs,
                        embeddingScale,
                        logitScale,
                        logitCap);
        return String.format(
                "%s of %d layers, hidden size %d, %d heads, %d tokens, type %s, KV cache %s,"
                        + " configuration %08x",
                modelType,
                layers(),
                hiddenSize,
                heads,
                vocabularySize,
                type,
                kvCacheDtype,
                rest.toString().hashCode());
    }
}
