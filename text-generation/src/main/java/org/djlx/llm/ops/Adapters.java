// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.LongStream;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.llm.model.LoraConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.TensorPart;
import org.djlx.llm.model.WeightMap;
import org.djlx.llm.model.WeightMap.Slice;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * This rank's shards of the loaded LoRA adapters, by id; id 0 means no adapter. An adapter is
 * sharded like its projection:
 *
 * <ul>
 *   <li>column parallel: B by outputs; each rank has all of A
 *   <li>row parallel: A by inputs; each rank has all of B, and adds to its partial sum
 * </ul>
 */
final class Adapters implements AutoCloseable {

    /**
     * An adapter of a projection of x: adds {@code b(a(x))}. The scale is part of b.
     *
     * @param rank the rank of each slice
     * @param slices the slices of the outputs, in order: b is block-diagonal
     */
    record LowRank(ModelWeights.Linear a, ModelWeights.Linear b, int rank, List<Outputs> slices) {}

    /**
     * The outputs of one of the projections that are fused, such as queries.
     *
     * @param end the output after the last
     * @param column the first column of b with other elements than zeros; -1 without an adapter
     */
    record Outputs(int end, int column) {

        static final Outputs NONE = new Outputs(0, -1);
    }

    /** Adjacent rows with the same adapter. */
    record Segment(int first, int rows, Map<ModelWeights.Linear, LowRank> parts) {}

    /** An adapter on this rank. {@code table} is its {@link LoraKernels#table}; null on a CPU. */
    private record Adapter(
            NDManager manager, Map<ModelWeights.Linear, LowRank> parts, NDArray table) {}

    private final Map<Integer, Adapter> adapters = new HashMap<>();

    /**
     * Frees adapters that {@code directories} does not have, and reads those that are new. Their
     * elements get the model's type. Returns the reasons why adapters could not be read, by id.
     */
    Map<Integer, String> set(RankModel model, Map<Integer, Path> directories) {
        adapters.entrySet()
                .removeIf(
                        each -> {
                            boolean unused = !directories.containsKey(each.getKey());
                            if (unused) {
                                each.getValue().manager.close();
                            }
                            return unused;
                        });
        Map<Integer, String> failures = new HashMap<>();
        directories.forEach(
                (id, of) -> {
                    try {
                        adapters.computeIfAbsent(id, key -> read(model, of));
                    } catch (RuntimeException e) { // wrong files, or not enough memory
                        String rank = "rank " + model.group().rank() + ", " + of + ": ";
                        failures.put(id, rank + e.getMessage());
                    }
                });
        return failures;
    }

    /**
     * Returns the segments of chunks with adapters, in order.
     *
     * @throws IllegalStateException if an adapter is not loaded
     */
    List<Segment> segments(List<TokenBatch.Chunk> chunks) {
        List<Segment> segments = new ArrayList<>();
        int row = 0;
        for (TokenBatch.Chunk chunk : chunks) {
            int rows = chunk.tokens().length;
            if (chunk.adapter() != 0) {
                Adapter adapter = adapter(chunk.adapter());
                int last = segments.size() - 1;
                Segment before = last < 0 ? null : segments.get(last);
                if (before != null
                        && before.parts == adapter.parts
                        && before.first + before.rows == row) {
                    segments.set(
                            last, new Segment(before.first, before.rows + rows, adapter.parts));
                } else {
                    segments.add(new Segment(row, rows, adapter.parts));
                }
            }
            row += rows;
        }
        return segments;
    }

    private Adapter adapter(int id) {
        Adapter adapter = adapters.get(id);
        if (adapter == null) {
            throw new IllegalStateException("the adapter " + id + " is not loaded on this rank");
        }
        return adapter;
    }

    /**
     * Returns the address of an adapter's {@link LoraKernels#table} on this rank's GPU; 0 for id 0.
     *
     * @throws IllegalStateException if the adapter is not loaded
     */
    long table(int id) {
        return id == 0 ? 0 : Torch.dataPointer(adapter(id).table);
    }

