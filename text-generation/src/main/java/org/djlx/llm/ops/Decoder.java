// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.fusedops.FusedOps;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.sampling.LogitEdits;
import org.djlx.llm.sampling.Logits;
import org.djlx.llm.sampling.SamplingParameters;
import org.djlx.llm.sampling.TokenLogProbability;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.host.AtomicBuffer;
import org.djlx.nativeops.host.NativeMemory;
import org.djlx.nativeops.torch.CudaStreamGuard;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Decode steps of one rank on a GPU: one or a few tokens of each sequence. The kernels of a step
 * are recorded as a CUDA graph, so a step is one launch. Graphs are captured on first use, one for
 * each {@link Key}; the numbers of rows and attention splits are rounded up.
 *
 * <p>Tokens are sampled on the GPU, the same on all ranks, and stay there in {@link #sampled}. So
 * the next step can launch before the tokens reach the host. The decoder also computes the last
 * layer of the last tokens of prefills, and samples the next tokens.
 *
 * <p>Bit for bit, the logits of a sequence do not depend on the other sequences of the batch. In
 * {@linkplain DecoderMatmuls#isLarge large} steps they depend on the number of rows, by which
 * attention is divided and cuBLASLt chooses algorithms. A row with an adapter may make a step
 * large. Kernels sum in float32 and round to the element type; sums of e4m3 products have in part
 * fewer bits.
 *
 * <p>Use the decoder only on the rank's thread, with gradients off.
 */
final class Decoder implements AutoCloseable {

    private static final double LOG2_E = 1 / Math.log(2);

    // The rows of graphs, at least half of them used.
    private static final List<Integer> GRAPH_ROWS =
            List.of(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, DecoderKernels.MAX_ROWS);

    // The GPU has finished already; this bounds how long the group takes to notice.
    private static final Duration TIMEOUT = Duration.ofMinutes(1);

    // Attention of a sequence is split into parts of this many blocks, as in flash decoding.
    private static final int SPLIT_BLOCKS = DecoderKernels.CHUNK / KvCache.BLOCK_TOKENS;
    private static final int TOP_BYTES = DecoderKernels.TOP_FLOATS * Float.BYTES;

    // The results of a step: the sampled tokens of all rows, then their lists of highest logits.
    private static final int LISTS_OFFSET = DecoderKernels.MAX_ROWS * TOP_BYTES;
    private static final int LIST_BYTES =
            DecoderKernels.MAX_TOP_LOGPROBS * DecoderKernels.MOST_BYTES;

    private final RankModel model;
    private final ModelConfig config;
    private final ProcessGroup group;
    private final NDManager manager;
    private final int queryHeads;
    private final int kvHeads;
    private final int vocabularyPart; // the tokens whose logits this rank computes
    private final int splitCapacity;
    private final int maxRows; // of a step
    private final ModelKernels gpu;

    // Buffers for the maximum number of rows. A graph of fewer rows uses the first rows.
    private final NDArray qkv;
    private final NDArray attended;
    private final NDArray splits; // partial results of attention
    private final NDArray counters; // of finished thread blocks; 0 between kernels
    private final NDArray inputs;
    private final NDArray topParts; // of thread blocks
    private final NDArray logits;
    private final NDArray edited; // logits of rows with edits, in float32
    private final NDArray tops; // the highest logit of each rank and row

    // The last sampled token of each sequence, by its index: less than the number of cache blocks.
    private final NDArray sampled;

    private final List<AutoCloseable> resources = new ArrayList<>(); // closed backwards
    private final CudaStream stream;
    private final CudaEvent handover; // between the current stream and the decoder's
    private final DecoderKernels kernels;
    private final DecoderMatmuls matmuls;
    private final CurrentStreams currentStreams;
    private final ByteBuffer nextInputs;
    private final Map<Key, CudaGraph> graphs = new HashMap<>();

    // Double buffered: the host prepares a step while the GPU runs the previous step.
    private final HostBuffers[] hostBuffers = new HostBuffers[2];
    private int nextBuffers;
    private boolean keepsLogits;
    private Optional<LoraKernels> lora = Optional.empty(); // made for the first adapters

    /** A row of a step: one token of a chunk. */
    private record Row(TokenBatch.Chunk chunk, int index) {

        int token() {
            return chunk.tokens()[index];
        }

        int position() {
            return chunk.start() + index;
        }

        boolean needsLogits() {
            return chunk.needsLogits() && index == chunk.tokens().length - 1;
        }

        SamplingParameters sampling() {
            return needsLogits() ? chunk.sampling() : SamplingParameters.GREEDY;
        }

        int splits() {
            return Decoder.splits(position() + 1);
        }
    }

    /**
     * The key of a graph: the rows, one of {@link #GRAPH_ROWS}; the attention splits of the longest
     * sequence, a power of two; whether several rows belong to one sequence, whether only the last
     * layer is computed, and whether rows have adapters.
     */
    private record Key(
            int rows, int splits, boolean sharesSequences, boolean lastLayer, boolean adapted) {

        static Key of(List<Row> rows, boolean lastLayer) {
            int splits = rows.stream().mapToInt(Row::splits).max().orElseThrow();
            long sequences = rows.stream().mapToInt(row -> row.chunk.sequence()).distinct().count();
            boolean sharesSequences = sequences < rows.size();
            return new Key(
                    graphRows(rows.size()),
                    roundUpToPower(splits),
                    sharesSequences,
                    lastLayer,
                    rows.stream().anyMatch(row -> row.chunk.adapter() != 0));
        }

        int tableStride() {
            return splits * SPLIT_BLOCKS;
        }

        /**
         * Returns the size of the inputs in bytes. The layout is: the sampling parameters of each
         * row; int32 arrays with the token, the index into {@link Decoder#sampled} (-1 if no token
         * is sampled), the position and the first split of each row; the block table; with adapters
         * the groups of {@link LoraKernels}.
         */
        int inputBytes() {
            return groupsOffset() + (adapted ? LoraKernels.groupBytes(rows) : 0);
        }

        int groupsOffset() {
            return tokensOffset() + (4 + tableStride()) * rows * Integer.BYTES;
        }

        int tokensOffset() {
            return rows * DecoderKernels.SAMPLING_PARAMETERS.byteSize();
        }
    }

    /** Pinned host memory for the inputs and results of a step. */
    private final class HostBuffers {

        final NativeMemory inputs;
        final NativeMemory results;
        final CudaEvent done;
        private final CudaDevice device;
        private NativeMemory edits; // replaced by a larger one; null until it is used
        Results last; // of the last step that used these buffers; null before

        HostBuffers(CudaDevice device, int inputBytes) {
            inputs = keep(CudaMemory.allocatePinned(device, inputBytes));
            int resultBytes = LISTS_OFFSET + DecoderKernels.MAX_ROWS * LIST_BYTES;
            results = keep(CudaMemory.allocatePinned(device, resultBytes));
            this.device = device;
            done = keep(CudaEvent.create(device));
        }

        void await() {
            if (last != null) {
                last.await();
            }
        }

        /** Returns memory for the edits of a step, which no kernel reads any more. */
        NativeMemory edits(long bytes) {
            if (edits == null || edits.byteSize() < bytes) {
                // The old memory is freed with the decoder: sizes at least double.
                edits = keep(CudaMemory.allocatePinned(device, 2 * bytes));
            }
            return edits;
        }
    }

    /**
     * Allocates buffers. Graphs are captured later. {@code gpu} must be closed after this decoder.
     */
    Decoder(RankModel model, ModelKernels gpu, boolean batchInvariant) {
        kernels = gpu.kernels();
        currentStreams = gpu.currentStreams();
        this.model = model;
        this.gpu = gpu;
        config = model.config();
        group = model.group();
        int ranks = model.ranks();
        int most = DecoderKernels.MAX_ROWS;
        boolean fitsMost =
                ranks == 1 || FusedOps.isFused(config.type(), most, config.hiddenSize(), group);
        maxRows = fitsMost && !batchInvariant ? most : DecoderKernels.MATMUL_ROWS;
        queryHeads = model.queryHeads();
        kvHeads = model.kvHeads();
        vocabularyPart = model.vocabularyPart();
        int maxSplits = roundUpToPower(splits(model.tables().maxLength()));
        boolean done = false;
        try {
            manager = keep(NDManager.newBaseManager(group.device()));
            CudaDevice device = gpu.device();
            stream = keep(CudaStream.create(device));
            int head = config.headSize();
            matmuls =
                    keep(new DecoderMatmuls(model, gpu, manager, stream, maxRows, batchInvariant));
            qkv = rows((queryHeads + 2 * kvHeads) * head);
            attended = rows(queryHeads * head);
            logits = rows(ranks * vocabularyPart);
            edited = manager.create(new Shape(maxRows, editedStride()));
            int splitSize = queryHeads * (head + DecoderKernels.CHUNK_EXTRA);
            // The last split of each sequence may be filled in part.
            splitCapacity =
                    Math.max(maxSplits, model.cache().slots() / DecoderKernels.CHUNK + maxRows);
            splits = manager.zeros(new Shape(splitCapacity, splitSize));
            counters = manager.zeros(new Shape(maxRows, kvHeads + 1), DataType.INT32);
            Key largest = new Key(maxRows, maxSplits, true, false, true);
            inputs = manager.zeros(new Shape(largest.inputBytes()), DataType.UINT8);
            topParts =
                    manager.zeros(
                            new Shape(
                                    maxRows, DecoderKernels.TOP_BLOCKS, DecoderKernels.TOP_FLOATS));
            tops = manager.zeros(new Shape(ranks * maxRows, DecoderKernels.TOP_FLOATS));
            sampled =
                    manager.zeros(
                            new Shape(model.cache().slots() / KvCache.BLOCK_TOKENS),
                            DataType.INT32);
            handover = keep(CudaEvent.create(device));
            hostBuffers[0] = new HostBuffers(device, largest.inputBytes());
            hostBuffers[1] = new HostBuffers(device, largest.inputBytes());
            nextInputs = ByteBuffer.allocate(largest.inputBytes()).order(ByteOrder.nativeOrder());
            // Not the whole GPU, on which another model of this process may be capturing a graph.
            currentStreams.get().synchronize();
            done = true;
        } finally {
            if (!done) {
                close();
            }
        }
    }

    private <T extends AutoCloseable> T keep(T resource) {
        resources.add(resource);
        return resource;
    }

    private NDArray rows(int size) {
        return Torch.empty(manager, new Shape(maxRows, size), config.type());
    }

    private static int splits(int length) {
        return (length + DecoderKernels.CHUNK - 1) / DecoderKernels.CHUNK;
    }

    private static int graphRows(int rows) {
        return GRAPH_ROWS.stream().filter(of -> of >= rows).findFirst().orElseThrow();
    }

    private static int roundUpToPower(int count) {
        return Integer.highestOneBit(2 * count - 1);
    }

    /**
     * Computes chunks of a few tokens each, and writes their keys and values to the cache. All
     * ranks call this at the same time. The GPU may still be computing when this returns the
     * sampled tokens of the chunks that need logits.
     */
    Logits decode(List<TokenBatch.Chunk> chunks) {
        List<Row> rows = new ArrayList<>();
        for (TokenBatch.Chunk chunk : chunks) {
            for (int i = 0; i < chunk.tokens().length; i++) {
                rows.add(new Row(chunk, i));
            }
        }
        List<Logits> parts = new ArrayList<>();
        steps(rows).forEach(step -> parts.add(launch(step, null)));
        return Logits.concat(parts);
    }

    /** Divides rows into steps that the buffers have room for. */
    private List<List<Row>> steps(List<Row> rows) {
        List<List<Row>> steps = new ArrayList<>();
        int first = 0;
        int room = splitCapacity;
        for (int i = 0; i < rows.size(); i++) {
            if (i - first == maxRows || rows.get(i).splits() > room) {
                steps.add(rows.subList(first, i));
                first = i;
                room = splitCapacity;
            }
            room -= rows.get(i).splits();
        }
        steps.add(rows.subList(first, rows.size()));
        return steps;
    }

    /**
     * Computes the last layer of the last tokens of prompts, and samples the next tokens. All ranks
     * call this at the same time, after {@link #await}. The GPU may still be computing when this
     * returns.
     *
     * @param residual the residual stream before the last layer, of some or all tokens of the
     *     prefill; on the current stream
     * @param rows the row of each chunk's last token, on the rank that has this row; -1 on other
     *     ranks
     */
    Logits finishPrefill(List<TokenBatch.Chunk> chunks, NDArray residual, long[] rows) {
        List<Row> last =
                chunks.stream().map(chunk -> new Row(chunk, chunk.tokens().length - 1)).toList();
        List<Logits> parts = new ArrayList<>();
        int first = 0;
        for (List<Row> step : steps(last)) {
            long[] own = Arrays.copyOfRange(rows, first, first + step.size());
            parts.add(launch(step, new PrefillRows(residual, own)));
            first += step.size();
        }
        handover.record(stream);
        currentStreams.get().waitEvent(handover); // It may reuse the residual stream's memory.
        return Logits.concat(parts);
    }

    /** Rows of a residual stream, -1 for those of other ranks. */
    private record PrefillRows(NDArray residual, long[] rows) {}

    /** Writes the residual stream before the last layer: zeros for rows of other ranks. */
    private void writeResidual(PrefillRows from, int rows) {
        long rowBytes = (long) config.hiddenSize() * config.type().itemSize();
        long to = Torch.dataPointer(matmuls.firstPartial());
        stream.memsetAsync(to, (byte) 0, rows * rowBytes);
        for (int i = 0; i < from.rows.length; i++) {
            if (from.rows[i] >= 0) {
                long row = Torch.dataPointer(from.residual) + from.rows[i] * rowBytes;
                stream.copyAsync(to + i * rowBytes, row, rowBytes);
            }
        }
    }

    /** Copies the logits of each step to the host, for {@link Logits#toArray}: for tests. */
    void keepLogits() {
        keepsLogits = true;
    }

    /** Waits for all launched steps. Throws if a rank has failed. */
    void await() {
        hostBuffers[nextBuffers].await();
        hostBuffers[1 - nextBuffers].await();
    }

    /**
     * Launches a step; {@code prefill} is the residual stream before the last layer, if only that
     * is computed, otherwise null.
     */
    private Results launch(List<Row> rows, PrefillRows prefill) {
        Key key = Key.of(rows, prefill != null);
        HostBuffers buffers = hostBuffers[nextBuffers];
        buffers.await();
        nextBuffers = 1 - nextBuffers;
        long[] edits = writeInputs(buffers, key, rows);
        handover.record(currentStreams.get());
        List<Work> works = new ArrayList<>();
        CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
        try {
            stream.waitEvent(handover);
            stream.copyAsync(Torch.dataPointer(inputs), buffers.inputs.address(), key.inputBytes());
            CudaGraph graph = graphs.computeIfAbsent(key, this::capture);
            if (prefill != null) {
                writeResidual(prefill, key.rows); // After capture(), which may overwrite it.
            }
            boolean isPlain = rows.stream().allMatch(row -> row.sampling().isPlain());
            boolean gathers = (keepsLogits || !isPlain) && group.worldSize() > 1;
            if (gathers) {
                long rowBytes = logits.getShape().get(1) * config.type().itemSize();
                stream.memsetAsync(Torch.dataPointer(logits), (byte) 0, key.rows * rowBytes);
            }
            graph.launch(stream);
            if (gathers) {
                works.add(gather(logits, key.rows));
            }
            writeAllowed(buffers, rows, edits);
            if (group.worldSize() > 1) {
                works.add(gather(tops, group.worldSize() * key.rows));
            }
            kernels.sample(stream, key.rows, to -> putSampling(to, buffers, key));
            buffers.done.record(stream);
        } finally {
            guard.close();
        }
        buffers.last = new Results(buffers, rows, works);
        if (keepsLogits) {
            buffers.last.copyLogits();
        }
        return buffers.last;
    }

    private LoraKernels loraKernels() {
        int qkvSize = (int) qkv.getShape().get(1);
        int inner = config.intermediateSize() / group.worldSize();
        int widest = Math.max(config.hiddenSize(), Math.max(qkvSize, 2 * inner));
        int projections = Adapters.projections(model).size();
        return new LoraKernels(gpu.device(), config.type(), manager, maxRows, widest, projections);
    }

    private CudaGraph capture(Key key) {
        if (key.adapted && lora.isEmpty()) {
            lora = Optional.of(keep(loraKernels()));
        }
        if (matmuls.isLarge(key.rows, key.adapted)) {
            record(key); // cuBLASLt may load kernels. The graph computes the same again.
        }
        return CudaGraph.capture(stream, () -> record(key));
    }

    /** Launches the kernels of a step, mostly during graph capture. */
    private void record(Key key) {
        GraphOps ops = new GraphOps(key);
        int layers = config.layers();
        ForwardPass.layers(model, ops, key.lastLayer ? layers - 1 : 0, layers);
        ForwardPass.logits(model, ops);
        int first = vocabularyPart * group.rank();
        int width = Math.max(0, Math.min(vocabularyPart, config.vocabularySize() - first));
        long ownLogits = Torch.dataPointer(logits) + (long) first * config.type().itemSize();
        kernels.top(
                stream,
                key.rows,
                to ->
                        to.put("top", Torch.dataPointer(tops))
                                .put("logits", ownLogits)
                                .put("parts", Torch.dataPointer(topParts))
                                .put("blocks_ended", topCounters())
                                .put("first", first)
                                .put("width", width)
                                .put("stride", logits.getShape().get(1))
                                .put("rank", group.rank())
                                .put("ranks", group.worldSize()));
    }

    /**
     * The operators of a step that is being recorded. Models that need {@code postNorm} have no
     * kernels.
     */
    private final class GraphOps implements LayerOps<NDArray> {

        private final Key key;
        private final DecoderMatmuls.Step step;
        private final long positions;
        private final long firstSplits;
        private final long table;

        /** Launches the embedding, unless launch() writes the residual stream. */
        GraphOps(Key key) {
            this.key = key;
            long bytes = (long) key.rows * Integer.BYTES;
            positions = sampledIndices(key) + bytes;
            firstSplits = positions + bytes;
            table = firstSplits + bytes;
            long groups = Torch.dataPointer(inputs) + key.groupsOffset();
            step =
                    matmuls.begin(
                            key.rows,
                            lora.filter(kernels -> key.adapted)
                                    .map(kernels -> kernels.begin(stream, key.rows, groups)));
            if (!key.lastLayer) {
                kernels.embed(stream, key.rows, this::putEmbedding);
            }
        }

        private void putEmbedding(KernelArguments embedding) {
            embedding
                    .put("output", Torch.dataPointer(matmuls.firstPartial()))
                    .put("tokens", Torch.dataPointer(inputs) + key.tokensOffset())
                    .put("slots", sampledIndices(key))
                    .put("sampled", Torch.dataPointer(sampled))
                    .put("embedding", Torch.dataPointer(model.weights().embedding()))
                    .put("first", vocabularyPart * group.rank())
                    .put("count", vocabularyPart)
                    .put("hidden", config.hiddenSize());
        }

        @Override
        public NDArray project(NDArray postNorm, NDArray norm, ModelWeights.Linear linear) {
            step.multiplyNormed(qkv, 0, norm, linear, (int) qkv.getShape().get(1));
            return qkv;
        }

        @Override
        public NDArray projectGated(
                NDArray postNorm, NDArray norm, ModelWeights.Linear gateUp, LayerConfig.Mlp mlp) {
            return step.multiplyGated(norm, gateUp);
        }

        @Override
        public NDArray attend(int layer, NDArray qkv) {
            step.launchChain();
            gpu.normHeads(stream, model.weights().layer(layer), key.rows, qkv);
            RotaryTables.Tables tables = model.tables().of(layer);
            int window = config.layer(layer).attention().window();
            kernels.attend(
                    stream,
                    new DecoderKernels.AttentionSize(
                            key.rows,
                            kvHeads,
                            key.splits,
                            key.sharesSequences,
                            !step.isLarge(),
                            step.isChained()),
                    attention -> {
                        model.cache().addresses(layer).putTo(attention);
                        attention
                                .put("output", Torch.dataPointer(attended))
                                .put("qkv", Torch.dataPointer(qkv))
                                .put("positions", positions)
                                .put("table", table)
                                .put("cosines", Torch.dataPointer(tables.cosines()))
                                .put("sines", Torch.dataPointer(tables.sines()))
                                .put("first_chunks", firstSplits)
                                .put("chunks", Torch.dataPointer(splits))
                                .put("chunks_ended", Torch.dataPointer(counters))
                                .put("window", window == 0 ? Integer.MAX_VALUE : window)
                                .put("table_stride", key.tableStride())
                                .put("heads", kvHeads);
                    });
            return attended;
        }

        @Override
        public void experts(
                NDArray postNorm, NDArray norm, ModelWeights.Layer layer, LayerConfig.Mlp mlp) {
            step.experts(norm, layer, mlp, positions);
        }

        @Override
        public void projectBack(NDArray x, ModelWeights.Linear linear) {
            step.multiplyToPartial(x, linear);
        }

        @Override
        public NDArray logits(NDArray postNorm, NDArray norm, ModelWeights.Linear output) {
            int firstToken = vocabularyPart * group.rank();
            step.multiplyNormed(logits, firstToken, norm, output, vocabularyPart);
            step.launchChain();
            return logits;
        }
    }

    /** Gathers by all-reduce: each rank has zeros where other ranks have values. */
    private Work gather(NDArray array, int rows) {
        try (NDArray first = array.get(new NDIndex().addSliceDim(0, rows))) {
            return group.allReduce(first, ReduceOp.SUM, false);
        }
    }

    /**
     * Writes the inputs of a graph, laid out as {@link Key#inputBytes} says, to host memory.
     * Returns the addresses of {@link #writeEdits}.
     */
    private long[] writeInputs(HostBuffers buffers, Key key, List<Row> rows) {
        nextInputs.clear();
        long[] edits = writeEdits(buffers, rows);
        for (int i = 0; i < key.rows; i++) {
            boolean used = i < rows.size();
            SamplingParameters sampling = used ? rows.get(i).sampling() : SamplingParameters.GREEDY;
            writeSampling(nextInputs, i, sampling, used ? edits[i] : 0);
        }
        nextInputs.position(key.tokensOffset());
        for (int i = 0; i < key.rows; i++) {
            nextInputs.putInt(i < rows.size() ? rows.get(i).token() : -1);
        }
        for (int i = 0; i < key.rows; i++) {
            boolean samples = i < rows.size() && rows.get(i).needsLogits();
            nextInputs.putInt(samples ? rows.get(i).chunk.sequence() : -1);
        }
        for (int i = 0; i < key.rows; i++) {
            nextInputs.putInt(i < rows.size() ? rows.get(i).position() : -1);
        }
        int firstSplit = 0;
        for (int i = 0; i < key.rows; i++) {
            nextInputs.putInt(firstSplit);
            firstSplit += i < rows.size() ? rows.get(i).splits() : 0;
        }
        int tableOffset = nextInputs.position();
        for (int i = 0; i < rows.size(); i++) {
            Row row = rows.get(i);
            nextInputs.position(tableOffset + i * key.tableStride() * Integer.BYTES);
            for (int token = 0; token <= row.position(); token += KvCache.BLOCK_TOKENS) {
                nextInputs.putInt(row.chunk.slots()[token]);
            }
        }
        if (key.adapted) {
            nextInputs.position(key.groupsOffset());
            long[] adapters = new long[key.rows];
            for (int i = 0; i < rows.size(); i++) {
                adapters[i] = model.adapters().table(rows.get(i).chunk.adapter());
            }
            LoraKernels.writeGroups(nextInputs, adapters);
        }
        new AtomicBuffer(buffers.inputs, 0, nextInputs.capacity())
                .putBytes(0, nextInputs.array(), key.inputBytes());
        return edits;
    }

    /**
     * Writes the edits of all rows, but leaves room for the bits of allowed tokens. Returns their
     * addresses, 0 for rows without edits.
     */
    private long[] writeEdits(HostBuffers buffers, List<Row> rows) {
        long[] addresses = new long[rows.size()];
        int bytes = rows.stream().mapToInt(row -> editBytes(row.sampling().edits())).sum();
        if (bytes == 0) {
            return addresses;
        }
        NativeMemory memory = buffers.edits(bytes);
        ByteBuffer all = ByteBuffer.allocate(bytes).order(ByteOrder.nativeOrder());
        IntBuffer next = all.asIntBuffer();
        for (int i = 0; i < addresses.length; i++) {
            LogitEdits edits = rows.get(i).sampling().edits();
            if (edits == null) {
                continue;
            }
            addresses[i] = memory.address() + (long) next.position() * Integer.BYTES;
            next.put(edits.entries());
            if (edits.allowed() != null) {
                next.position(next.position() + allowedWords());
            }
        }
        new AtomicBuffer(memory, 0, bytes).putBytes(0, all.array(), bytes);
        return addresses;
    }

    /** Writes the allowed tokens of rows, which may still be computed while the graph runs. */
    private void writeAllowed(HostBuffers buffers, List<Row> rows, long[] addresses) {
        for (int i = 0; i < addresses.length; i++) {
            LogitEdits edits = rows.get(i).sampling().edits();
            if (edits != null && edits.allowed() != null) {
                writeAllowed(buffers.edits, addresses[i], edits, allowedWords());
            }
        }
    }

    /**
     * Writes the allowed tokens of a row after its entries at {@code address}: a bit for each
     * token, {@code words} ints.
     */
    static void writeAllowed(NativeMemory memory, long address, LogitEdits edits, int words) {
        int bytes = words * Integer.BYTES;
        ByteBuffer bits = ByteBuffer.allocate(bytes).order(ByteOrder.nativeOrder());
        bits.asIntBuffer().put(Arrays.copyOf(edits.allowed().get(), words));
        long entries = (long) edits.entries().length * Integer.BYTES;
        int offset = Math.toIntExact(address + entries - memory.address());
        new AtomicBuffer(memory, 0, offset + bytes).putBytes(offset, bits.array(), bytes);
    }

    /** Returns the bytes of a row's edits and of the bits of its allowed tokens after them. */
    private int editBytes(LogitEdits edits) {
        if (edits == null) {
            return 0;
        }
        int allowed = edits.allowed() == null ? 0 : allowedWords() * Integer.BYTES;
        // One int more: a row whose edits have no entries yet needs an address that is not 0, too.
        return (edits.entries().length + 1) * Integer.BYTES + allowed;
    }

    private int allowedWords() {
        return (config.vocabularySize() + Integer.SIZE - 1) / Integer.SIZE;
    }

    private long editedStride() {
        return (config.vocabularySize() + 3) / 4 * 4; // Rows begin at multiples of 16 bytes.
    }

    /**
     * Writes a row of {@code SamplingParameters} of sampling.cu by member name. {@code address} is
     * that of the entries, after which the allowed tokens follow; 0 without edits.
     */
    static void writeSampling(ByteBuffer to, int row, SamplingParameters sampling, long address) {
        LogitEdits edits = sampling.edits();
        int ints = edits == null ? 0 : edits.entries().length;
        boolean allowsSome = edits != null && edits.allowed() != null;
        // Clamped, because a float of 0 or infinity would make probabilities NaN.
        double requested = LOG2_E / sampling.temperature();
        double scale = Math.max(Float.MIN_NORMAL, Math.min(Float.MAX_VALUE, requested));
        put(to, row, "scale", sampling.temperature() == 0 ? 0 : scale);
        put(to, row, "top_p", sampling.topP());
        put(to, row, "random", sampling.random());
        put(to, row, "top_k", sampling.topK());
        put(to, row, "min_p", sampling.minP());
        put(to, row, "edits", address);
        put(to, row, "allowed", allowsSome ? address + ints * Integer.BYTES : 0);
        put(to, row, "edit_count", ints / LogitEdits.ENTRY);
        put(to, row, "given", sampling.given());
        put(to, row, "most", sampling.topLogProbabilities());
        put(to, row, "repetition", edits == null ? 1 : edits.repetitionPenalty());
        put(to, row, "frequency", edits == null ? 0 : edits.frequencyPenalty());
        put(to, row, "presence", edits == null ? 0 : edits.presencePenalty());
    }

    private static void put(ByteBuffer to, int row, String member, Number value) {
        KernelConstants.Member of = DecoderKernels.SAMPLING_PARAMETERS.members().get(member);
        int at = row * DecoderKernels.SAMPLING_PARAMETERS.byteSize() + of.offset();
        switch (of.type()) {
            case "double" -> to.putDouble(at, value.doubleValue());
            case "float" -> to.putFloat(at, value.floatValue());
            case "int", "u32" -> to.putInt(at, value.intValue());
            default -> to.putLong(at, value.longValue()); // u64 and pointers
        }
    }

    private void putSampling(KernelArguments to, HostBuffers buffers, Key key) {
        to.put("top", buffers.results.address())
                .put("parts", Torch.dataPointer(tops))
                .put("sampled", Torch.dataPointer(sampled))
                .put("slots", sampledIndices(key))
                .put("parameters", Torch.dataPointer(inputs))
                .put("logits", Torch.dataPointer(logits))
                .put("width", config.vocabularySize())
                .put("stride", logits.getShape().get(1))
                .put("ranks", group.worldSize())
                .put("rows", key.rows)
                .put("tokens", Torch.dataPointer(inputs) + key.tokensOffset())
                .put("most", buffers.results.address() + LISTS_OFFSET)
                .put("edited", Torch.dataPointer(edited))
                .put("edited_stride", editedStride());
    }

    private long sampledIndices(Key key) {
        return Torch.dataPointer(inputs) + key.tokensOffset() + (long) key.rows * Integer.BYTES;
    }

    private long topCounters() {
        return Torch.dataPointer(counters) + (long) maxRows * kvHeads * Integer.BYTES;
    }

    /** The logits and sampled tokens of a step. */
    private final class Results implements Logits {

        private final HostBuffers buffers;
        private final List<Work> works;
        private final List<Integer> rows = new ArrayList<>(); // the rows that need logits
        private final List<SamplingParameters> sampling = new ArrayList<>(); // of these rows
        private List<DeviceToken> tokens; // null until await()
        private final List<float[]> copies = new ArrayList<>(); // of the logits, if kept

        Results(HostBuffers buffers, List<Row> all, List<Work> works) {
            this.buffers = buffers;
            this.works = works;
            for (int i = 0; i < all.size(); i++) {
                if (all.get(i).needsLogits()) {
                    rows.add(i);
                    sampling.add(all.get(i).sampling());
                }
            }
        }

        @Override
        public void await() {
            if (tokens != null) {
                return;
            }
            buffers.done.synchronize();
            works.forEach(work -> work.await(TIMEOUT)); // Also throws failures of the graph.
            ByteBuffer buffer = results(0, LISTS_OFFSET);
            tokens = new ArrayList<>();
            for (int i = 0; i < rows.size(); i++) {
                buffer.position(rows.get(i) * TOP_BYTES);
                double logSumExp = buffer.getFloat() + Math.log(buffer.getFloat());
                int token = (int) buffer.getFloat();
                int listed = sampling.get(i).topLogProbabilities();
                List<TokenLogProbability> top =
                        listed == 0 ? List.of() : list(rows.get(i), listed, logSumExp);
                tokens.add(new DeviceToken(token, buffer.getFloat(), true, logSumExp, top));
            }
        }

        private ByteBuffer results(int from, int count) {
            byte[] bytes = new byte[count];
            new AtomicBuffer(buffers.results, from, count).getBytes(0, bytes);
            return ByteBuffer.wrap(bytes).order(ByteOrder.nativeOrder());
        }

        private List<TokenLogProbability> list(int row, int listed, double logSumExp) {
            int count = Math.min(listed, config.vocabularySize());
            ByteBuffer list = results(LISTS_OFFSET + row * LIST_BYTES, LIST_BYTES);
            return Stream.generate(
                            () ->
                                    new TokenLogProbability(
                                            list.getInt(), (float) (list.getFloat() - logSumExp)))
                    .limit(count)
                    .sorted(
                            Comparator.comparing(TokenLogProbability::logProbability)
                                    .reversed()
                                    .thenComparing(TokenLogProbability::token))
                    .toList();
        }

        /** Copies the logits, because the next step overwrites them. */
        void copyLogits() {
            await();
            for (int index : rows) {
                NDIndex all =
                        new NDIndex().addIndices(index).addSliceDim(0, config.vocabularySize());
                try (NDArray row = logits.get(all);
                        NDArray wide = Torch.cast(row, ScalarType.FLOAT32)) {
                    copies.add(wide.toFloatArray());
                }
            }
        }

        @Override
        public int count() {
            return rows.size();
        }

        @Override
        public List<DeviceToken> deviceTokens() {
            await();
            return tokens;
        }

        @Override
        public float[] toArray(int sequence) {
            return copies.get(sequence);
        }
    }

    @Override
    public void close() {
        if (stream != null) {
            stream.synchronize(); // The last step may still run.
        }
        graphs.values().forEach(CudaGraph::close);
        graphs.clear();
        for (int i = resources.size() - 1; i >= 0; i--) {
            try {
                resources.get(i).close();
            } catch (RuntimeException e) {
                throw e;
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
        }
        resources.clear();
    }
}
