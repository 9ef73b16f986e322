// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.model;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.LongConsumer;
import java.util.function.ObjLongConsumer;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.fusedops.llm.model.TensorPart.Division;
import org.djlx.fusedops.llm.ops.QuantizeKernels;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One rank's part of a model's weights, under Hugging Face's names. All weights have the model's
 * type.
 *
 * <p>Matrices are stored as in the files, (outputs, inputs). Activations are multiplied by
 * transposed views. Division among ranks:
 *
 * <ul>
 *   <li>query, key, value, gate and up projections: by outputs (column parallel). Query, key and
 *       value projections are one matrix; so are gate and up, of each expert.
 *   <li>output and down projections: by inputs (row parallel).
 *   <li>embedding and output matrix: by tokens of the vocabulary, padded with zeros on the last
 *       rank.
 *   <li>norm weights, routers, and biases of row-parallel projections: not divided.
 *   <li>KV heads, if there are fewer than ranks: several ranks hold the same KV head.
 * </ul>
 */
public final class ModelWeights implements AutoCloseable {

    // The types that files may have; weights are converted to the type of the configuration.
    private static final Set<ScalarType> TYPES =
            EnumSet.of(
                    ScalarType.FLOAT16,
                    ScalarType.BFLOAT16,
                    ScalarType.FLOAT32,
                    ScalarType.FLOAT64);

    private static final long ALIGNMENT = 64; // of a weight in bytes
    private static final long READ_ELEMENTS = 8 << 20; // at a time, on a CPU

    private static final String EMBEDDING = "model.embed_tokens.weight";
    private static final String HEAD = "lm_head.weight";
    private static final String NORM = "model.norm.weight";

    /**
     * A projection.
     *
     * @param weights of shape (inputs, outputs), transposed views: one, or on a CPU several with
     *     some of the outputs each; none if it is quantized
     * @param bias of shape (outputs); null if there is none
     * @param quantized null if it is not quantized
     */
    record Linear(List<NDArray> weights, NDArray bias, QuantizedMatrix quantized) {

        Linear(NDArray weight, NDArray bias) {
            this(List.of(weight), bias, null);
        }

        /**
         * Returns the only matrix.
         *
         * @throws IllegalStateException if there is another number of matrices
         */
        NDArray weight() {
            if (weights.size() != 1) {
                throw new IllegalStateException(
                        "the projection has " + weights.size() + " matrices; use weights()");
            }
            return weights.get(0);
        }

        Linear withBias(NDArray bias) {
            return new Linear(weights, bias, quantized);
        }

        /** Returns whether collectives can be fused with its matmul. */
        boolean isFusible() {
            return quantized == null && !isInFloat32(weights.get(0));
        }

        /** Multiplies rows, without the bias; on a GPU only if it is not quantized. */
        NDArray multiply(NDArray x) {
            if (quantized != null) {
                return quantized.multiply(x);
            }
            long outputs = weights.stream().mapToLong(weight -> weight.getShape().get(1)).sum();
            if (isInFloat32(x)) {
                return Float32Matmul.multiply(x, weights, outputs);
            }
            if (weights.size() == 1) {
                return x.matMul(weight());
            }
            Shape shape = new Shape(x.getShape().get(0), outputs);
            NDArray product = Torch.empty(x.getManager(), shape, Torch.scalarType(x));
            long column = 0;
            for (NDArray weight : weights) {
                long count = weight.getShape().get(1);
                try (NDArray columns = Torch.narrow(product, 1, column, count)) {
                    Torch.mmOut(columns, x, weight);
                }
                column += count;
            }
            return product;
        }

        private static boolean isInFloat32(NDArray array) {
            return Float32Matmul.isUsed(array.getDevice(), Torch.scalarType(array));
        }
    }

    /**
     * The weights of an MLP, or of an expert.
     *
     * @param gateUp gates, then values
     */
    record Mlp(Linear gateUp, Linear down) {}