    /**
     * Returns the projections that may have adapters, in the order of {@link LoraKernels#table};
     * null in place of those of MLPs with experts.
     */
    static List<ModelWeights.Linear> projections(RankModel model) {
        List<ModelWeights.Linear> all = new ArrayList<>();
        for (int i = 0; i < model.config().layers(); i++) {
            ModelWeights.Layer layer = model.weights().layer(i);
            boolean isDense = layer.router() == null;
            all.add(layer.queriesKeysValues());
            all.add(layer.attentionOut());
            all.add(isDense ? layer.mlp().gateUp() : null);
            all.add(isDense ? layer.mlp().down() : null);
        }
        return all;
    }

    private static Adapter read(RankModel model, Path directory) {
        Required.check(
                !model.weights().format().isOfFiles(),
                "on GPUs, adapters need weights in the model's type; merge the adapter into the"
                        + " weights that the 4-bit model was made from");
        NDManager manager = NDManager.newBaseManager(model.group().device());
        try {
            LoraConfig lora = LoraConfig.read(directory);
            try (TensorFiles files = lora.open(directory, model.config())) {
                boolean isGpu = model.group().device().isGpu();
                int step = isGpu ? LoraKernels.RANK_STEP : 1;
                int padded = (lora.rank() + step - 1) / step * step;
                Map<ModelWeights.Linear, LowRank> parts =
                        new Reader(model, lora, files, manager, padded).read();
                List<LowRank> all = new ArrayList<>();
                projections(model).forEach(linear -> all.add(parts.get(linear)));
                NDArray table = isGpu ? LoraKernels.table(manager, all) : null;
                return new Adapter(manager, parts, table);
            }
        } catch (IOException e) {
            manager.close();
            throw new UncheckedIOException(e);
        } catch (Throwable e) {
            manager.close();
            throw e;
        }
    }

