// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.LongConsumer;
import java.util.function.ObjLongConsumer;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.llm.model.BlockFiles;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.Rope;
import org.djlx.llm.model.TensorPart;
import org.djlx.llm.model.WeightMap;
import org.djlx.llm.model.WeightMap.Slice;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Reads a rank's part of the weights from safetensors; owns the memory of what it has read. */
final class WeightReader implements AutoCloseable {

    static final long READ_ELEMENTS = 8 << 20; // at a time, on a CPU

    private static final Logger LOG = LoggerFactory.getLogger(WeightReader.class);

    private static final long ALIGNMENT = 64; // of a weight in bytes

    private static final int[] AS_STORED = {}; // an order of rows

    private final ModelConfig config;
    private final int rank;
    private final int ranks;
    private final WeightFormat format;
    private final TensorFiles files;
    private final boolean inPlace;
    private final LongConsumer progress;
    private final NDManager manager;
    private final Optional<WeightQuantizer> quantizer; // of projections
    private final Allocator allocator;
    private final Optional<BlockFiles> blockFiles; // if kernels multiply by their blocks
    private final Optional<QuantizeKernels> packKernels; // if kernels of a GPU do
    private final List<QuantizedMatrix> packed = new ArrayList<>();
    private int projections;

    /** Allocates arrays that are not quantized; close() frees what the manager does not. */
    private interface Allocator extends AutoCloseable {

        NDArray empty(Shape shape, ScalarType type);

        @Override
        default void close() {}
    }

    /** One block of memory for all weights. */
    private static final class Arena implements Allocator {

        private final NDManager manager;
        private final NativeMemory memory;
        private long used; // bytes

        Arena(NDManager manager, long bytes) {
            this.manager = manager;
            memory = NativeMemory.allocateZeros(bytes, true);
        }

        @Override
        public NDArray empty(Shape shape, ScalarType type) {
            long offset = used;
            long bytes = shape.size() * type.itemSize();
            used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
            return Torch.view(manager, memory, offset, shape, type);
        }

        @Override
        public void close() {
            memory.close();
        }
    }

    /** The slices of one projection that are read as one: parts of a layer, or of an expert. */
    private record Rows(WeightMap.Layer layer, int expert, List<TensorPart> parts) {

        Slice slice(TensorPart part, boolean isBias) {
            return layer.get(part, expert, isBias);
        }

        boolean isBiased() {
            return slice(parts.get(0), true) != null;
        }
    }

    WeightReader(
            ModelConfig config,
            int rank,
            int ranks,
            Device device,
            WeightFormat format,
            TensorFiles files,
            boolean inPlace,
            LongConsumer progress) {
        this.config = config;
        this.rank = rank;
        this.ranks = ranks;
        this.format = format;
        this.files = files;
        this.inPlace = inPlace && !device.isGpu();
        this.progress = progress;
        manager = NDManager.newBaseManager(device);
        boolean quantizes = format.quantization() != Quantization.NONE && !format.isOfFiles();
        quantizer =
                quantizes
                        ? Optional.of(new WeightQuantizer(config, format, manager))
                        : Optional.empty();
        packKernels =
                format.isOfFiles()
                        ? Optional.of(new QuantizeKernels(device, config.type(), format))
                        : Optional.empty();
        boolean computesFromBlocks =
                !quantizes
                        && (device.isGpu()
                                ? format.isOfFiles()
                                : NativeLibrary.CPU_KERNELS.isAvailable());
        blockFiles =
                computesFromBlocks && files instanceof BlockFiles blocks
                        ? Optional.of(blocks)
                        : Optional.empty();
        // A tensor may have three parts.
        long padding = ALIGNMENT * (3L * WeightMap.shapes(config).size() + 2);
        allocator =
                !device.isGpu() && !quantizes && !inPlace && blockFiles.isEmpty()
                        ? new Arena(manager, WeightMap.byteSize(config, ranks) + padding)
                        : (shape, type) -> Torch.empty(manager, shape, type);
    }

    /** Reads all weights. The result closes this reader. */
    ModelWeights read() {
        NDArray embedding = tokenRows(WeightMap.EMBEDDING);
        List<ModelWeights.Layer> layers = new ArrayList<>();
        for (int i = 0; i < config.layers(); i++) {
            layers.add(layer(new WeightMap.Layer(config, i), config.layer(i)));
        }
        NDArray norm = norm(WeightMap.norm(config), AS_STORED);
        ModelWeights.Linear output = output(embedding);
        if (blockFiles.isPresent()) {
            LOG.info(
                    "rank {}: {} projections in the files' blocks, {} in {}",
                    rank,
                    packed.size(),
                    projections - packed.size(),
                    config.type());
        }
        return new ModelWeights(format, embedding, layers, norm, output, this);
    }

