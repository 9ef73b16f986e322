// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.model;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.LongConsumer;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One rank's part of a Llama's weights, under Hugging Face's names. All weights have the model's
 * type.
 *
 * <p>Matrices are stored as in the files, (outputs, inputs). Activations are multiplied by
 * transposed views. Division among ranks:
 *
 * <ul>
 *   <li>query, key, value, gate and up projections: by outputs (column parallel). Query, key and
 *       value projections are one matrix; so are gate and up.
 *   <li>output and down projections: by inputs (row parallel).
 *   <li>embedding and output matrix: by tokens of the vocabulary, padded with zeros on the last
 *       rank.
 *   <li>norm weights: not divided.
 *   <li>KV heads, if there are fewer than ranks: several ranks hold the same KV head.
 * </ul>
 */
public final class LlamaWeights implements AutoCloseable {

    // The types that files may have; weights are converted to the type of the configuration.
    private static final Set<ScalarType> TYPES =
            EnumSet.of(
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16,
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT64);

    private static final String EMBEDDING = "model.embed_tokens.weight";
    private static final String HEAD = "lm_head.weight";
    private static final String NORM = "model.norm.weight";

    /** The weights of a layer. */
    record Layer(
            NDArray attentionNorm,
            NDArray queriesKeysValues,
            NDArray attentionOut,
            NDArray mlpNorm,
            NDArray gateUp,
            NDArray down) {}

    private final LlamaConfig config;
    private final int rank;
    private final int ranks;
    private final Safetensors files;
    private final LongConsumer progress;
    private final NDManager manager;
    private final List<Layer> layers = new ArrayList<>();
    private NDArray embedding;
    private NDArray norm;
    private NDArray head;

    private LlamaWeights(
            LlamaConfig config,
            int rank,
            int ranks,
            Device device,
            Safetensors files,
            LongConsumer progress) {
        this.config = config;
        this.rank = rank;
        this.ranks = ranks;
        this.files = files;
        this.progress = progress;
        manager = NDManager.newBaseManager(device);
    }

    /**
     * Reads a rank's part.
     *
     * @param config the model's configuration
     * @param rank the rank
     * @param ranks the number of ranks
     * @param device the rank's device
     * @param files the files, which must have passed {@link #check}
     * @param progress receives the number of bytes read, after each tensor
     * @return the weights; the caller closes them
     */
    public static LlamaWeights read(
            LlamaConfig config,
            int rank,
            int ranks,
            Device device,
            Safetensors files,
            LongConsumer progress) {
        LlamaWeights weights = new LlamaWeights(config, rank, ranks, device, files, progress);
        boolean done = false;
        try {
            weights.read();
            done = true;
            return weights;
        } finally {
            if (!done) {
                weights.close();
            }
        }
    }

    /**
     * Checks that the files have exactly the tensors of the model, with the right shapes and
     * readable types. Allocates nothing.
     *
     * @param config the model's configuration
     * @param files the files
     * @throws IllegalArgumentException if a tensor is missing, wrong or unknown; the message names
     *     it
     */
    public static void check(LlamaConfig config, Safetensors files) {
        Map<String, Shape> shapes = shapes(config);
        shapes.forEach((name, shape) -> check(files, name, shape));
        for (TensorSpec spec : files.specs()) {
            String name = spec.name();
            // Some files have rotary frequencies, or an output matrix that is tied to the
            // embedding.
            boolean unused = name.endsWith(".rotary_emb.inv_freq") || name.equals(HEAD);
            if (!shapes.containsKey(name) && !unused) {
                throw new IllegalArgumentException(
                        String.format(
                                "%s has a tensor '%s', which a Llama with this config.json does not"
                                        + " have; take weights and config.json from the same model",
                                files.file(name), name));
            }
        }
    }

    private static void check(Safetensors files, String name, Shape shape) {
        if (!files.contains(name)) {
            throw new IllegalArgumentException(
                    String.format(
                            "the weights have no tensor '%s' of shape %s; take weights and"
                                    + " config.json from the same model",
                            name, shape));
        }
        TensorSpec spec = files.spec(name);
        if (!spec.shape().equals(shape)) {
            throw new IllegalArgumentException(
                    String.format(
                            "the tensor '%s' in %s has the shape %s, but config.json requires %s;"
                                    + " take weights and config.json from the same model",
                            name, files.file(name), spec.shape(), shape));
        }
        ScalarType type = spec.type();
        if (!TYPES.contains(type)) {
            throw new IllegalArgumentException(
                    String.format(
                            "the tensor '%s' in %s has type %s; supported are %s; convert the"
                                    + " file",
                            name, files.file(name), type, TYPES));
        }
    }

    /**
     * {@return the shapes of a model's tensors, by name}
     *
     * @param config the model's configuration
     */
    public static Map<String, Shape> shapes(LlamaConfig config) {
        long hidden = config.hiddenSize();
        long queries = (long) config.heads() * config.headSize();
        long keys = (long) config.kvHeads() * config.headSize();
        long inner = config.intermediateSize();
        Map<String, Shape> shapes = new LinkedHashMap<>();
        shapes.put(EMBEDDING, new Shape(config.vocabularySize(), hidden));
        for (int i = 0; i < config.layers(); i++) {
            shapes.put(name(i, "input_layernorm"), new Shape(hidden));
            shapes.put(name(i, "self_attn.q_proj"), new Shape(queries, hidden));
            shapes.put(name(i, "self_attn.k_proj"), new Shape(keys, hidden));
            shapes.put(name(i, "self_attn.v_proj"), new Shape(keys, hidden));
            shapes.put(name(i, "self_attn.o_proj"), new Shape(hidden, queries));
            shapes.put(name(i, "post_attention_layernorm"), new Shape(hidden));
            shapes.put(name(i, "mlp.gate_proj"), new Shape(inner, hidden));
            shapes.put(name(i, "mlp.up_proj"), new Shape(inner, hidden));
            shapes.put(name(i, "mlp.down_proj"), new Shape(hidden, inner));
        }
        shapes.put(NORM, new Shape(hidden));
        if (!config.tied()) {
            shapes.put(HEAD, new Shape(config.vocabularySize(), hidden));
        }
        return shapes;
    }