    /** Reads a rank's part of an adapter. The matrices get the rank {@code padded}, by zeros. */
    private record Reader(
            RankModel model, LoraConfig lora, TensorFiles files, NDManager manager, int padded) {

        Map<ModelWeights.Linear, LowRank> read() {
            ModelConfig config = model.config();
            Map<ModelWeights.Linear, LowRank> parts = new IdentityHashMap<>();
            for (int i = 0; i < config.layers(); i++) {
                ModelWeights.Layer layer = model.weights().layer(i);
                WeightMap.Layer map = new WeightMap.Layer(config, i);
                int[] order = config.layer(i).attention().rope().rows(config.headSize());
                columnParallel(
                        parts,
                        layer.queriesKeysValues(),
                        List.of(
                                map.get(TensorPart.QUERIES, 0, false),
                                map.get(TensorPart.KEYS, 0, false),
                                map.get(TensorPart.VALUES, 0, false)),
                        order);
                rowParallel(
                        parts, layer.attentionOut(), map.get(TensorPart.ATTENTION_OUT, 0, false));
                if (layer.router() == null) {
                    List<Slice> gateUp =
                            List.of(
                                    map.get(TensorPart.GATE, 0, false),
                                    map.get(TensorPart.UP, 0, false));
                    columnParallel(parts, layer.mlp().gateUp(), gateUp, new int[0]);
                    rowParallel(parts, layer.mlp().down(), map.get(TensorPart.DOWN, 0, false));
                }
            }
            return parts;
        }

        /**
         * Reads the adapters of a fused projection, such as queries, keys and values. The matrices
         * A are stacked; the matrices B are the blocks of a block-diagonal matrix.
         *
         * @param order the order of the rows in each head of queries and keys, the first two of
         *     three slices; empty if rows keep their order
         */
        private void columnParallel(
                Map<ModelWeights.Linear, LowRank> to,
                ModelWeights.Linear linear,
                List<Slice> slices,
                int[] order) {
            List<Slice> present =
                    slices.stream().filter(of -> files.contains(LoraConfig.a(of))).toList();
            if (present.isEmpty()) {
                return;
            }
            int ranks = model.ranks();
            long outputs = slices.stream().mapToLong(of -> of.rows(model.config(), ranks)).sum();
            int depth = present.size() * padded;
            NDArray a = manager.zeros(new Shape(depth, slices.get(0).columns()));
            NDArray b = manager.zeros(new Shape(outputs, depth));
            List<Outputs> all = new ArrayList<>();
            int row = 0;
            int column = 0;
            for (Slice slice : slices) {
                int rows = Math.toIntExact(slice.rows(model.config(), ranks));
                boolean isPresent = present.contains(slice);
                all.add(new Outputs(row + rows, isPresent ? column : -1));
                if (isPresent) {
                    try (NDArray block = Torch.narrow(a, 0, column, lora.rank())) {
                        files.read(LoraConfig.a(slice), 0, 0, lora.rank(), block);
                    }
                    boolean reordered = order.length > 0 && slice != slices.get(2);
                    long from =
                            slice.first()
                                    + slice.firstRow(model.config(), model.group().rank(), ranks);
                    try (NDArray own = Torch.narrow(b, 0, row, rows)) {
                        readB(slice, from, own, column, reordered ? order : new int[0]);
                    }
                    column += padded;
                }
                row += rows;
            }
            to.put(linear, lowRank(a, b, all));
        }

        /** Reads rows of a slice's B from {@code from} on into columns of {@code to}. */
        private void readB(Slice slice, long from, NDArray to, int column, int[] order) {
            try (NDManager temporary = manager.newSubManager();
                    NDArray block = Torch.narrow(to, 1, column, lora.rank())) {
                long rows = to.getShape().get(0);
                NDArray own = temporary.zeros(new Shape(rows, lora.rank()));
                files.read(LoraConfig.b(slice), 0, from, from + rows, own);
                if (order.length > 0) {
                    own = own.get(new NDIndex("{}", temporary.create(rows(order, rows))));
                }
                Torch.copy(block, own);
            }
        }

        private static long[] rows(int[] order, long count) {
            int head = order.length;
            return LongStream.range(0, count)
                    .map(row -> row / head * head + order[(int) (row % head)])
                    .toArray();
        }

        private void rowParallel(
                Map<ModelWeights.Linear, LowRank> to, ModelWeights.Linear linear, Slice slice) {
            if (!files.contains(LoraConfig.a(slice))) {
                return;
            }
            long inputs = slice.columns() / model.ranks();
            long first = model.group().rank() * inputs;
            NDArray a = manager.zeros(new Shape(padded, inputs));
            NDArray b = manager.zeros(new Shape(slice.rows(), padded));
            try (NDArray block = Torch.narrow(a, 0, 0, lora.rank())) {
                files.read(LoraConfig.a(slice), 1, first, first + inputs, block);
            }
            readB(slice, 0, b, 0, new int[0]);
            Outputs outputs = new Outputs(Math.toIntExact(slice.rows()), 0);
            to.put(linear, lowRank(a, b, List.of(outputs)));
        }

        private LowRank lowRank(NDArray a, NDArray b, List<Outputs> slices) {
            b.muli((float) lora.scale());
            return new LowRank(linear(a), linear(b), padded, slices);
        }

        private ModelWeights.Linear linear(NDArray wide) {
            ScalarType type = model.config().type();
            if (Torch.scalarType(wide) == type) {
                return new ModelWeights.Linear(wide.transpose(), null);
            }
            NDArray narrow = Torch.cast(wide, type);
            wide.close();
            return new ModelWeights.Linear(narrow.transpose(), null);
        }
    }

    @Override
    public void close() {
        adapters.values().forEach(each -> each.manager.close());
        adapters.clear();
    }
}