    /**
     * The weights of a layer. Norms that the layer does not have are null.
     *
     * @param attentionPostNorm the norm of the attention's result
     * @param router of shape (hidden size, experts); null if the layer has one MLP
     * @param mlps the experts, or the MLP
     * @param mlpPostNorm the norm of the MLP's result
     */
    record Layer(
            NDArray attentionNorm,
            Linear queriesKeysValues,
            NDArray queryNorm,
            NDArray keyNorm,
            Linear attentionOut,
            NDArray attentionPostNorm,
            NDArray mlpNorm,
            NDArray router,
            List<Mlp> mlps,
            NDArray mlpPostNorm) {

        /** Returns the MLP of a layer without experts. */
        Mlp mlp() {
            return mlps.get(0);
        }
    }

    /**
     * A part of a layer's weights, in a file.
     *
     * @param name the name of the tensor
     * @param first the first row of the part in the tensor
     * @param rows the number of rows, outputs of a projection
     * @param columns the number of inputs; 0 for a vector
     * @param division how ranks divide the part
     * @param type the type in memory
     */
    private record Piece(
            String name, long first, long rows, long columns, Division division, ScalarType type) {

        Shape shape(long rows) {
            return columns == 0 ? new Shape(rows) : new Shape(rows, columns);
        }

        /** Returns the rows that a rank has. */
        long rows(ModelConfig config, int ranks) {
            return switch (division) {
                case ROWS -> rows / ranks;
                case KV_HEADS -> (long) kvHeads(config, ranks) * config.headSize();
                default -> rows;
            };
        }

        long byteSize(ModelConfig config, int ranks) {
            long size = shape(rows(config, ranks)).size() * type.itemSize();
            return division == Division.COLUMNS ? size / ranks : size;
        }
    }

    private record Key(TensorPart part, int expert, boolean isBias) {}

    /** The parts of a layer's weights. */
    private static final class Pieces {

        final Map<Key, Piece> all = new LinkedHashMap<>();
        final List<TensorPart> mlpParts; // gate, up, down
        final int mlps;
        private final Map<String, Long> ends = new HashMap<>(); // rows of each tensor
        private final ModelConfig config;
        private final Map<TensorPart, String> names;
        private final String layer;

        Pieces(ModelConfig config, int index) {
            this.config = config;
            names = Architecture.of(config).names();
            layer = "model.layers." + index + ".";
            LayerConfig of = config.layer(index);
            LayerConfig.Attention attention = of.attention();
            long hidden = config.hiddenSize();
            long queries = (long) config.heads() * config.headSize();
            long keys = (long) config.kvHeads() * config.headSize();
            norm(TensorPart.ATTENTION_NORM, hidden);
            add(TensorPart.QUERIES, 0, queries, hidden, attention.inputBias());
            add(TensorPart.KEYS, 0, keys, hidden, attention.inputBias());
            add(TensorPart.VALUES, 0, keys, hidden, attention.inputBias());
            if (attention.headNorms()) {
                norm(TensorPart.QUERY_NORM, config.headSize());
                norm(TensorPart.KEY_NORM, config.headSize());
            }
            add(TensorPart.ATTENTION_OUT, 0, hidden, queries, attention.outputBias());
            norm(TensorPart.MLP_NORM, hidden);
            if (of.postNorms()) {
                norm(TensorPart.ATTENTION_POST_NORM, hidden);
                norm(TensorPart.MLP_POST_NORM, hidden);
            }
            LayerConfig.Mlp mlp = of.mlp();
            long inner = mlp.intermediateSize();
            boolean mixture = mlp.experts() != null;
            mlps = mixture ? mlp.experts().count() : 1;
            mlpParts = mixture ? TensorPart.EXPERT : TensorPart.MLP;
            if (mixture) {
                add(TensorPart.ROUTER, 0, mlps, hidden, false);
            }
            for (int expert = 0; expert < mlps; expert++) {
                add(mlpParts.get(0), expert, inner, hidden, mlp.bias());
                add(mlpParts.get(1), expert, inner, hidden, mlp.bias());
                add(mlpParts.get(2), expert, hidden, inner, mlp.bias());
            }
        }

