// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import ai.djl.ndarray.types.Shape;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.model.TensorPart.Division;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The map of a model's weights: the tensors that its files have, under Hugging Face's names, and
 * what each rank has of them. Division among ranks:
 *
 * <ul>
 *   <li>query, key, value, gate and up projections: by outputs (column parallel)
 *   <li>output and down projections: by inputs (row parallel)
 *   <li>embedding and output matrix: by tokens of the vocabulary, padded with zeros on the last
 *       rank
 *   <li>norms over all heads, and sinks: as the heads
 *   <li>other norm weights, routers, and biases of row-parallel projections: not divided
 *   <li>KV heads, if there are fewer than ranks: several ranks hold the same KV head
 * </ul>
 */
public final class WeightMap {

    /** The name of the embedding, of shape (vocabulary, hidden size). */
    public static final String EMBEDDING = "model.embed_tokens.weight";

    /** The name of the output matrix, of shape (vocabulary, hidden size), if it is not tied. */
    public static final String HEAD = "lm_head.weight";

    private static final String NORM = "model.norm.weight";

    // The types that files may have; weights are converted to the type of the configuration.
    private static final Set<ScalarType> TYPES =
            EnumSet.of(
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16,
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT64);

    private WeightMap() {}

    /**
     * Rows of a tensor, from {@code first} on: one part of a layer's weights. {@code columns} is
     * the number of inputs, 0 for a vector; {@code type} is that in memory.
     */
    public record Slice(
            String name, long first, long rows, long columns, Division division, ScalarType type) {

        public Shape shape(long rows) {
            return columns == 0 ? new Shape(rows) : new Shape(rows, columns);
        }

        /** {@return the number of rows that a rank has} */
        public long rows(ModelConfig config, int ranks) {
            return switch (division) {
                case ROWS -> rows / ranks;
                case KV_HEADS -> (long) kvHeads(config, ranks) * config.headSize();
                default -> rows;
            };
        }

        /** {@return the first of the rows that a rank has, counted from the first of the slice} */
        public long firstRow(ModelConfig config, int rank, int ranks) {
            return switch (division) {
                case ROWS -> rank * rows(config, ranks);
                case KV_HEADS -> (long) rank * config.kvHeads() / ranks * config.headSize();
                default -> 0;
            };
        }

        private long byteSize(ModelConfig config, int ranks) {
            long size = shape(rows(config, ranks)).size() * type.itemSize();
            return division == Division.COLUMNS ? size / ranks : size;
        }
    }

    private record Key(TensorPart part, int expert, boolean isBias) {}

    public static final class Layer {

        private final Map<Key, Slice> slices = new LinkedHashMap<>();
        private final List<TensorPart> mlpParts;
        private final int mlps;
        private final Map<String, Long> ends = new HashMap<>(); // rows of each tensor
        private final ModelConfig config;
        private final Map<TensorPart, String> names;
        private final String prefix;

        public Layer(ModelConfig config, int index) {
            this.config = config;
            names = Architecture.of(config).names();
            prefix = "model.layers." + index + ".";
            LayerConfig of = config.layer(index);
            LayerConfig.Attention attention = of.attention();
            long hidden = config.hiddenSize();
            long queries = (long) config.heads() * config.headSize();
            long keys = (long) config.kvHeads() * config.headSize();
            boolean normsInputs = of.norms() != LayerConfig.Norms.RESULTS;
            if (normsInputs) {
                norm(TensorPart.ATTENTION_NORM, hidden, Division.NONE);
            }
            add(TensorPart.QUERIES, 0, queries, hidden, attention.inputBias());
            add(TensorPart.KEYS, 0, keys, hidden, attention.inputBias());
            add(TensorPart.VALUES, 0, keys, hidden, attention.inputBias());
            switch (attention.headNorms()) {
                case NONE -> {}
                case EACH_HEAD -> {
                    norm(TensorPart.QUERY_NORM, config.headSize(), Division.NONE);
                    norm(TensorPart.KEY_NORM, config.headSize(), Division.NONE);
                }
                case ALL_HEADS -> {
                    norm(TensorPart.QUERY_NORM, queries, TensorPart.QUERIES.division);
                    norm(TensorPart.KEY_NORM, keys, TensorPart.KEYS.division);
                }
            }
            if (attention.sinks()) {
                Key key = new Key(TensorPart.SINKS, 0, false);
                add(key, "", config.heads(), 0, TensorPart.SINKS.division, config.type());
            }
            add(TensorPart.ATTENTION_OUT, 0, hidden, queries, attention.outputBias());
            if (normsInputs) {
                norm(TensorPart.MLP_NORM, hidden, Division.NONE);
            }
            if (of.norms() != LayerConfig.Norms.INPUTS) {
                norm(TensorPart.ATTENTION_POST_NORM, hidden, Division.NONE);
                norm(TensorPart.MLP_POST_NORM, hidden, Division.NONE);
            }
            LayerConfig.Mlp mlp = of.mlp();
            long inner = mlp.intermediateSize();
            boolean mixture = mlp.experts() != null;
            mlps = mixture ? mlp.experts().count() : 1;
            mlpParts = mixture ? TensorPart.EXPERT : TensorPart.MLP;
            if (mixture) {
                add(TensorPart.ROUTER, 0, mlps, hidden, mlp.bias());
            }
            for (int expert = 0; expert < mlps; expert++) {
                add(mlpParts.get(0), expert, inner, hidden, mlp.bias());
                add(mlpParts.get(1), expert, inner, hidden, mlp.bias());
                add(mlpParts.get(2), expert, hidden, inner, mlp.bias());
            }
        }

