/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.model;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.NormedResidual;
import org.djlx.fusedops.internal.LlamaKernels;
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
 * One rank's part of decoding on a GPU: sequences that get a token each, or a few, by kernels that
 * are recorded into a CUDA graph, so that a step is one launch. There is a graph for every power of
 * two of tokens and of chunks of the longest sequence, made when it is needed first, of all ranks
 * alike. Tokens are chosen on the GPU, by all ranks alike, and kept there, at a place of each
 * sequence, so that the next step need not wait for the host to know them. So is the one behind a
 * long prompt, whose last token goes through the last layer here.
 *
 * <p>What a sequence gets has the same bits whatever others there are. Sums are in float32; what
 * goes from kernel to kernel is rounded to the element type.
 *
 * <p>To be used by the rank's thread, with gradients off.
 */
final class Decoder implements AutoCloseable {

    private static final double LOG2_E = 1 / Math.log(2);

    // For what the GPU has done already to be noticed.
    private static final Duration PATIENCE = Duration.ofMinutes(1);
    private static final int CHUNK_BLOCKS = LlamaKernels.CHUNK / KvCache.BLOCK_TOKENS;
    private static final int BEST_BYTES = LlamaKernels.BEST_FLOATS * Float.BYTES;

    private final LlamaConfig config;
    private final ProcessGroup group;
    private final LlamaWeights weights;
    private final KvCache cache;
    private final NDManager manager;
    private final int queryHeads;
    private final int keyHeads;
    private final int inner;
    private final int tokens; // whose scores this rank computes
    private final int roomForChunks;
    private final NDArray cosines;
    private final NDArray sines;

    // Of the most rows; graphs use the first ones.
    private final NDArray[] residuals = new NDArray[3];
    private final NDArray zeros;
    private final NDArray norm;
    private final NDArray qkv;
    private final NDArray attended;
    private final NDArray activated;
    private final NDArray chunks;
    private final NDArray ended; // counts of the attention and the best scores, 0 between kernels
    private final NDArray inputs;
    private final NDArray parts;
    private final NDArray logits;
    private final NDArray bestOfRanks; // a row of each rank, for each row
    private final NDArray chosen; // of each sequence, at its first block of the cache

    private final List<AutoCloseable> resources = new ArrayList<>(); // closed backwards
    private final CudaStream stream;
    private final CudaEvent before;
    private final LlamaKernels kernels;
    private final CurrentStreams currentStreams;
    private final ByteBuffer nextInputs;
    private final Map<Key, CudaGraph> graphs = new HashMap<>();

    // Steps take turns: one is prepared while the one before runs.
    private final Turn[] turns = new Turn[2];
    private int nextTurn;

    /** A token of a sequence, whose scores may be wanted. */
    private record Row(TokenBatch.Chunk chunk, int index) {

        int token() {
            return chunk.tokens()[index];
        }

        int position() {
            return chunk.start() + index;
        }

        /** Returns where what is chosen for its sequence is kept. */
        int place() {
            return chunk.rows()[0] / KvCache.BLOCK_TOKENS;
        }

        boolean isWanted() {
            return chunk.wanted() && index == chunk.tokens().length - 1;
        }

        int chunks() {
            return Decoder.chunks(position() + 1);
        }
    }

    /**
     * What graphs differ in: how many rows, how many chunks of each, whether rows are of the same
     * sequence, and whether all layers are computed or the last one alone.
     */
    private record Key(int rows, int chunks, boolean several, boolean lastLayer) {

        static Key of(List<Row> rows, boolean lastLayer) {
            int chunks = rows.stream().mapToInt(Row::chunks).max().orElseThrow();
            boolean several =
                    !lastLayer && rows.stream().anyMatch(row -> row.chunk.tokens().length > 1);
            return new Key(powerFrom(rows.size()), powerFrom(chunks), several, lastLayer);
        }