        private void norm(TensorPart part, long rows) {
            add(new Key(part, 0, false), ".weight", rows, 0, Division.NONE, normType(config));
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
            String name = layer + String.format(part, key.expert) + suffix;
            long end = ends.merge(name, rows, Long::sum);
            all.put(key, new Piece(name, end - rows, rows, columns, division, t));
        }

        Piece get(TensorPart part, int expert, boolean isBias) {
            return all.get(new Key(part, expert, isBias));
        }
    }

    private final ModelConfig config;
    private final int rank;
    private final int ranks;
    private final Quantization quantization;
    private final List<QuantizedMatrix> quantized = new ArrayList<>();
    private final QuantizeKernels quantizeKernels; // null on the CPU, or if not quantized
    private final Safetensors files;
    private final boolean inPlace;
    private final LongConsumer progress;
    private final NDManager manager;
    private final NativeMemory memory; // of weights; null on a GPU, or if they are quantized
    private NativeMemory staging; // of rows to be quantized on a CPU; null at first
    private long used; // bytes of the memory
    private final List<Layer> layers = new ArrayList<>();
    private NDArray embedding;
    private NDArray norm;
    private Linear output;

    private ModelWeights(
            ModelConfig config,
            int rank,
            int ranks,
            Device device,
            Quantization quantization,
            Safetensors files,
            boolean inPlace,
            LongConsumer progress) {
        this.quantization = quantization;
        this.config = config;
        this.rank = rank;
        this.ranks = ranks;
        this.files = files;
        this.inPlace = inPlace && !device.isGpu();
        this.progress = progress;
        manager = NDManager.newBaseManager(device);
        quantizeKernels =
                device.isGpu() && quantization != Quantization.NONE
                        ? new QuantizeKernels(device, config.type())
                        : null;
        // A tensor may have three parts.
        long padding = ALIGNMENT * (3L * shapes(config).size() + 2);
        memory =
                !device.isGpu() && quantization == Quantization.NONE && !inPlace
                        ? NativeMemory.allocateZeros(byteSize(config, ranks) + padding, true)
                        : null;
    }