    private ModelWeights.Linear output(NDArray embedding) {
        String name = config.tied() ? WeightMap.EMBEDDING : WeightMap.HEAD;
        long inputs = config.hiddenSize();
        int outputs = (int) embedding.getShape().get(0);
        long from = rank * (long) outputs;
        long end = Math.min(from + outputs, config.vocabularySize());
        long[] rows = LongStream.range(from, from + outputs).map(i -> i < end ? i : -1).toArray();
        Optional<ModelWeights.Linear> blocks =
                packed(null, 0, inputs, List.of(new BlockRows(name, rows)));
        if (blocks.isPresent()) {
            return blocks.get();
        }
        if (quantizer.isEmpty()) {
            NDArray head = config.tied() ? embedding : tokenRows(WeightMap.HEAD);
            return new ModelWeights.Linear(head.transpose(), null);
        }
        WeightQuantizer quantizer = this.quantizer.get();
        QuantizedMatrix matrix =
                config.tied()
                        ? quantizer.quantize(embedding)
                        : quantizer.quantize(
                                embedding.getShape(),
                                false,
                                (to, row) -> fillTokens(to, row, WeightMap.HEAD));
        quantizer.closeStaging();
        return new ModelWeights.Linear(List.of(), null, matrix);
    }

    /** Returns the order in which the rows of heads are read. */
    private int[] order(Rope rope) {
        int[] rows = rope.rows(config.headSize());
        boolean isStored = IntStream.range(0, rows.length).allMatch(row -> rows[row] == row);
        return isStored ? AS_STORED : rows;
    }

    private ModelWeights.Layer layer(WeightMap.Layer map, LayerConfig of) {
        int[] order = order(of.attention().rope());
        List<ModelWeights.Mlp> mlps = new ArrayList<>();
        for (int expert = 0; expert < map.mlps(); expert++) {
            List<TensorPart> parts = map.mlpParts();
            mlps.add(
                    new ModelWeights.Mlp(
                            rows(new Rows(map, expert, parts.subList(0, 2)), AS_STORED),
                            columns(new Rows(map, expert, parts.subList(2, 3)))));
        }
        List<TensorPart> heads = List.of(TensorPart.QUERIES, TensorPart.KEYS, TensorPart.VALUES);
        return new ModelWeights.Layer(
                norm(map, TensorPart.ATTENTION_NORM, AS_STORED),
                rows(new Rows(map, 0, heads), order),
                norm(map, TensorPart.QUERY_NORM, order),
                norm(map, TensorPart.KEY_NORM, order),
                norm(map, TensorPart.SINKS, AS_STORED),
                columns(new Rows(map, 0, List.of(TensorPart.ATTENTION_OUT))),
                norm(map, TensorPart.ATTENTION_POST_NORM, AS_STORED),
                norm(map, TensorPart.MLP_NORM, AS_STORED),
                of.mlp().experts() == null ? null : router(map),
                mlps,
                norm(map, TensorPart.MLP_POST_NORM, AS_STORED));
    }

    /** Reads a router, which is not quantized. */
    private ModelWeights.Linear router(WeightMap.Layer map) {
        Rows rows = new Rows(map, 0, List.of(TensorPart.ROUTER));
        NDArray bias = rows.isBiased() ? array(rows, AS_STORED, true) : null;
        return new ModelWeights.Linear(array(rows, AS_STORED, false).transpose(), bias);
    }

