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

    /** An adapter of a projection of x: adds {@code b(a(x))}. The scale is part of b. */
    record LowRank(ModelWeights.Linear a, ModelWeights.Linear b) {}

    /** Adjacent rows with the same adapter. */
    record Segment(int first, int rows, Map<ModelWeights.Linear, LowRank> parts) {}

    private record Adapter(NDManager manager, Map<ModelWeights.Linear, LowRank> parts) {}

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
                Adapter adapter = adapters.get(chunk.adapter());
                if (adapter == null) {
                    throw new IllegalStateException(
                            "the adapter " + chunk.adapter() + " is not loaded on this rank");
                }
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

    private static Adapter read(RankModel model, Path directory) {
        Required.check(
                !model.weights().format().isOfFiles(),
                "on GPUs, adapters need weights in the model's type; merge the adapter into the"
                        + " weights that the 4-bit model was made from");
        NDManager manager = NDManager.newBaseManager(model.group().device());
        try {
            LoraConfig lora = LoraConfig.read(directory);
            try (TensorFiles files = lora.open(directory, model.config())) {
                return new Adapter(manager, new Reader(model, lora, files, manager).read());
            }
        } catch (IOException e) {
            manager.close();
            throw new UncheckedIOException(e);
        } catch (Throwable e) {
            manager.close();
            throw e;
        }
    }

    /** Reads a rank's part of an adapter. */
    private record Reader(RankModel model, LoraConfig lora, TensorFiles files, NDManager manager) {

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
            int rank = lora.rank();
            List<Slice> present =
                    slices.stream().filter(of -> files.contains(LoraConfig.a(of))).toList();
            if (present.isEmpty()) {
                return;
            }
            int ranks = model.ranks();
            long outputs = slices.stream().mapToLong(of -> of.rows(model.config(), ranks)).sum();
            int depth = present.size() * rank;
            NDArray a = manager.zeros(new Shape(depth, slices.get(0).columns()));
            NDArray b = manager.zeros(new Shape(outputs, depth));
            long row = 0;
            int column = 0;
            for (Slice slice : slices) {
                long rows = slice.rows(model.config(), ranks);
                if (present.contains(slice)) {
                    try (NDArray block = Torch.narrow(a, 0, column, rank)) {
                        files.read(LoraConfig.a(slice), 0, 0, rank, block);
                    }
                    boolean reordered = order.length > 0 && slice != slices.get(2);
                    try (NDManager temporary = manager.newSubManager()) {
                        NDArray own = temporary.zeros(new Shape(rows, rank));
                        long from =
                                slice.first()
                                        + slice.firstRow(
                                                model.config(), model.group().rank(), ranks);
                        files.read(LoraConfig.b(slice), 0, from, from + rows, own);
                        if (reordered) {
                            own = own.get(new NDIndex("{}", temporary.create(rows(order, rows))));
                        }
                        NDArray block =
                                Torch.narrow(Torch.narrow(b, 0, row, rows), 1, column, rank);
                        Torch.copy(block, own);
                        block.close();
                    }
                    column += rank;
                }
                row += rows;
            }
            to.put(linear, lowRank(a, b));
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
            NDArray a = manager.zeros(new Shape(lora.rank(), inputs));
            NDArray b = manager.zeros(new Shape(slice.rows(), lora.rank()));
            files.read(LoraConfig.a(slice), 1, first, first + inputs, a);
            files.read(LoraConfig.b(slice), 0, 0, slice.rows(), b);
            to.put(linear, lowRank(a, b));
        }

        private LowRank lowRank(NDArray a, NDArray b) {
            b.muli((float) lora.scale());
            return new LowRank(linear(a), linear(b));
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