    private static String name(int layer, String part) {
        return "model.layers." + layer + "." + part + ".weight";
    }

    /**
     * {@return the size of a rank's part in bytes}
     *
     * @param config the model's configuration
     * @param ranks the number of ranks
     */
    public static long byteSize(LlamaConfig config, int ranks) {
        long hidden = config.hiddenSize();
        long queries = (long) config.heads() / ranks * config.headSize();
        long keys = (long) kvHeads(config, ranks) * config.headSize();
        long inner = config.intermediateSize() / ranks;
        long layer = hidden * (2 * queries + 2 * keys + 3 * inner);
        long tokens = (config.tied() ? 1 : 2) * hidden * vocabularyPart(config, ranks);
        long norms = hidden * (2L * config.layers() + 1);
        return (layer * config.layers() + tokens + norms) * config.type().itemSize();
    }

    /** Returns the number of KV heads of a rank. */
    static int kvHeads(LlamaConfig config, int ranks) {
        return Math.max(1, config.kvHeads() / ranks);
    }

    /** Returns the number of rows of a rank's part of the embedding, including padding. */
    static int vocabularyPart(LlamaConfig config, int ranks) {
        return (config.vocabularySize() + ranks - 1) / ranks;
    }

    private void read() {
        long queries = (long) config.heads() / ranks * config.headSize();
        long keys = (long) kvHeads(config, ranks) * config.headSize();
        long firstKey = (long) rank * config.kvHeads() / ranks * config.headSize();
        long inner = config.intermediateSize() / ranks;
        embedding = tokenRows(EMBEDDING);
        for (int i = 0; i < config.layers(); i++) {
            NDArray qkv = matrix(queries + 2 * keys, config.hiddenSize());
            fill(qkv, 0, name(i, "self_attn.q_proj"), rank * queries, queries);
            fill(qkv, queries, name(i, "self_attn.k_proj"), firstKey, keys);
            fill(qkv, queries + keys, name(i, "self_attn.v_proj"), firstKey, keys);
            NDArray gateUp = matrix(2 * inner, config.hiddenSize());
            fill(gateUp, 0, name(i, "mlp.gate_proj"), rank * inner, inner);
            fill(gateUp, inner, name(i, "mlp.up_proj"), rank * inner, inner);
            layers.add(
                    new Layer(
                            norm(name(i, "input_layernorm")),
                            qkv.transpose(),
                            columns(name(i, "self_attn.o_proj"), queries),
                            norm(name(i, "post_attention_layernorm")),
                            gateUp.transpose(),
                            columns(name(i, "mlp.down_proj"), inner)));
        }
        norm = norm(NORM);
        head = (config.tied() ? embedding : tokenRows(HEAD)).transpose();
    }

    private NDArray matrix(long rows, long columns) {
        return Torch.empty(manager, new Shape(rows, columns), config.type());
    }

    /** Reads rows of a tensor into the rows of an array from {@code row} on. */
    private void fill(NDArray array, long row, String name, long from, long count) {
        try (NDArray rows = array.get(new NDIndex().addSliceDim(row, row + count))) {
            files.read(name, 0, from, from + count, rows);
            progress.accept(rows.size() * config.type().itemSize());
        }
    }

    /** Reads this rank's columns of a matrix; returns the transpose. */
    private NDArray columns(String name, long count) {
        NDArray array = matrix(config.hiddenSize(), count);
        files.read(name, 1, rank * count, (rank + 1) * count, array);
        progress.accept(array.size() * config.type().itemSize());
        return array.transpose();
    }

    /** Reads this rank's rows of a matrix that has one row per token of the vocabulary. */
    private NDArray tokenRows(String name) {
        long count = vocabularyPart(config, ranks);
        long from = Math.min(rank * count, config.vocabularySize());
        long present = Math.min(count, config.vocabularySize() - from);
        NDArray array = matrix(count, config.hiddenSize());
        if (present < count) {
            try (NDArray rest = array.get(new NDIndex().addSliceDim(present, count));
                    NDArray zeros = manager.zeros(rest.getShape())) {
                Torch.copy(rest, zeros);
            }
        }
        if (present > 0) {
            fill(array, 0, name, from, present);
        }
        return array;
    }

    private NDArray norm(String name) {
        NDArray array = Torch.empty(manager, new Shape(config.hiddenSize()), config.type());
        files.read(name, array);
        progress.accept(array.size() * config.type().itemSize());
        return array;
    }

    /** Returns the embedding of this rank's part of the vocabulary: one row per token. */
    NDArray embedding() {
        return embedding;
    }

    Layer layer(int index) {
        return layers.get(index);
    }

    NDArray norm() {
        return norm;
    }

    NDArray head() {
        return head;
    }

    @Override
    public void close() {
        manager.close();
    }
}