    /**
     * Reads this rank's rows of parts: into one matrix, or, if weights stay in the files, a matrix
     * for each part. {@code order} is that of the rows of heads of queries and keys.
     */
    private ModelWeights.Linear rows(Rows of, int[] order) {
        NDArray bias = of.isBiased() ? array(of, order, true) : null;
        long inputs = of.slice(of.parts.get(0), false).columns();
        Optional<ModelWeights.Linear> blocks =
                packed(
                        bias,
                        0,
                        inputs,
                        of.parts.stream().map(part -> blockRows(of, part, order)).toList());
        if (blocks.isPresent()) {
            return blocks.get();
        }
        if (!inPlace || quantizer.isPresent()) {
            return projection(
                    shape(of, false), bias, false, (to, row) -> fill(to, row, of, order, false));
        }
        List<NDArray> weights = new ArrayList<>();
        for (TensorPart part : of.parts) {
            Slice slice = of.slice(part, false);
            long from = slice.first() + slice.firstRow(config, rank, ranks);
            boolean reordered = part != TensorPart.VALUES && order.length > 0;
            Optional<NDArray> view =
                    reordered
                            ? Optional.empty()
                            : view(slice.name(), 0, from, from + slice.rows(config, ranks));
            Rows alone = new Rows(of.layer, of.expert, List.of(part));
            weights.add(view.orElseGet(() -> array(alone, order, false)).transpose());
        }
        return new ModelWeights.Linear(weights, bias, null);
    }

    /** Reads this rank's columns of a projection. Each rank has the whole bias. */
    private ModelWeights.Linear columns(Rows of) {
        Slice slice = of.slice(of.parts.get(0), false);
        NDArray bias = of.isBiased() ? array(of, AS_STORED, true) : null;
        long count = slice.columns() / ranks;
        long[] all = LongStream.range(0, slice.rows()).map(row -> slice.first() + row).toArray();
        Optional<ModelWeights.Linear> blocks =
                packed(
                        bias,
                        rank * count,
                        (rank + 1) * count,
                        List.of(new BlockRows(slice.name(), all)));
        if (blocks.isPresent()) {
            return blocks.get();
        }
        if (quantizer.isEmpty()) {
            Optional<NDArray> view = view(slice.name(), 1, rank * count, (rank + 1) * count);
            if (view.isPresent()) {
                return new ModelWeights.Linear(view.get().transpose(), bias);
            }
        }
        return projection(
                new Shape(slice.rows(), count),
                bias,
                ranks > 1,
                (to, row) -> {
                    if (ranks == 1) {
                        fill(to, 0, slice.name(), row, to.getShape().get(0));
                    } else {
                        files.read(slice.name(), 1, rank * count, (rank + 1) * count, to);
                        progress.accept(to.size() * config.type().itemSize());
                    }
                });
    }

    /** Rows of a tensor; -1 for a row of zeros. */
    private record BlockRows(String name, long[] rows) {}

    /** Returns this rank's rows of a part. */
    private BlockRows blockRows(Rows of, TensorPart part, int[] order) {
        Slice slice = of.slice(part, false);
        long from = slice.firstRow(config, rank, ranks);
        int[] ordered = part == TensorPart.VALUES ? AS_STORED : order;
        long[] rows =
                LongStream.range(from, from + slice.rows(config, ranks))
                        .map(
                                row -> {
                                    int head = ordered.length;
                                    return head == 0
                                            ? row
                                            : row - row % head + ordered[(int) (row % head)];
                                })
                        .map(row -> slice.first() + row)
                        .toArray();
        return new BlockRows(slice.name(), rows);
    }

    /**
     * Packs the parts of a projection. Empty if a part has no blocks, or on a CPU a part before the
     * last has rows that do not fill whole panels.
     */
    private Optional<ModelWeights.Linear> packed(
            NDArray bias, long from, long to, List<BlockRows> parts) {
        boolean fits =
                packKernels.isPresent()
                        || parts.subList(0, parts.size() - 1).stream()
                                .allMatch(part -> part.rows.length % QuantizedMatrix.PANEL == 0);
        projections++;
        if (blockFiles.isEmpty() || !fits) {
            return Optional.empty();
        }
        List<BlockFiles.Blocks> all = new ArrayList<>();
        try (NDManager temporary = NDManager.newBaseManager(Device.cpu())) {
            for (BlockRows part : parts) {
                Optional<BlockFiles.Blocks> blocks =
                        blockFiles.get().blocks(part.name, part.rows, from, to, temporary);
                if (blocks.isEmpty()) {
                    return Optional.empty();
                }
                all.add(blocks.get());
            }
            packed.add(QuantizedMatrix.pack(format, to - from, all, packKernels));
        }
        QuantizedMatrix matrix = packed.get(packed.size() - 1);
        progress.accept(matrix.outputs() * matrix.inputs() * config.type().itemSize());
        return Optional.of(new ModelWeights.Linear(List.of(), bias, matrix));
    }