    /**
     * Reads a rank's part.
     *
     * @param config the model's configuration
     * @param rank the rank
     * @param ranks the number of ranks
     * @param device the rank's device
     * @param quantization how projections are stored
     * @param files the files, which must have passed {@link #check}
     * @param inPlace whether matrices that need not be changed stay in the mapped files, which
     *     ranks then share; if the model is quantized, only the embedding does. All ranks must
     *     agree. Without effect on GPUs. See {@link Safetensors#view}
     * @param progress receives the number of bytes read, after each tensor
     * @return the weights; the caller closes them
     */
    public static ModelWeights read(
            ModelConfig config,
            int rank,
            int ranks,
            Device device,
            Quantization quantization,
            Safetensors files,
            boolean inPlace,
            LongConsumer progress) {
        ModelWeights weights =
                new ModelWeights(
                        config, rank, ranks, device, quantization, files, inPlace, progress);
        try {
            weights.read();
            return weights;
        } catch (Throwable e) {
            weights.close();
            throw e;
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
    public static void check(ModelConfig config, Safetensors files) {
        Map<String, Shape> shapes = shapes(config);
        shapes.forEach((name, shape) -> check(files, name, shape));
        for (TensorSpec spec : files.specs()) {
            String name = spec.name();
            // Some files have rotary frequencies, or an output matrix that is tied to the
            // embedding.
            boolean unused = name.endsWith(".rotary_emb.inv_freq") || name.equals(HEAD);
            ConfigEntries.check(
                    shapes.containsKey(name) || unused,
                    "%s has a tensor '%s', which a %s with this config.json does not have; take"
                            + " weights and config.json from the same model",
                    files.file(name),
                    name,
                    config.modelType());
        }
    }

    private static void check(Safetensors files, String name, Shape shape) {
        ConfigEntries.check(
                files.contains(name),
                "the weights have no tensor '%s' of shape %s; take weights and config.json from"
                        + " the same model",
                name,
                shape);
        TensorSpec spec = files.spec(name);
        ConfigEntries.check(
                spec.shape().equals(shape),
                "the tensor '%s' in %s has the shape %s, but config.json requires %s; take weights"
                        + " and config.json from the same model",
                name,
                files.file(name),
                spec.shape(),
                shape);
        ConfigEntries.check(
                TYPES.contains(spec.type()),
                "the tensor '%s' in %s has type %s; supported are %s; convert the file",
                name,
                files.file(name),
                spec.type(),
                TYPES);
    }

    /**
     * {@return the shapes of a model's tensors, by name}
     *
     * @param config the model's configuration
     */
    public static Map<String, Shape> shapes(ModelConfig config) {
        long hidden = config.hiddenSize();
        Map<String, Shape> shapes = new LinkedHashMap<>();
        shapes.put(EMBEDDING, new Shape(config.vocabularySize(), hidden));
        for (int i = 0; i < config.layers(); i++) {
            for (Piece piece : new Pieces(config, i).all.values()) {
                shapes.put(piece.name, piece.shape(piece.first + piece.rows));
            }
        }
        shapes.put(NORM, new Shape(hidden));
        if (!config.tied()) {
            shapes.put(HEAD, new Shape(config.vocabularySize(), hidden));
        }
        return shapes;
    }

    /**
     * {@return the size of a rank's part in bytes}
     *
     * @param config the model's configuration
     * @param ranks the number of ranks
     */
    public static long byteSize(ModelConfig config, int ranks) {
        long hidden = config.hiddenSize();
        long tokens = (config.tied() ? 1 : 2) * hidden * vocabularyPart(config, ranks);
        long bytes = tokens * config.type().itemSize() + hidden * normType(config).itemSize();
        for (int i = 0; i < config.layers(); i++) {
            for (Piece piece : new Pieces(config, i).all.values()) {
                bytes += piece.byteSize(config, ranks);
            }
        }
        return bytes;
    }

    /** Returns the type of norms' weights: 1 plus a 16-bit weight does not fit 16 bits. */
    private static ScalarType normType(ModelConfig config) {
        return config.addsOneToNorms() ? ScalarType.FLOAT32 : config.type();
    }

    /** Returns the number of KV heads of a rank. */
    static int kvHeads(ModelConfig config, int ranks) {
        return Math.max(1, config.kvHeads() / ranks);
    }

    /** Returns the number of rows of a rank's part of the embedding, including padding. */
    static int vocabularyPart(ModelConfig config, int ranks) {
        return (config.vocabularySize() + ranks - 1) / ranks;
    }

    private void read() {
        embedding = tokenRows(EMBEDDING);
        for (int i = 0; i < config.layers(); i++) {
            layers.add(layer(new Pieces(config, i), config.layer(i)));
        }
        norm = norm(new Piece(NORM, 0, config.hiddenSize(), 0, Division.NONE, normType(config)), 0);
        if (quantization == Quantization.NONE) {
            NDArray head = config.tied() ? embedding : tokenRows(HEAD);
            output = new Linear(head.transpose(), null);
            return;
        }
        if (config.tied()) {
            QuantizedMatrix matrix = quantized(embedding.getShape());
            matrix.put(0, embedding);
            output = new Linear(List.of(), null, matrix);
        } else {
            output =
                    projection(
                            embedding.getShape(),
                            null,
                            false,
                            (to, row) -> fillTokens(to, row, HEAD));
        }
        closeStaging();
    }

    private Layer layer(Pieces pieces, LayerConfig of) {
        int pairs = of.attention().rope().pairs();
        List<Mlp> mlps = new ArrayList<>();
        for (int expert = 0; expert < pieces.mlps; expert++) {
            List<TensorPart> parts = pieces.mlpParts;
            mlps.add(
                    new Mlp(
                            rows(pieces, expert, 0, parts.get(0), parts.get(1)),
                            columns(pieces, expert, parts.get(2))));
        }
        return new Layer(
                norm(pieces, TensorPart.ATTENTION_NORM, 0),
                rows(pieces, 0, pairs, TensorPart.QUERIES, TensorPart.KEYS, TensorPart.VALUES),
                norm(pieces, TensorPart.QUERY_NORM, pairs),
                norm(pieces, TensorPart.KEY_NORM, pairs),
                columns(pieces, 0, TensorPart.ATTENTION_OUT),
                norm(pieces, TensorPart.ATTENTION_POST_NORM, 0),
                norm(pieces, TensorPart.MLP_NORM, 0),
                of.mlp().experts() == null
                        ? null
                        : array(pieces, 0, 0, false, TensorPart.ROUTER).transpose(),
                mlps,
                norm(pieces, TensorPart.MLP_POST_NORM, 0));
    }

    /**
     * Reads this rank's rows of parts: into one matrix, or, if weights stay in the files, a matrix
     * for each part.
     *
     * @param pairs the rotated pairs of a head of queries and keys
     */
    private Linear rows(Pieces pieces, int expert, int pairs, TensorPart... parts) {
        boolean biased = pieces.get(parts[0], expert, true) != null;
        NDArray bias = biased ? array(pieces, expert, pairs, true, parts) : null;
        if (!inPlace || quantization != Quantization.NONE) {
            Shape shape = shape(pieces, expert, false, parts);
            return projection(
                    shape,
                    bias,
                    false,
                    (to, row) -> fill(to, row, pieces, expert, pairs, false, parts));
        }
        List<NDArray> weights = new ArrayList<>();
        for (TensorPart part : parts) {
            Piece piece = pieces.get(part, expert, false);
            long from = piece.first + firstRow(piece);
            boolean reordered = part != TensorPart.VALUES && isReordered(pairs);
            Optional<NDArray> view =
                    reordered
                            ? Optional.empty()
                            : view(piece.name, 0, from, from + piece.rows(config, ranks));
            NDArray weight = view.orElseGet(() -> array(pieces, expert, pairs, false, part));
            weights.add(weight.transpose());
        }
        return new Linear(weights, bias, null);
    }

    /**
     * Reads a projection; if it is quantized on a CPU, some rows at a time through memory that is
     * reused.
     *
     * @param shape (outputs, inputs)
     * @param whole whether it must be read at once
     * @param source fills an array with rows, from a row on
     */
    private Linear projection(
            Shape shape, NDArray bias, boolean whole, ObjLongConsumer<NDArray> source) {
        if (quantization == Quantization.NONE) {
            NDArray weight = empty(shape, config.type());
            source.accept(weight, 0);
            return new Linear(weight.transpose(), bias);
        }
        QuantizedMatrix matrix = quantized(shape);
        long outputs = shape.get(0);
        long inputs = shape.get(1);
        // Whole heads and whole panels.
        long block = (long) QuantizedMatrix.PANEL * config.headSize();
        boolean atOnce = whole || manager.getDevice().isGpu();
        long step = atOnce ? outputs : block * (1 + READ_ELEMENTS / inputs / block);
        for (long first = 0; first < outputs; first += step) {
            Shape part = new Shape(Math.min(step, outputs - first), inputs);
            try (NDArray rows = unquantized(part)) {
                source.accept(rows, first);
                matrix.put(first, rows);
            }
        }
        return new Linear(List.of(), bias, matrix);
    }

    private QuantizedMatrix quantized(Shape shape) {
        QuantizedMatrix matrix = QuantizedMatrix.allocate(shape, quantization, quantizeKernels);
        quantized.add(matrix);
        return matrix;
    }

    /** Returns a part of a matrix in its file; empty if it must be copied. */
    private Optional<NDArray> view(String name, int dimension, long from, long to) {
        if (!inPlace || files.spec(name).type() != config.type()) {
            return Optional.empty();
        }
        Optional<NDArray> view = files.view(name, dimension, from, to, manager);
        view.ifPresent(array -> progress.accept(array.size() * config.type().itemSize()));
        return view;
    }

    /** Reads this rank's rows of parts into one array, which is not quantized. */
    private NDArray array(
            Pieces pieces, int expert, int pairs, boolean isBias, TensorPart... parts) {
        NDArray array = empty(shape(pieces, expert, isBias, parts), config.type());
        fill(array, 0, pieces, expert, pairs, isBias, parts);
        return array;
    }

    private Shape shape(Pieces pieces, int expert, boolean isBias, TensorPart... parts) {
        long total = 0;
        for (TensorPart part : parts) {
            total += pieces.get(part, expert, isBias).rows(config, ranks);
        }
        return pieces.get(parts[0], expert, isBias).shape(total);
    }

    /** Fills an array with this rank's rows of parts, one part after the other, from a row on. */
    private void fill(
            NDArray array,
            long first,
            Pieces pieces,
            int expert,
            int pairs,
            boolean isBias,
            TensorPart... parts) {
        long end = first + array.getShape().get(0);
        long start = 0;
        for (TensorPart part : parts) {
            Piece piece = pieces.get(part, expert, isBias);
            long next = start + piece.rows(config, ranks);
            long from = Math.max(first, start);
            long count = Math.min(end, next) - from;
            if (count > 0) {
                long row = firstRow(piece) + from - start;
                int rotated = part == TensorPart.VALUES ? 0 : pairs;
                fill(array, from - first, piece, row, count, rotated);
            }
            start = next;
        }
    }

    /** Returns the first row of a piece that this rank has. */
    private long firstRow(Piece piece) {
        return switch (piece.division) {
            case ROWS -> rank * piece.rows(config, ranks);
            case KV_HEADS -> (long) rank * config.kvHeads() / ranks * config.headSize();
            default -> 0;
        };
    }

    /** Returns an array to be filled. */
    private NDArray empty(Shape shape, ScalarType type) {
        if (memory == null) {
            return Torch.empty(manager, shape, type);
        }
        long offset = used;
        used += aligned(shape.size() * type.itemSize());
        return Torch.view(manager, memory, offset, shape, type);
    }

    /** Returns an array for rows to be quantized, to be closed before the next. */
    private NDArray unquantized(Shape shape) {
        if (manager.getDevice().isGpu()) {
            return Torch.empty(manager, shape, config.type());
        }
        // New memory for each would be new pages, and malloc would keep some of it.
        long bytes = shape.size() * config.type().itemSize();
        if (staging == null || staging.byteSize() < bytes) {
            closeStaging();
            staging = NativeMemory.allocateZeros(bytes, true);
        }
        return Torch.view(manager, staging, 0, shape, config.type());
    }

    private void closeStaging() {
        if (staging != null) {
            staging.close();
        }
    }

    private static long aligned(long bytes) {
        return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }

    /**
     * Reads rows of a part into the rows of an array from {@code row} on. If heads are rotated in
     * part, reorders their rows: the first half of a head holds the first elements of pairs, then
     * half of the elements that are not rotated. So all heads rotate alike; scores do not change.
     *
     * @param pairs the rotated pairs of a head; 0 if the rows are not rotated
     */
    private void fill(NDArray array, long row, Piece piece, long from, long count, int pairs) {
        int head = config.headSize();
        int half = head / 2;
        int rest = half - pairs;
        long first = piece.first + from;
        if (!isReordered(pairs)) {
            fill(array, row, piece.name, first, count);
            return;
        }
        for (long at = 0; at < count; at += head) {
            fill(array, row + at, piece.name, first + at, pairs);
            fill(array, row + at + pairs, piece.name, first + at + 2 * pairs, rest);
            fill(array, row + at + half, piece.name, first + at + pairs, pairs);
            fill(array, row + at + half + pairs, piece.name, first + at + half + pairs, rest);
        }
    }

    private boolean isReordered(int pairs) {
        return pairs != 0 && pairs != config.headSize() / 2;
    }

    private void fill(NDArray array, long row, String name, long from, long count) {
        // On a CPU a few rows at a time: the pages of the file that are being read take memory,
        // too.
        long columns = array.size() / array.getShape().get(0);
        long step = array.getDevice().isGpu() ? count : 1 + READ_ELEMENTS / columns;
        for (long done = 0; done < count; done += step) {
            long next = Math.min(step, count - done);
            long first = row + done;
            try (NDArray rows = array.get(new NDIndex().addSliceDim(first, first + next))) {
                files.read(name, 0, from + done, from + done + next, rows);
                progress.accept(rows.size() * Torch.scalarType(rows).itemSize());
            }
        }
    }

    /** Reads this rank's columns of a projection. Each rank has the whole bias. */
    private Linear columns(Pieces pieces, int expert, TensorPart part) {
        Piece piece = pieces.get(part, expert, false);
        boolean biased = pieces.get(part, expert, true) != null;
        NDArray bias = biased ? array(pieces, expert, 0, true, part) : null;
        long count = piece.columns / ranks;
        if (quantization == Quantization.NONE) {
            Optional<NDArray> view = view(piece.name, 1, rank * count, (rank + 1) * count);
            if (view.isPresent()) {
                return new Linear(view.get().transpose(), bias);
            }
        }
        return projection(
                new Shape(piece.rows, count),
                bias,
                ranks > 1,
                (to, row) -> {
                    if (ranks == 1) {
                        fill(to, 0, piece.name, row, to.getShape().get(0));
                    } else {
                        files.read(piece.name, 1, rank * count, (rank + 1) * count, to);
                        progress.accept(to.size() * config.type().itemSize());
                    }
                });
    }

    /** Reads this rank's rows of a matrix that has one row per token of the vocabulary. */
    private NDArray tokenRows(String name) {
        long count = vocabularyPart(config, ranks);
        if ((rank + 1) * count <= config.vocabularySize()) {
            Optional<NDArray> view = view(name, 0, rank * count, (rank + 1) * count);
            if (view.isPresent()) {
                return view.get();
            }
        }
        NDArray array = empty(new Shape(count, config.hiddenSize()), config.type());
        fillTokens(array, 0, name);
        return array;
    }

    /** Fills an array with this rank's rows of the vocabulary, from a row on; zeros after it. */
    private void fillTokens(NDArray array, long first, String name) {
        long from = rank * (long) vocabularyPart(config, ranks) + first;
        long rows = array.getShape().get(0);
        long present = Math.max(0, Math.min(rows, config.vocabularySize() - from));
        if (present < rows) {
            try (NDArray rest = Torch.narrow(array, 0, present, rows - present);
                    NDArray zeros = manager.zeros(rest.getShape())) {
                Torch.copy(rest, zeros);
            }
        }
        if (present > 0) {
            fill(array, 0, name, from, present);
        }
    }

    /** Reads the weight of a norm; null if there is none. */
    private NDArray norm(Pieces pieces, TensorPart part, int pairs) {
        Piece piece = pieces.get(part, 0, false);
        return piece == null ? null : norm(piece, pairs);
    }

    private NDArray norm(Piece piece, int pairs) {
        NDArray array = empty(piece.shape(piece.rows), piece.type);
        fill(array, 0, piece, 0, piece.rows, pairs);
        return config.addsOneToNorms() ? array.addi(1) : array;
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

    Quantization quantization() {
        return quantization;
    }

    /** Returns the projection to this rank's part of the vocabulary. */
    Linear output() {
        return output;
    }

    @Override
    public void close() {
        manager.close();
        quantized.forEach(QuantizedMatrix::close);
        if (quantizeKernels != null) {
            quantizeKernels.close();
        }
        closeStaging();
        if (memory != null) {
            memory.close();
        }
    }
}