        int tableStride() {
            return chunks * CHUNK_BLOCKS;
        }

        /**
         * How what follows is chosen, the tokens, their sequences' places, -1 where what follows is
         * not wanted, their positions, where their chunks begin, and the table.
         */
        int inputBytes() {
            return tokensAt() + (4 + tableStride()) * rows * Integer.BYTES;
        }

        int tokensAt() {
            return rows * LlamaKernels.DRAW_BYTES;
        }
    }

    /** What a step and the host tell each other. */
    private final class Turn {

        final NativeMemory inputs;
        final NativeMemory best;
        final CudaEvent done;
        Results results; // the last ones

        Turn(CudaDevice device, int inputBytes) {
            inputs = keep(CudaMemory.allocatePinned(device, inputBytes));
            best = keep(CudaMemory.allocatePinned(device, LlamaKernels.MAX_ROWS * BEST_BYTES));
            done = keep(CudaEvent.create(device));
        }

        void await() {
            if (results != null) {
                results.await();
            }
        }
    }

    /**
     * Takes memory and makes what graphs need.
     *
     * @param gpu has the kernels, and outlives this
     * @param attention has the tables of rotations
     * @param maxLength the most tokens of a sequence
     */
    Decoder(
            LlamaConfig config,
            ProcessGroup group,
            LlamaWeights weights,
            KvCache cache,
            LlamaGpu gpu,
            Attention attention,
            int maxLength) {
        kernels = gpu.kernels();
        currentStreams = gpu.currentStreams();
        this.config = config;
        this.group = group;
        this.weights = weights;
        this.cache = cache;
        cosines = attention.cosines();
        sines = attention.sines();
        int ranks = group.worldSize();
        queryHeads = config.heads() / ranks;
        keyHeads = LlamaWeights.keyHeads(config, ranks);
        inner = config.intermediateSize() / ranks;
        tokens = LlamaWeights.tokens(config, ranks);
        int mostChunks = powerFrom(chunks(maxLength));
        boolean done = false;
        try {
            manager = keep(NDManager.newBaseManager(group.device()));
            int head = config.headSize();
            for (int i = 0; i < residuals.length; i++) {
                residuals[i] = rows(config.hiddenSize());
            }
            zeros = rows(config.hiddenSize());
            norm = rows(config.hiddenSize());
            qkv = rows((queryHeads + 2 * keyHeads) * head);
            attended = rows(queryHeads * head);
            activated = rows(inner);
            logits = rows(ranks * tokens);
            int most = LlamaKernels.MAX_ROWS;
            int chunk = queryHeads * (head + LlamaKernels.CHUNK_EXTRA);
            // Each sequence may fill its last chunk in part only.
            roomForChunks = Math.max(mostChunks, cache.rows() / LlamaKernels.CHUNK + most);
            chunks = manager.zeros(new Shape(roomForChunks, chunk));
            ended = manager.zeros(new Shape(most, keyHeads + 1), DataType.INT32);
            Key largest = new Key(most, mostChunks, true, false);
            inputs = manager.zeros(new Shape(largest.inputBytes()), DataType.UINT8);
            parts =
                    manager.zeros(
                            new Shape(most, LlamaKernels.BEST_BLOCKS, LlamaKernels.BEST_FLOATS));
            bestOfRanks = manager.zeros(new Shape(ranks * most, LlamaKernels.BEST_FLOATS));
            chosen = manager.zeros(new Shape(cache.rows() / KvCache.BLOCK_TOKENS), DataType.INT32);
            clear(zeros);
            CudaDevice device = gpu.device();
            stream = keep(CudaStream.create(device));
            before = keep(CudaEvent.create(device));
            turns[0] = new Turn(device, largest.inputBytes());
            turns[1] = new Turn(device, largest.inputBytes());
            nextInputs = ByteBuffer.allocate(largest.inputBytes()).order(ByteOrder.nativeOrder());
            device.synchronize();
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
        return Torch.empty(manager, new Shape(LlamaKernels.MAX_ROWS, size), config.type());
    }

    private void clear(NDArray array) {
        try (NDArray zero = manager.create(0f)) {
            Torch.copy(array, zero.broadcast(array.getShape()));
        }
    }

    private static int chunks(int length) {
        return (length + LlamaKernels.CHUNK - 1) / LlamaKernels.CHUNK;
    }

    private static int powerFrom(int count) {
        return Integer.highestOneBit(2 * count - 1);
    }

    /**
     * Runs tokens of sequences through the model, and writes their keys and values to the cache.
     * All ranks do, at the same time. When this returns, the GPU may still do it.
     *
     * @param sequences few tokens each, whose rows come in blocks of {@link KvCache#BLOCK_TOKENS}
     * @param all whether all scores are to be had, and not only the best
     * @param to the manager of what is copied for the result
     * @return the scores of what follows those that want them; {@link Logits#all} can be called
     *     until the next call of this method
     */
    Logits decode(List<TokenBatch.Chunk> sequences, boolean all, NDManager to) {
        List<Logits> parts = new ArrayList<>();
        List<Row> rows = new ArrayList<>();
        int room = roomForChunks;
        for (TokenBatch.Chunk sequence : sequences) {
            for (int i = 0; i < sequence.tokens().length; i++) {
                Row row = new Row(sequence, i);
                if (rows.size() == LlamaKernels.MAX_ROWS || row.chunks() > room) {
                    Results part = step(rows, false, all);
                    if (all) {
                        part.copy(to);
                    }
                    parts.add(part);
                    rows.clear();
                    room = roomForChunks;
                }
                rows.add(row);
                room -= row.chunks();
            }
        }
        parts.add(step(rows, false, all));
        return Logits.joined(parts);
    }

    /**
     * Computes the last layer for the last token of a prompt, and chooses what follows it. All
     * ranks do, at the same time, when what this was called for before is {@linkplain #await done}.
     * When this returns, the GPU may still do it.
     *
     * @param chunk the prompt's last tokens, which have gone through the layers before
     * @param residual what they have become, of some or all of the tokens; on the current stream
     * @param row the last token's row, on one rank; -1 on the others
     * @param all whether all scores are to be had, and not only the best
     * @param to the manager of what is copied for the result
     * @return the scores of what follows
     */
    Logits finish(TokenBatch.Chunk chunk, NDArray residual, long row, boolean all, NDManager to) {
        CudaStream current = currentStreams.get();
        long rowBytes = (long) config.hiddenSize() * config.type().itemSize();
        long partial = Torch.dataPointer(residuals[0]);
        if (row >= 0) {
            current.copyAsync(partial, Torch.dataPointer(residual) + row * rowBytes, rowBytes);
        } else {
            current.memsetAsync(partial, (byte) 0, rowBytes);
        }
        Results results = step(List.of(new Row(chunk, chunk.tokens().length - 1)), true, all);
        if (all) {
            results.copy(to);
        }
        return results;
    }

    /** Waits until all that was begun is done; fails if a rank was missing. */
    void await() {
        turns[nextTurn].await();
        turns[1 - nextTurn].await();
    }

    private Results step(List<Row> rows, boolean lastLayer, boolean all) {
        Key key = Key.of(rows, lastLayer);
        Turn turn = turns[nextTurn];
        turn.await();
        nextTurn = 1 - nextTurn;
        write(turn, key, rows);
        before.record(currentStreams.get());
        List<Work> works = new ArrayList<>();
        CudaStreamGuard guard = Torch.cudaStreamGuard(group.device(), stream.handle());
        try {
            CudaGraph graph = graphs.get(key);
            if (graph == null) {
                graph = CudaGraph.capture(stream, () -> record(key));
                graphs.put(key, graph);
            }
            stream.waitEvent(before);
            stream.copyAsync(Torch.dataPointer(inputs), turn.inputs.address(), key.inputBytes());
            boolean draws = rows.stream().anyMatch(row -> !row.chunk.draw().isBest());
            boolean gathers = (all || draws) && group.worldSize() > 1;
            if (gathers) {
                long rowBytes = logits.getShape().get(1) * config.type().itemSize();
                stream.memsetAsync(Torch.dataPointer(logits), (byte) 0, key.rows * rowBytes);
            }
            graph.launch(stream);
            if (gathers) {
                works.add(gather(logits, key.rows));
            }
            if (group.worldSize() > 1) {
                works.add(gather(bestOfRanks, group.worldSize() * key.rows));
            }
            kernels.choose(stream, choice(turn, key), group.worldSize(), key.rows);
            turn.done.record(stream);
        } finally {
            guard.close();
        }
        turn.results = new Results(turn, rows, works);
        return turn.results;
    }

    /** Puts what ranks have together: where one has another's, there are zeros. */
    private Work gather(NDArray array, int rows) {
        try (NDArray first = first(array, rows)) {
            return group.allReduce(first, ReduceOp.SUM, false);
        }
    }

    /** Writes what the graph reads into memory of the host. */
    private void write(Turn turn, Key key, List<Row> rows) {
        nextInputs.clear();
        for (int i = 0; i < key.rows; i++) {
            write(i < rows.size() ? rows.get(i).chunk.draw() : SamplingParameters.BEST);
        }
        for (int i = 0; i < key.rows; i++) {
            nextInputs.putInt(i < rows.size() ? rows.get(i).token() : -1);
        }
        for (int i = 0; i < key.rows; i++) {
            boolean wanted = i < rows.size() && rows.get(i).isWanted();
            nextInputs.putInt(wanted ? rows.get(i).place() : -1);
        }
        for (int i = 0; i < key.rows; i++) {
            nextInputs.putInt(i < rows.size() ? rows.get(i).position() : -1);
        }
        int chunksBefore = 0;
        for (int i = 0; i < key.rows; i++) {
            nextInputs.putInt(chunksBefore);
            chunksBefore += i < rows.size() ? rows.get(i).chunks() : 0;
        }
        int begin = nextInputs.position();
        int size = KvCache.BLOCK_TOKENS;
        for (int i = 0; i < rows.size(); i++) {
            Row row = rows.get(i);
            nextInputs.position(begin + i * key.tableStride() * Integer.BYTES);
            for (int token = 0; token <= row.position(); token += size) {
                nextInputs.putInt(row.chunk.rows()[token]);
            }
        }
        new AtomicBuffer(turn.inputs, 0, nextInputs.capacity())
                .putBytes(0, nextInputs.array(), key.inputBytes());
    }

    private void write(SamplingParameters draw) {
        // As a float neither 0 nor infinite, which would make weights that are no numbers.
        double asked = LOG2_E / draw.temperature();
        double scale = Math.max(Float.MIN_NORMAL, Math.min(Float.MAX_VALUE, asked));
        nextInputs.putDouble(draw.isBest() ? 0 : scale);
        nextInputs.putDouble(draw.topP());
        nextInputs.putLong(draw.random());
        nextInputs.putLong(draw.topK());
    }

    private LlamaKernels.Choice choice(Turn turn, Key key) {
        return new LlamaKernels.Choice(
                turn.best.address(),
                Torch.dataPointer(bestOfRanks),
                Torch.dataPointer(chosen),
                places(key),
                Torch.dataPointer(inputs),
                Torch.dataPointer(logits),
                config.vocabularySize(),
                logits.getShape().get(1));
    }

    private void record(Key key) {
        int rows = key.rows;
        int hidden = config.hiddenSize();
        long places = places(key);
        long positions = places + (long) rows * Integer.BYTES;
        long firstChunks = positions + (long) rows * Integer.BYTES;
        long table = firstChunks + (long) rows * Integer.BYTES;
        int firstToken = tokens * group.rank();
        Residual residual = new Residual(rows);
        int firstLayer = key.lastLayer ? config.layers() - 1 : 0;
        if (!key.lastLayer) { // Otherwise one rank has the row already, and others have zeros.
            kernels.embed(
                    stream,
                    rows,
                    Torch.dataPointer(residual.partial),
                    Torch.dataPointer(inputs) + key.tokensAt(),
                    places,
                    Torch.dataPointer(chosen),
                    Torch.dataPointer(weights.embedding()),
                    firstToken,
                    tokens,
                    hidden);
        }
        int head = config.headSize();
        int width = (queryHeads + 2 * keyHeads) * head;
        for (int i = firstLayer; i < config.layers(); i++) {
            LlamaWeights.Layer layer = weights.layer(i);
            long queries = Torch.dataPointer(qkv);
            residual.product(
                    false, queries, layer.attentionNorm(), layer.queriesKeysValues(), width, width);
            kernels.attend(
                    stream,
                    attention(i, positions, firstChunks, table),
                    key.several,
                    rows,
                    keyHeads,
                    key.chunks,
                    key.tableStride());
            addend(residual, attended, layer.attentionOut(), queryHeads * head);
            long inside = Torch.dataPointer(activated);
            residual.product(true, inside, layer.mlpNorm(), layer.gateUp(), inner, inner);
            addend(residual, activated, layer.down(), inner);
        }
        long scores = Torch.dataPointer(logits) + (long) firstToken * config.type().itemSize();
        long allTokens = logits.getShape().get(1);
        residual.product(false, scores, weights.norm(), weights.head(), tokens, allTokens);
        kernels.best(
                stream,
                rows,
                Torch.dataPointer(bestOfRanks),
                scores,
                Torch.dataPointer(parts),
                countsOfBest(),
                firstToken,
                Math.max(0, Math.min(tokens, config.vocabularySize() - firstToken)),
                allTokens,
                group.rank(),
                group.worldSize());
    }

    private LlamaKernels.Attention attention(
            int layer, long positions, long firstChunks, long table) {
        return new LlamaKernels.Attention(
                Torch.dataPointer(attended),
                Torch.dataPointer(qkv),
                Torch.dataPointer(cache.keys(layer)),
                Torch.dataPointer(cache.values(layer)),
                positions,
                table,
                Torch.dataPointer(cosines),
                Torch.dataPointer(sines),
                firstChunks,
                Torch.dataPointer(chunks),
                Torch.dataPointer(ended));
    }

    /** Computes this rank's partial of what is added to the residual next. */
    private void addend(Residual residual, NDArray x, NDArray weight, int depth) {
        int hidden = config.hiddenSize();
        kernels.product(
                stream,
                false,
                residual.rows,
                Torch.dataPointer(residual.partial),
                Torch.dataPointer(x),
                Torch.dataPointer(weight),
                hidden,
                depth,
                hidden,
                null);
    }

    /** What each layer adds to twice, 0 at first, and what is to be added. */
    private final class Residual {

        final int rows;
        NDArray partial; // what this rank adds
        private final boolean isNormedByProducts;
        private NDArray sum; // of what was added
        private NDArray next; // for what is computed behind
        private NDArray unused;

        Residual(int rows) {
            this.rows = rows;
            // What one rank adds no other has a part of.
            isNormedByProducts =
                    group.worldSize() == 1 && kernels.canNorm(rows, config.hiddenSize());
            partial = first(residuals[0], rows);
            sum = first(zeros, rows);
            next = first(residuals[1], rows);
            unused = first(residuals[2], rows);
        }

        /** Adds all ranks' partials, and multiplies the sum's norm with a weight. */
        void product(
                boolean gated, long out, NDArray norm, NDArray weight, int width, long stride) {
            LlamaKernels.Norm normed = null;
            NDArray x = Decoder.this.norm;
            NDArray before = sum;
            if (isNormedByProducts) {
                x = partial;
                normed =
                        new LlamaKernels.Norm(
                                Torch.dataPointer(norm),
                                Torch.dataPointer(sum),
                                Torch.dataPointer(next),
                                (float) config.epsilon());
                sum = next;
            } else {
                FusedOps.allReduceRmsNorm(
                        new NormedResidual(partial, first(x, rows)),
                        partial,
                        sum,
                        norm,
                        (float) config.epsilon(),
                        group);
                sum = partial;
                partial = next;
            }
            next = unused == null ? before : unused; // zeros stay what they are
            unused = null;
            kernels.product(
                    stream,
                    gated,
                    rows,
                    out,
                    Torch.dataPointer(x),
                    Torch.dataPointer(weight),
                    width,
                    config.hiddenSize(),
                    stride,
                    normed);
        }
    }

    private static NDArray first(NDArray array, int rows) {
        return array.get(new NDIndex().addSliceDim(0, rows));
    }

    private long places(Key key) {
        return Torch.dataPointer(inputs) + key.tokensAt() + (long) key.rows * Integer.BYTES;
    }

    private long countsOfBest() {
        return Torch.dataPointer(ended) + (long) LlamaKernels.MAX_ROWS * keyHeads * Integer.BYTES;
    }

    /** What a step leaves. */
    private final class Results implements Logits {

        private final Turn turn;
        private final List<Work> works;
        private final List<Integer> rows = new ArrayList<>(); // those that are wanted
        private final List<Boolean> drawn = new ArrayList<>(); // for each of them
        private List<Best> best; // when they are there
        private NDArray scores; // a copy, if there is one

        Results(Turn turn, List<Row> of, List<Work> works) {
            this.turn = turn;
            this.works = works;
            for (int i = 0; i < of.size(); i++) {
                if (of.get(i).isWanted()) {
                    rows.add(i);
                    drawn.add(!of.get(i).chunk.draw().isBest());
                }
            }
        }

        @Override
        public void await() {
            if (best != null) {
                return;
            }
            turn.done.synchronize();
            works.forEach(work -> work.await(PATIENCE)); // Tells of the graph's as well.
            byte[] bytes = new byte[LlamaKernels.MAX_ROWS * BEST_BYTES];
            new AtomicBuffer(turn.best, 0, bytes.length).getBytes(0, bytes);
            ByteBuffer buffer = ByteBuffer.wrap(bytes).order(ByteOrder.nativeOrder());
            best = new ArrayList<>();
            for (int i = 0; i < rows.size(); i++) {
                buffer.position(rows.get(i) * BEST_BYTES);
                double logSum = buffer.getFloat() + Math.log(buffer.getFloat());
                int token = (int) buffer.getFloat();
                best.add(new Best(token, buffer.getFloat(), drawn.get(i), logSum));
            }
        }

        void copy(NDManager to) {
            await();
            if (!rows.isEmpty()) {
                try (NDArray until = first(logits, rows.get(rows.size() - 1) + 1)) {
                    scores = until.duplicate();
                }
                scores.attach(to);
            }
        }

        @Override
        public int count() {
            return rows.size();
        }

        @Override
        public List<Best> best() {
            await();
            return best;
        }

        @Override
        public float[] all(int sequence) {
            await();
            NDArray from = scores == null ? logits : scores;
            NDIndex index =
                    new NDIndex()
                            .addIndices(rows.get(sequence))
                            .addSliceDim(0, config.vocabularySize());
            try (NDArray row = from.get(index);
                    NDArray wide = Torch.cast(row, ScalarType.FLOAT32)) {
                return wide.toFloatArray();
            }
        }
    }

    @Override
    public void close() {
        if (stream != null) {
            stream.synchronize(); // Nobody may have waited for the last step.
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