    /** Reads a projection; parameters as in {@link WeightQuantizer#quantize}. */
    private ModelWeights.Linear projection(
            Shape shape, NDArray bias, boolean whole, ObjLongConsumer<NDArray> source) {
        if (quantizer.isPresent()) {
            QuantizedMatrix matrix = quantizer.get().quantize(shape, whole, source);
            return new ModelWeights.Linear(List.of(), bias, matrix);
        }
        NDArray weight = allocator.empty(shape, config.type());
        source.accept(weight, 0);
        return new ModelWeights.Linear(weight.transpose(), bias);
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
    private NDArray array(Rows of, int[] order, boolean isBias) {
        NDArray array = allocator.empty(shape(of, isBias), config.type());
        fill(array, 0, of, order, isBias);
        return array;
    }

    private Shape shape(Rows of, boolean isBias) {
        long total = 0;
        for (TensorPart part : of.parts) {
            total += of.slice(part, isBias).rows(config, ranks);
        }
        return of.slice(of.parts.get(0), isBias).shape(total);
    }

    /** Fills an array with this rank's rows of parts, one part after the other, from a row on. */
    private void fill(NDArray array, long first, Rows of, int[] order, boolean isBias) {
        long end = first + array.getShape().get(0);
        long start = 0;
        for (TensorPart part : of.parts) {
            Slice slice = of.slice(part, isBias);
            long next = start + slice.rows(config, ranks);
            long from = Math.max(first, start);
            long count = Math.min(end, next) - from;
            if (count > 0) {
                long row = slice.firstRow(config, rank, ranks) + from - start;
                int[] ordered = part == TensorPart.VALUES ? AS_STORED : order;
                fill(array, from - first, slice, row, count, ordered);
            }
            start = next;
        }
    }

    /**
     * Reads rows of a part into the rows of an array from {@code row} on: in an {@code order} of
     * the rows of each head, {@link Rope#rows}, or as they are if that is empty.
     */
    private void fill(NDArray array, long row, Slice slice, long from, long count, int[] order) {
        if (order.length == 0) {
            fill(array, row, slice.name(), slice.first() + from, count);
            return;
        }
        long next = from;
        while (next < from + count) {
            int inHead = (int) (next % order.length);
            long most = Math.min(order.length - inHead, from + count - next);
            int run = 1;
            while (run < most && order[inHead + run] == order[inHead] + run) {
                run++;
            }
            long stored = slice.first() + next - inHead + order[inHead];
            fill(array, row + next - from, slice.name(), stored, run);
            next += run;
        }
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

    /** Reads this rank's rows of a matrix that has one row per token of the vocabulary. */
    private NDArray tokenRows(String name) {
        long count = WeightMap.vocabularyPart(config, ranks);
        if ((rank + 1) * count <= config.vocabularySize()) {
            Optional<NDArray> view = view(name, 0, rank * count, (rank + 1) * count);
            if (view.isPresent()) {
                return view.get();
            }
        }
        NDArray array = allocator.empty(new Shape(count, config.hiddenSize()), config.type());
        fillTokens(array, 0, name);
        return array;
    }

    /** Fills an array with this rank's rows of the vocabulary, from a row on; zeros after it. */
    private void fillTokens(NDArray array, long first, String name) {
        long from = rank * (long) WeightMap.vocabularyPart(config, ranks) + first;
        long rows = array.getShape().get(0);
        long present = Math.max(0, Math.min(rows, config.vocabularySize() - from));
        if (present < rows) {
            try (NDArray rest = Torch.narrow(array, 0, present, rows - present)) {
                TorchInPlace.zero(rest);
            }
        }
        if (present > 0) {
            fill(array, 0, name, from, present);
        }
    }

    /** Reads the weight of a norm, or sinks; null if there are none. */
    private NDArray norm(WeightMap.Layer map, TensorPart part, int[] order) {
        Slice slice = map.get(part, 0, false);
        return slice == null ? null : norm(slice, order);
    }

    private NDArray norm(Slice slice, int[] order) {
        long rows = slice.rows(config, ranks);
        NDArray array = allocator.empty(slice.shape(rows), slice.type());
        fill(array, 0, slice, slice.firstRow(config, rank, ranks), rows, order);
        return config.addsOneToNorms() ? array.addi(1) : array;
    }

    @Override
    public void close() {
        manager.close();
        quantizer.ifPresent(WeightQuantizer::close);
        packed.forEach(QuantizedMatrix::close);
        packKernels.ifPresent(QuantizeKernels::close);
        allocator.close();
    }
}