        private void norm(TensorPart part, long rows, Division division) {
            add(new Key(part, 0, false), ".weight", rows, 0, division, normType(config));
        }

        private void add(TensorPart part, int expert, long rows, long columns, boolean bias) {
            ScalarType type = config.type();
            add(new Key(part, expert, false), ".weight", rows, columns, part.division, type);
            if (bias) {
                boolean whole = part.division == Division.COLUMNS;
                Division division = whole ? Division.NONE : part.division;
                add(new Key(part, expert, true), ".bias", rows, 0, division, type);
            }
        }

        private void add(
                Key key, String suffix, long rows, long columns, Division division, ScalarType t) {
            String part = names.getOrDefault(key.part, key.part.defaultName);
            String name = prefix + String.format(part, key.expert) + suffix;
            long end = ends.merge(name, rows, Long::sum);
            slices.put(key, new Slice(name, end - rows, rows, columns, division, t));
        }

        /** {@return the number of experts; 1 if the layer has one MLP} */
        public int mlps() {
            return mlps;
        }

        /** {@return the parts of each expert, or of the MLP: gate, up, down} */
        public List<TensorPart> mlpParts() {
            return mlpParts;
        }

        /**
         * {@return a slice; null if the layer does not have it} {@code expert} is 0 for parts that
         * are not of an expert.
         */
        public Slice get(TensorPart part, int expert, boolean isBias) {
            return slices.get(new Key(part, expert, isBias));
        }
    }

    /** {@return the norm after the last layer} */
    public static Slice norm(ModelConfig config) {
        return new Slice(NORM, 0, config.hiddenSize(), 0, Division.NONE, normType(config));
    }

    /** Returns the type of norms' weights: 1 plus a 16-bit weight does not fit 16 bits. */
    private static ScalarType normType(ModelConfig config) {
        return config.addsOneToNorms() ? ScalarType.FLOAT32 : config.type();
    }

    /**
     * Checks that the files have exactly the tensors of the model, with the right shapes and
     * readable types. Allocates nothing.
     *
     * @throws IllegalArgumentException if a tensor is missing, wrong or unknown; the message names
     *     it
     */
    public static void check(ModelConfig config, TensorFiles files) {
        Map<String, Shape> shapes = shapes(config);
        shapes.forEach((name, shape) -> check(files, name, shape));
        for (TensorSpec spec : files.specs()) {
            String name = spec.name();
            // Some files have rotary frequencies, or an output matrix that is tied to the
            // embedding.
            boolean unused = name.endsWith(".rotary_emb.inv_freq") || name.equals(HEAD);
            Required.check(
                    shapes.containsKey(name) || unused,
                    "%s has a tensor '%s', which a %s with this config.json does not have; take"
                            + " weights and config.json from the same model",
                    files.file(name),
                    name,
                    config.modelType());
        }
    }

    private static void check(TensorFiles files, String name, Shape shape) {
        Required.check(
                files.contains(name),
                "the weights have no tensor '%s' of shape %s; take weights and config.json from"
                        + " the same model",
                name,
                shape);
        TensorSpec spec = files.spec(name);
        Required.check(
                spec.shape().equals(shape),
                "the tensor '%s' in %s has the shape %s, but config.json requires %s; take weights"
                        + " and config.json from the same model",
                name,
                files.file(name),
                spec.shape(),
                shape);
        Required.check(
                TYPES.contains(spec.type()),
                "the tensor '%s' in %s has type %s; supported are %s; convert the file",
                name,
                files.file(name),
                spec.type(),
                TYPES);
    }

    /** {@return the shapes of a model's tensors, by name} */
    public static Map<String, Shape> shapes(ModelConfig config) {
        long hidden = config.hiddenSize();
        Map<String, Shape> shapes = new LinkedHashMap<>();
        shapes.put(EMBEDDING, new Shape(config.vocabularySize(), hidden));
        for (int i = 0; i < config.layers(); i++) {
            for (Slice slice : new Layer(config, i).slices.values()) {
                shapes.put(slice.name, slice.shape(slice.first + slice.rows));
            }
        }
        shapes.put(NORM, new Shape(hidden));
        if (!config.tied()) {
            shapes.put(HEAD, new Shape(config.vocabularySize(), hidden));
        }
        return shapes;
    }

    /** {@return names, types and shapes of a model's tensors, from the embedding to the output} */
    public static List<TensorSpec> tensors(ModelConfig config) {
        return shapes(config).entrySet().stream()
                .map(each -> TensorSpec.of(each.getKey(), config.type(), each.getValue()))
                .toList();
    }

    /** {@return the size of a rank's part in bytes} */
    public static long byteSize(ModelConfig config, int ranks) {
        long hidden = config.hiddenSize();
        long tokens = (config.tied() ? 1 : 2) * hidden * vocabularyPart(config, ranks);
        long bytes = tokens * config.type().itemSize() + hidden * normType(config).itemSize();
        for (int i = 0; i < config.layers(); i++) {
            for (Slice slice : new Layer(config, i).slices.values()) {
                bytes += slice.byteSize(config, ranks);
            }
        }
        return bytes;
    }

    /** {@return the number of KV heads of a rank} */
    public static int kvHeads(ModelConfig config, int ranks) {
        return Math.max(1, config.kvHeads() / ranks);
    }

    /** {@return the number of rows of a rank's part of the embedding, including padding} */
    public static int vocabularyPart(ModelConfig config, int ranks) {
        return (config.vocabularySize() + ranks - 1) / ranks;
    }
}
