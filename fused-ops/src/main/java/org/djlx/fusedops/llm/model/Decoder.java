// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.model;

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
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.NormedResidual;
import org.djlx.fusedops.internal.DecoderKernels;
import org.djlx.fusedops.internal.MatmulChain;
import org.djlx.fusedops.internal.Product;
import org.djlx.fusedops.internal.QuantizeKernels;
import org.djlx.fusedops.internal.RmsNormKernels;
import org.djlx.fusedops.internal.WideMatmul;
import org.djlx.fusedops.llm.TokenLogProbability;
import org.djlx.fusedops.llm.sampling.LogitEdits;
import org.djlx.fusedops.llm.sampling.Logits;
import org.djlx.fusedops.llm.sampling.SamplingParameters;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaEvent;
import org.djlx.nativeops.cuda.CudaGraph;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
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
 * <p>In steps of up to {@link Quantization#gpuRows} rows, the logits of a sequence do not depend on
 * the other sequences of the batch, bit for bit. Steps of more rows are called large: {@link
 * WideMatmul} runs their matmuls if it supports them, else cuBLASLt. Their bits depend on the
 * number of rows, by which attention is divided and cuBLASLt chooses algorithms. No step is large
 * if the decoder is batch-invariant or the weights are INT4. Kernels sum in float32, products of
 * e4m3 in part in fewer bits, and round to the element type.
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
    private static final int LISTS = DecoderKernels.MAX_ROWS * TOP_BYTES;
    private static final int LIST_BYTES = DecoderKernels.MAX_MOST * DecoderKernels.MOST_BYTES;

    private final ModelConfig config;
    private final ProcessGroup group;
    private final ModelWeights weights;
    private final KvCache cache;
    private final NDManager manager;
    private final int queryHeads;
    private final int kvHeads;
    private final int inner;
    private final int tokens; // vocabulary tokens whose logits this rank computes
    private final int splitCapacity;
    private final int maxRows; // of a step
    private final boolean batchInvariant;
    private final Attention attention;
    private final ModelKernels gpu;

    // Buffers for the maximum number of rows. A graph of fewer rows uses the first rows.
    private final NDArray[] residuals = new NDArray[3];
    private final NDArray zeros;
    private final NDArray norm;
    private final NDArray qkv;
    private final NDArray attended;
    private final NDArray gateUp; // before activation; for cuBLASLt
    private final NDArray activated;
    private final NDArray e4m3Rows; // the left operand of WideMatmul or cuBLASLt
    private final NDArray e4m3Scales;
    private final NDArray splits; // partial results of attention
    private final NDArray counters; // of finished thread blocks; 0 between kernels
    private final NDArray chainArrivals; // counter of the chain's barrier
    private final NDArray inputs;
    private final NDArray argMaxParts;
    private final NDArray logits;
    private final NDArray edited; // logits of rows with edits, in float32
    private final NDArray argMaxes; // of each row and rank

    // The last token of each sequence, by its index. A running sequence has a block, or more.
    private final NDArray sampled;

    private final List<AutoCloseable> resources = new ArrayList<>(); // closed backwards
    private final CudaStream stream;
    private final CudaEvent before;
    private final DecoderKernels kernels;
    private final MatmulChain chain; // null with several ranks, or if the GPU is not of Hopper
    private final WideMatmul wideMatmul; // null if it does not support the weights or the GPU
    private final List<MatmulChain.Link> links = new ArrayList<>(); // of the chain being recorded
    private final CurrentStreams currentStreams;
    private final ByteBuffer nextInputs;
    private final Map<Key, CudaGraph> graphs = new HashMap<>();

    // Double buffered: the host prepares a step while the GPU runs the previous step.
    private final HostBuffers[] hostBuffers = new HostBuffers[2];
    private int nextBuffers;
    private boolean keepsLogits;

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
     * The key of a graph.
     *
     * @param rows the rows, one of {@link #GRAPH_ROWS}
     * @param splits the attention splits of the longest sequence, a power of two
     * @param sharesSequences whether several rows belong to one sequence
     * @param lastLayer whether only the last layer is computed
     */
    private record Key(int rows, int splits, boolean sharesSequences, boolean lastLayer) {

        static Key of(List<Row> rows, boolean lastLayer) {
            int splits = rows.stream().mapToInt(Row::splits).max().orElseThrow();
            long sequences = rows.stream().mapToInt(row -> row.chunk.sequence()).distinct().count();
            boolean sharesSequences = sequences < rows.size();
            return new Key(
                    graphRows(rows.size()), roundUpToPower(splits), sharesSequences, lastLayer);
        }

        /** Returns the number of block table entries of a row. */
        int tableStride() {
            return splits * SPLIT_BLOCKS;
        }

        /**
         * Returns the size of the inputs in bytes. The layout is: the sampling parameters of each
         * row; int32 arrays with the token, the index into {@link Decoder#sampled} (-1 if no token
         * is sampled), the position and the first split of each row; the block table.
         */
        int inputBytes() {
            return tokensOffset() + (4 + tableStride()) * rows * Integer.BYTES;
        }

        int tokensOffset() {
            return rows * DecoderKernels.SAMPLING_BYTES;
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
            int resultBytes = LISTS + DecoderKernels.MAX_ROWS * LIST_BYTES;
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
     * Allocates buffers. Graphs are captured later.
     *
     * @param gpu the kernels; must be closed after this decoder
     * @param attention the tables of the rotary embedding
     * @param maxLength the maximum number of tokens of a sequence
     * @param batchInvariant whether a sequence gets the same bits in steps of any number of rows
     */
    Decoder(
            ModelConfig config,
            ProcessGroup group,
            ModelWeights weights,
            KvCache cache,
            ModelKernels gpu,
            Attention attention,
            int maxLength,
            boolean batchInvariant) {
        kernels = gpu.kernels();
        wideMatmul = kernels.wideMatmul();
        currentStreams = gpu.currentStreams();
        this.config = config;
        this.group = group;
        this.weights = weights;
        this.cache = cache;
        this.attention = attention;
        this.gpu = gpu;
        this.batchInvariant = batchInvariant;
        int ranks = group.worldSize();
        int most = DecoderKernels.MAX_ROWS;
        boolean fits =
                ranks == 1 || FusedOps.isFused(config.type(), most, config.hiddenSize(), group);
        maxRows = fits && !batchInvariant ? most : DecoderKernels.MATMUL_ROWS;
        queryHeads = config.heads() / ranks;
        kvHeads = ModelWeights.kvHeads(config, ranks);
        inner = config.intermediateSize() / ranks;
        int attentionSize = queryHeads * config.headSize();
        chain = ranks > 1 ? null : kernels.chain(config.hiddenSize(), attentionSize, inner);
        tokens = ModelWeights.vocabularyPart(config, ranks);
        int maxSplits = roundUpToPower(splits(maxLength));
        boolean done = false;
        try {
            manager = keep(NDManager.newBaseManager(group.device()));
            int head = config.headSize();
            for (int i = 0; i < residuals.length; i++) {
                residuals[i] = rows(config.hiddenSize());
            }
            zeros = rows(config.hiddenSize());
            norm = rows(config.hiddenSize());
            qkv = rows((queryHeads + 2 * kvHeads) * head);
            attended = rows(queryHeads * head);
            gateUp = rows(2 * inner);
            activated = rows(inner);
            int deepest = Math.max(Math.max(config.hiddenSize(), inner), queryHeads * head);
            e4m3Rows = Torch.empty(manager, new Shape(maxRows, deepest), ScalarType.UINT8);
            e4m3Scales = Torch.empty(manager, new Shape(maxRows), ScalarType.FLOAT32);
            logits = rows(ranks * tokens);
            edited = manager.create(new Shape(maxRows, editedStride()));
            int splitSize = queryHeads * (head + DecoderKernels.CHUNK_EXTRA);
            // The last split of each sequence may be filled in part.
            splitCapacity = Math.max(maxSplits, cache.slots() / DecoderKernels.CHUNK + maxRows);
            splits = manager.zeros(new Shape(splitCapacity, splitSize));
            counters = manager.zeros(new Shape(maxRows, kvHeads + 1), DataType.INT32);
            chainArrivals = manager.zeros(new Shape(1), DataType.INT32);
            Key largest = new Key(maxRows, maxSplits, true, false);
            inputs = manager.zeros(new Shape(largest.inputBytes()), DataType.UINT8);
            argMaxParts =
                    manager.zeros(
                            new Shape(
                                    maxRows, DecoderKernels.TOP_BLOCKS, DecoderKernels.TOP_FLOATS));
            argMaxes = manager.zeros(new Shape(ranks * maxRows, DecoderKernels.TOP_FLOATS));
            sampled =
                    manager.zeros(new Shape(cache.slots() / KvCache.BLOCK_TOKENS), DataType.INT32);
            clear(zeros);
            CudaDevice device = gpu.device();
            stream = keep(CudaStream.create(device));
            before = keep(CudaEvent.create(device));
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

    private void clear(NDArray array) {
        try (NDArray zero = manager.create(0f)) {
            Torch.copy(array, zero.broadcast(array.getShape()));
        }
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
     * ranks call this at the same time. The GPU may still be computing when this returns.
     *
     * @return the sampled tokens of the chunks that need logits
     */
    Logits decode(List<TokenBatch.Chunk> chunks) {
        List<Row> rows = new ArrayList<>();
        for (TokenBatch.Chunk chunk : chunks) {
            for (int i = 0; i < chunk.tokens().length; i++) {
                rows.add(new Row(chunk, i));
            }
        }
        return Logits.concat(steps(rows).stream().map(step -> (Logits) step(step, null)).toList());
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
     * @param chunks the last chunks of the prompts
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
            parts.add(step(step, new PrefillRows(residual, own)));
            first += step.size();
        }
        before.record(stream);
        currentStreams.get().waitEvent(before); // It may reuse the memory of the residual stream.
        return Logits.concat(parts);
    }

    /** Rows of a residual stream, -1 for those of other ranks. */
    private record PrefillRows(NDArray residual, long[] rows) {}

    /** Writes the residual stream before the last layer: zeros for rows of other ranks. */
    private void write(PrefillRows from, int rows) {
        long rowBytes = (long) config.hiddenSize() * config.type().itemSize();
        long to = Torch.dataPointer(residuals[0]);
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
     * Launches a step.
     *
     * @param prefill the residual stream before the last layer, if only that is computed; otherwise
     *     null
     */
    private Results step(List<Row> rows, PrefillRows prefill) {
        Key key = Key.of(rows, prefill != null);
        HostBuffers buffers = hostBuffers[nextBuffers];
        buffers.await();
        nextBuffers = 1 - nextBuffers;
        long[] edits = writeInputs(buffers, key, rows);
        before.record(currentStreams.get());
        List<Work> works = new ArrayList<>();
        CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
        try {
            stream.waitEvent(before);
            stream.copyAsync(Torch.dataPointer(inputs), buffers.inputs.address(), key.inputBytes());
            CudaGraph graph = graphs.get(key);
            if (graph == null) {
                if (isLarge(key.rows)) {
                    record(key); // cuBLASLt may load kernels. The graph computes the same again.
                }
                graph = CudaGraph.capture(stream, () -> record(key));
                graphs.put(key, graph);
            }
            if (prefill != null) {
                write(prefill, key.rows); // After the kernels were loaded, which overwrite it.
            }
            boolean samples = rows.stream().anyMatch(row -> !row.sampling().isPlain());
            boolean gathers = (keepsLogits || samples) && group.worldSize() > 1;
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
                works.add(gather(argMaxes, group.worldSize() * key.rows));
            }
            kernels.sample(stream, sampling(buffers, key), group.worldSize(), key.rows);
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

    /** Gathers by all-reduce: each rank has zeros where other ranks have values. */
    private Work gather(NDArray array, int rows) {
        try (NDArray first = first(array, rows)) {
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
            write(used ? rows.get(i).sampling() : SamplingParameters.GREEDY, used ? edits[i] : 0);
        }
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
     * Writes the allowed tokens of a row behind its entries.
     *
     * @param address the address of the entries in the memory
     * @param words the ints with a bit for each token
     */
    static void writeAllowed(NativeMemory memory, long address, LogitEdits edits, int words) {
        int bytes = words * Integer.BYTES;
        ByteBuffer bits = ByteBuffer.allocate(bytes).order(ByteOrder.nativeOrder());
        bits.asIntBuffer().put(Arrays.copyOf(edits.allowed().get(), words));
        long entries = (long) edits.entries().length * Integer.BYTES;
        int offset = Math.toIntExact(address + entries - memory.address());
        new AtomicBuffer(memory, 0, offset + bytes).putBytes(offset, bits.array(), bytes);
    }

    /** Returns the bytes of the edits of a row, and of its bits of allowed tokens behind them. */
    private int editBytes(LogitEdits edits) {
        if (edits == null) {
            return 0;
        }
        int allowed = edits.allowed() == null ? 0 : allowedWords() * Integer.BYTES;
        // Some bytes more even if there is nothing to edit yet: the address says that there is.
        return (edits.entries().length + 1) * Integer.BYTES + allowed;
    }

    private int allowedWords() {
        return (config.vocabularySize() + Integer.SIZE - 1) / Integer.SIZE;
    }

    private long editedStride() {
        return (config.vocabularySize() + 3) / 4 * 4; // Rows begin at multiples of 16 bytes.
    }

    private void write(SamplingParameters sampling, long editsAddress) {
        // Clamped, because a float of 0 or infinity would make probabilities NaN.
        double requested = LOG2_E / sampling.temperature();
        double scale = Math.max(Float.MIN_NORMAL, Math.min(Float.MAX_VALUE, requested));
        nextInputs.putDouble(sampling.temperature() == 0 ? 0 : scale);
        nextInputs.putDouble(sampling.topP());
        nextInputs.putLong(sampling.random());
        nextInputs.putLong(sampling.topK());
        nextInputs.putDouble(sampling.minP());
        LogitEdits edits = sampling.edits();
        int ints = edits == null ? 0 : edits.entries().length;
        boolean allowsSome = edits != null && edits.allowed() != null;
        nextInputs.putLong(editsAddress);
        nextInputs.putLong(allowsSome ? editsAddress + ints * Integer.BYTES : 0);
        nextInputs.putInt(ints / LogitEdits.ENTRY);
        nextInputs.putInt(sampling.given());
        nextInputs.putInt(sampling.topLogProbabilities());
        nextInputs.putFloat(edits == null ? 1 : edits.repetitionPenalty());
        nextInputs.putFloat(edits == null ? 0 : edits.frequencyPenalty());
        nextInputs.putFloat(edits == null ? 0 : edits.presencePenalty());
    }

    private DecoderKernels.Sampling sampling(HostBuffers buffers, Key key) {
        return new DecoderKernels.Sampling(
                buffers.results.address(),
                Torch.dataPointer(argMaxes),
                Torch.dataPointer(sampled),
                sampledIndices(key),
                Torch.dataPointer(inputs),
                Torch.dataPointer(logits),
                config.vocabularySize(),
                logits.getShape().get(1),
                Torch.dataPointer(inputs) + key.tokensOffset(),
                buffers.results.address() + LISTS,
                Torch.dataPointer(edited),
                editedStride());
    }

    /** Launches the kernels of a step, mostly during graph capture. */
    private void record(Key key) {
        links.clear(); // An earlier recording may have failed.
        int rows = key.rows;
        int hidden = config.hiddenSize();
        long sampledIndices = sampledIndices(key);
        long positions = sampledIndices + (long) rows * Integer.BYTES;
        long firstSplits = positions + (long) rows * Integer.BYTES;
        long table = firstSplits + (long) rows * Integer.BYTES;
        int firstToken = tokens * group.rank();
        int firstLayer = key.lastLayer ? config.layers() - 1 : 0;
        if (!key.lastLayer) { // Otherwise step() writes the residual.
            kernels.embed(
                    stream,
                    rows,
                    Torch.dataPointer(residuals[0]),
                    Torch.dataPointer(inputs) + key.tokensOffset(),
                    sampledIndices,
                    Torch.dataPointer(sampled),
                    Torch.dataPointer(weights.embedding()),
                    firstToken,
                    tokens,
                    hidden);
        }
        Residual residual = new Residual(rows);
        int attentionSize = queryHeads * config.headSize();
        int qkvSize = attentionSize + 2 * kvHeads * config.headSize();
        for (int i = firstLayer; i < config.layers(); i++) {
            ModelWeights.Layer layer = weights.layer(i);
            residual.multiply(
                    false, qkv, 0, layer.attentionNorm(), layer.queriesKeysValues(), qkvSize);
            launchChain(rows);
            gpu.normHeads(stream, layer, rows, qkv);
            kernels.attend(
                    stream,
                    attention(i, positions, firstSplits, table),
                    key.sharesSequences,
                    !isLarge(rows),
                    isChained(rows),
                    rows,
                    kvHeads,
                    key.splits,
                    key.tableStride());
            multiplyToPartial(residual, attended, layer.attentionOut(), attentionSize);
            residual.multiply(true, activated, 0, layer.mlpNorm(), layer.mlp().gateUp(), inner);
            multiplyToPartial(residual, activated, layer.mlp().down(), inner);
        }
        residual.multiply(false, logits, firstToken, weights.norm(), weights.output(), tokens);
        launchChain(rows);
        long ownLogits = Torch.dataPointer(logits) + (long) firstToken * config.type().itemSize();
        long allTokens = logits.getShape().get(1);
        kernels.top(
                stream,
                rows,
                Torch.dataPointer(argMaxes),
                ownLogits,
                Torch.dataPointer(argMaxParts),
                argMaxCounters(),
                firstToken,
                Math.max(0, Math.min(tokens, config.vocabularySize() - firstToken)),
                allTokens,
                group.rank(),
                group.worldSize());
    }

    private DecoderKernels.Attention attention(
            int layer, long positions, long firstSplits, long table) {
        return new DecoderKernels.Attention(
                Torch.dataPointer(attended),
                Torch.dataPointer(qkv),
                cache.addresses(layer),
                positions,
                table,
                Torch.dataPointer(attention.tables(layer).cosines()),
                Torch.dataPointer(attention.tables(layer).sines()),
                firstSplits,
                Torch.dataPointer(splits),
                Torch.dataPointer(counters),
                config.layer(layer).attention().window());
    }

    /**
     * Computes this rank's partial sum, which is added to the residual stream next. An e4m3 product
     * by cuBLASLt is left unscaled; {@code residual.scales} then has its scales.
     */
    private void multiplyToPartial(
            Residual residual, NDArray x, ModelWeights.Linear linear, int depth) {
        // The bias is added once by all ranks together.
        ModelWeights.Linear own = group.rank() == 0 ? linear : linear.withBias(null);
        int rows = residual.rows;
        int hidden = config.hiddenSize();
        boolean usesCublas = isLarge(rows) && !usesWideMatmul(rows, hidden, hidden);
        if (!usesCublas || own.quantized() == null || own.bias() != null) {
            residual.scales = null;
            multiply(false, rows, residual.partial, 0, x, own, hidden, depth, null);
            return;
        }
        long to = Torch.dataPointer(residual.partial);
        residual.scales = gpu.multiplyUnscaled(e4m3(x, rows, depth), own.quantized(), to, hidden);
    }

    /** Returns whether a step of this number of rows uses the {@link MatmulChain}. */
    private boolean isChained(int rows) {
        return chain != null && !isLarge(rows) && chain.isFor(rows);
    }

    /** Launches the chain's matmuls. No-op if these rows are not chained. */
    private void launchChain(int rows) {
        if (isChained(rows)) {
            chain.launch(stream, rows, Torch.dataPointer(chainArrivals), links);
            links.clear();
        }
    }

    /**
     * Returns whether {@link WideMatmul} or cuBLASLt multiplies in a step of this number of rows,
     * instead of {@link DecoderKernels#matmul}.
     */
    private boolean isLarge(int rows) {
        // Weights of 4 bits are read again for each 32 rows, which takes less time than to convert.
        Quantization quantization = weights.quantization();
        boolean own = batchInvariant || quantization == Quantization.INT4;
        return !own && rows > quantization.gpuRows(false);
    }

    /**
     * Multiplies rows by a weight and adds its bias; if the rows are chained, only adds the matmul
     * to the chain. Writes {@code width} columns of {@code out} from {@code column} on; with a bias
     * they must be all of its columns.
     *
     * @param norm how to normalise x first, in a chain; null for none
     */
    private void multiply(
            boolean gated,
            int rows,
            NDArray out,
            int column,
            NDArray x,
            ModelWeights.Linear linear,
            int width,
            int depth,
            MatmulChain.Norm norm) {
        if (isLarge(rows)) {
            multiplyLarge(gated, rows, out, column, x, linear, width, depth);
            return;
        }
        long to = Torch.dataPointer(out) + (long) column * config.type().itemSize();
        long from = Torch.dataPointer(x);
        QuantizeKernels.Matrix matrix = matrix(linear, width, depth);
        long weight = matrix.elements();
        long scales = matrix.scales();
        long bias = bias(linear);
        int stride = (int) out.getShape().get(1);
        if (isChained(rows)) {
            links.add(
                    new MatmulChain.Link(
                            gated, to, from, weight, scales, bias, width, depth, stride, norm));
            return;
        }
        kernels.matmul(stream, gated, rows, to, from, weight, scales, bias, width, depth, stride);
    }

    /** Returns {@code width} rows of a weight. */
    private static QuantizeKernels.Matrix matrix(
            ModelWeights.Linear linear, long width, long depth) {
        QuantizedMatrix quantized = linear.quantized();
        return quantized == null
                ? new QuantizeKernels.Matrix(
                        16, Torch.dataPointer(linear.weight()), 0, width, depth)
                : new QuantizeKernels.Matrix(
                        quantized.quantization().gpuBits(),
                        quantized.weights(),
                        quantized.scales(),
                        width,
                        depth);
    }

    private static long bias(ModelWeights.Linear linear) {
        return linear.bias() == null ? 0 : Torch.dataPointer(linear.bias());
    }

    /** As {@link #multiply}, for steps that are {@linkplain #isLarge large}. */
    private void multiplyLarge(
            boolean gated,
            int rows,
            NDArray out,
            int column,
            NDArray x,
            ModelWeights.Linear linear,
            int width,
            int depth) {
        QuantizedMatrix quantized = linear.quantized();
        long to = Torch.dataPointer(out) + (long) column * config.type().itemSize();
        int stride = (int) out.getShape().get(1);
        if (usesWideMatmul(rows, width, stride)) {
            QuantizeKernels.Matrix left =
                    quantized == null
                            ? new QuantizeKernels.Matrix(16, Torch.dataPointer(x), 0, rows, depth)
                            : e4m3(x, rows, depth);
            QuantizeKernels.Matrix right = matrix(linear, gated ? 2L * width : width, depth);
            wideMatmul.launch(stream, gated, left, right, bias(linear), to, stride);
            if (gated && quantized != null) {
                gpu.quantize().quantize(to, e4m3Rows(rows, width));
            }
            return;
        }
        if (gated) {
            multiplyLarge(false, rows, gateUp, 0, x, linear, 2 * width, depth);
            if (quantized == null) {
                kernels.activate(stream, to, Torch.dataPointer(gateUp), rows, width);
            } else {
                gpu.quantize().activate(Torch.dataPointer(gateUp), e4m3Rows(rows, width));
            }
            return;
        }
        if (quantized == null) {
            gpu.product(config.type(), rows, width, depth, stride, false)
                    .run(to, Torch.dataPointer(x), Torch.dataPointer(linear.weight()), null);
        } else {
            gpu.multiply(e4m3(x, rows, depth), quantized, to, stride, false);
        }
        if (linear.bias() != null) {
            try (NDArray product = first(out, rows)) {
                product.addi(linear.bias());
            }
        }
    }

    private boolean usesWideMatmul(int rows, int width, int stride) {
        return wideMatmul != null && wideMatmul.isFor(rows, width, stride);
    }

    /**
     * Returns x in e4m3. If x is {@code e4m3Rows} or {@code activated}, its rows are there already.
     */
    private QuantizeKernels.Matrix e4m3(NDArray x, int rows, int depth) {
        QuantizeKernels.Matrix to = e4m3Rows(rows, depth);
        if (x != e4m3Rows && x != activated) {
            gpu.quantize().quantize(Torch.dataPointer(x), to);
        }
        return to;
    }

    /** Returns the buffer for rows in e4m3. */
    private QuantizeKernels.Matrix e4m3Rows(int rows, int depth) {
        return new QuantizeKernels.Matrix(
                8, Torch.dataPointer(e4m3Rows), Torch.dataPointer(e4m3Scales), rows, depth);
    }

    /** The residual stream, and the partial sum not yet added to it. */
    private final class Residual {

        final int rows;
        NDArray partial; // this rank's partial sum
        Product.Scales scales; // of the partial's rows and columns, not yet applied; or null
        private final boolean normsInChain;
        private NDArray sum; // the residual stream; 0 at first
        private NDArray next; // the buffer of the next result
        private NDArray unused; // the third buffer, until it is used

        Residual(int rows) {
            this.rows = rows;
            normsInChain = isChained(rows);
            partial = first(residuals[0], rows);
            sum = first(zeros, rows);
            next = first(residuals[1], rows);
            unused = first(residuals[2], rows);
        }

        /**
         * Adds all ranks' partial sums to the residual stream, and multiplies the RMSNorm of the
         * sum by a weight.
         */
        void multiply(
                boolean gated,
                NDArray out,
                int column,
                NDArray normWeight,
                ModelWeights.Linear linear,
                int width) {
            MatmulChain.Norm inChain = null;
            NDArray x;
            NDArray oldSum = sum;
            if (normsInChain) {
                x = partial;
                inChain =
                        new MatmulChain.Norm(
                                Torch.dataPointer(normWeight),
                                Torch.dataPointer(sum),
                                Torch.dataPointer(next),
                                (float) config.epsilon());
                sum = next;
            } else {
                x = addAndNorm(normWeight);
                sum = partial;
                partial = next;
            }
            next = unused == null ? oldSum : unused; // The first sum, zeros, is not overwritten.
            unused = null;
            Decoder.this.multiply(
                    gated, rows, out, column, x, linear, width, config.hiddenSize(), inChain);
        }

        /**
         * Writes the sum in place of the partial sum, and returns its norm, in e4m3 if a product of
         * e4m3 matrices is next.
         */
        private NDArray addAndNorm(NDArray weight) {
            NDArray norm = Decoder.this.norm;
            int hidden = config.hiddenSize();
            float epsilon = (float) config.epsilon();
            if (group.worldSize() > 1) {
                NormedResidual to = new NormedResidual(partial, first(norm, rows));
                FusedOps.allReduceRmsNorm(to, partial, sum, weight, epsilon, group);
                return norm;
            }
            long address = Torch.dataPointer(partial);
            RmsNormKernels.Rows of =
                    new RmsNormKernels.Rows(
                            address,
                            Torch.dataPointer(norm),
                            address,
                            Torch.dataPointer(sum),
                            Torch.dataPointer(weight),
                            config.type(),
                            rows,
                            hidden);
            if (weights.quantization() == Quantization.NONE || !isLarge(rows)) {
                gpu.norms().add(of, epsilon);
                return norm;
            }
            gpu.quantize().norm(of, scales, epsilon, e4m3Rows(rows, hidden));
            return e4m3Rows;
        }
    }

    private static NDArray first(NDArray array, int rows) {
        return array.get(new NDIndex().addSliceDim(0, rows));
    }

    private long sampledIndices(Key key) {
        return Torch.dataPointer(inputs) + key.tokensOffset() + (long) key.rows * Integer.BYTES;
    }

    private long argMaxCounters() {
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

        Results(HostBuffers buffers, List<Row> of, List<Work> works) {
            this.buffers = buffers;
            this.works = works;
            for (int i = 0; i < of.size(); i++) {
                if (of.get(i).needsLogits()) {
                    rows.add(i);
                    sampling.add(of.get(i).sampling());
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
            ByteBuffer buffer = results(0, LISTS);
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
            ByteBuffer list = results(LISTS + row * LIST_BYTES, LIST_BYTES);
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
