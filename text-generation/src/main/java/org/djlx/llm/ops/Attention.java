// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Rope;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.torch.BlockMath;
import org.djlx.nativeops.torch.PackedSequences;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Attention of one rank's heads over the KV cache, with libtorch's operators:
 *
 * <ul>
 *   <li>the first chunk of a prompt attends to itself, not to keys and values that the cache has
 *       rounded: {@link Torch#attention}, unless scores are limited or a window hides some of them;
 *   <li>with kernels, {@link Torch#attentionOfLast} for all others: several first chunks together,
 *       and later chunks, which attend to the cache as well;
 *   <li>otherwise matmuls and softmax.
 * </ul>
 *
 * <p>Grouped-query attention: query heads share a KV head, without a copy of it for each query
 * head.
 */
final class Attention {

    // The matmul path holds the attention scores of at most this many query tokens in memory.
    private static final int QUERY_BLOCK = 512;

    private final ModelConfig config;
    private final KvCache cache;
    private final ModelKernels gpu; // null if the model has no kernels
    private final int queryHeads;
    private final int kvHeads;
    private final int maxLength;
    private final Map<Rope, Tables> tables = new HashMap<>();

    /**
     * The tables of a rotary embedding, of shape (positions, 1, head size / 2), in float32; in
     * metadata, those of the tokens.
     */
    record Tables(NDArray cosines, NDArray sines) {}

    /**
     * Computes the tables of the rotary embedding. Without kernels, {@code gpu} is null, and
     * libtorch applies the rotary embedding.
     */
    Attention(
            ModelConfig config,
            int ranks,
            KvCache cache,
            ModelKernels gpu,
            NDManager manager,
            int maxLength) {
        this.config = config;
        this.cache = cache;
        this.gpu = gpu;
        this.maxLength = maxLength;
        queryHeads = config.heads() / ranks;
        kvHeads = WeightMap.kvHeads(config, ranks);
        for (LayerConfig layer : config.layerConfigs()) {
            tables.computeIfAbsent(
                    layer.attention().rope(), rope -> tables(rope, manager, maxLength));
        }
    }

    private Tables tables(Rope rope, NDManager manager, int maxLength) {
        int half = config.headSize() / 2;
        float[] cosines = new float[maxLength * half];
        float[] sines = new float[maxLength * half];
        rope.fillTables(config.headSize(), maxLength, cosines, sines);
        Shape shape = new Shape(maxLength, 1, half);
        return new Tables(manager.create(cosines, shape), manager.create(sines, shape));
    }

    /** Returns the maximum number of tokens of a sequence. */
    int maxLength() {
        return maxLength;
    }

    /** Returns the tables of a layer's rotary embedding. */
    Tables tables(int layer) {
        return tables.get(config.layer(layer).attention().rope());
    }

    /**
     * The attention metadata of a forward pass, shared by all layers.
     *
     * @param tokens the number of tokens, including padding
     * @param prefill the input of prefill kernels; null if the model has no kernels
     * @param packed the chunks of a prefill with kernels; null without
     * @param tables the rotary embeddings at the tokens' positions; null with kernels
     * @param slots the KV cache slot of each token; null with kernels
     * @param decodes the sequences with one token, computed together; null if there are none
     * @param prefills the sequences with more than one token, computed one by one; null with
     *     kernels
     */
    record Metadata(
            int tokens,
            ModelKernels.PrefillInputs prefill,
            List<Packed> packed,
            Map<Rope, Tables> tables,
            NDArray slots,
            Span decodes,
            List<Span> prefills) {}

    /**
     * Query tokens that are computed in one call, without kernels.
     *
     * @param sequences the number of sequences; more than one have one token each
     * @param length the length of the longest sequence
     * @param isFirst whether this is the first chunk of a prompt, which attends to itself only
     * @param slots the cache slots that each sequence attends to, (sequences · length); shorter
     *     sequences are padded. Null for a first chunk that attends to itself only
     * @param masks masks added to the scores by window, of shape (sequences, 1, 1, tokens, length):
     *     0, or -infinity where a token must not attend. Null if {@code slots} is
     */
    private record Span(
            int first,
            int tokens,
            int sequences,
            int length,
            boolean isFirst,
            NDArray slots,
            Map<Integer, NDArray> masks) {}

    /**
     * Adjacent chunks of a prefill with kernels, whose attention is computed in one call.
     *
     * @param first the first row
     * @param sequences the queries and keys of each chunk
     * @param slots the cache slots of all keys; null for first chunks, which attend to themselves
     *     only
     */
    record Packed(int first, int rows, PackedSequences sequences, NDArray slots) {}

    /**
     * Returns the metadata for prefill kernels. Padding belongs to the last chunk, and gets any
     * slot of its sequence: causal attention hides it from the chunk's own tokens.
     *
     * @param chunks first chunks of prompts, then later ones. Those are divided, so that the copies
     *     of keys of one call are limited by the maximum length
     */
    Metadata metadata(
            NDManager manager, List<TokenBatch.Chunk> chunks, ModelKernels.PrefillInputs prefill) {
        List<Packed> packed = new ArrayList<>();
        int begin = 0;
        int row = 0;
        while (begin < chunks.size()) {
            boolean isFirst = chunks.get(begin).start() == 0;
            int end = begin;
            int keys = 0;
            do {
                keys += chunks.get(end++).length();
            } while (end < chunks.size()
                    && isFirst == (chunks.get(end).start() == 0)
                    && (isFirst || keys + chunks.get(end).length() <= maxLength));
            int padding = end == chunks.size() ? prefill.rows() - prefill.tokens() : 0;
            packed.add(packed(manager, row, chunks.subList(begin, end), padding));
            row += packed.get(packed.size() - 1).rows;
            begin = end;
        }
        return new Metadata(prefill.rows(), prefill, packed, null, null, null, null);
    }

    private static Packed packed(
            NDManager manager, int first, List<TokenBatch.Chunk> chunks, int padding) {
        int last = chunks.size() - 1;
        int[] queries = chunks.stream().mapToInt(chunk -> chunk.tokens().length).toArray();
        int[] keys = chunks.stream().mapToInt(TokenBatch.Chunk::length).toArray();
        queries[last] += padding;
        keys[last] += padding;
        NDArray slots = null;
        if (chunks.get(0).start() > 0) {
            long[] all = new long[Arrays.stream(keys).sum()];
            int next = 0;
            for (TokenBatch.Chunk chunk : chunks) {
                for (int i = 0; i < chunk.length(); i++) {
                    all[next++] = chunk.slots()[i];
                }
            }
            Arrays.fill(all, next, all.length, all[next - 1]);
            slots = manager.create(all);
        }
        PackedSequences sequences = new PackedSequences(manager, queries, keys);
        return new Packed(first, Arrays.stream(queries).sum(), sequences, slots);
    }

    /** Returns the metadata of a batch without kernels. */
    Metadata metadata(NDManager manager, TokenBatch batch) {
        long[] positions = new long[batch.tokens()];
        long[] slots = new long[batch.tokens()];
        int token = 0;
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            for (int i = 0; i < chunk.tokens().length; i++) {
                positions[token] = chunk.start() + i;
                slots[token++] = chunk.slots()[chunk.start() + i];
            }
        }
        int decodes = batch.decodes();
        List<Span> prefills = new ArrayList<>();
        int first = decodes;
        for (TokenBatch.Chunk chunk : batch.chunks().subList(decodes, batch.chunks().size())) {
            prefills.add(prefill(manager, first, chunk));
            first += chunk.tokens().length;
        }
        NDIndex index = new NDIndex("{}", manager.create(positions));
        Map<Rope, Tables> ofTokens = new HashMap<>();
        tables.forEach(
                (rope, all) ->
                        ofTokens.put(
                                rope,
                                new Tables(
                                        all.cosines.get(manager, index),
                                        all.sines.get(manager, index))));
        return new Metadata(
                batch.tokens(),
                null,
                null,
                ofTokens,
                manager.create(slots),
                decodes == 0 ? null : decodes(manager, batch.chunks().subList(0, decodes)),
                prefills);
    }

    /** Returns the span of all chunks that have one token. */
    private Span decodes(NDManager manager, List<TokenBatch.Chunk> chunks) {
        int length = chunks.stream().mapToInt(TokenBatch.Chunk::length).max().orElseThrow();
        long[] slots = new long[chunks.size() * length];
        int[] positions = new int[chunks.size()];
        int entry = 0;
        for (TokenBatch.Chunk chunk : chunks) {
            positions[entry / length] = chunk.start();
            for (int i = 0; i < length; i++) {
                slots[entry++] = chunk.slots()[Math.min(i, chunk.length() - 1)];
            }
        }
        int count = chunks.size();
        Map<Integer, NDArray> masks =
                masks(manager.create(positions), new Shape(count, 1, 1, 1, length));
        return new Span(0, 1, count, length, false, manager.create(slots), masks);
    }

    /**
     * Returns a mask for each window of the layers.
     *
     * @param positions the positions of query tokens
     * @param shape of a mask; has a row for each query token
     */
    private Map<Integer, NDArray> masks(NDArray positions, Shape shape) {
        NDManager manager = positions.getManager();
        NDArray keys = manager.arange((int) shape.get(4));
        NDArray distance = positions.reshape(-1, 1).sub(keys);
        Map<Integer, NDArray> masks = new HashMap<>();
        for (LayerConfig layer : config.layerConfigs()) {
            masks.computeIfAbsent(
                    layer.attention().window(), window -> mask(distance, window).reshape(shape));
        }
        return masks;
    }

    private static NDArray mask(NDArray distance, int window) {
        NDManager manager = distance.getManager();
        try (NDArray future = distance.lt(0);
                NDArray past = distance.gte(window == 0 ? Integer.MAX_VALUE : window);
                NDArray hidden = future.logicalOr(past);
                NDArray infinite = manager.create(Float.NEGATIVE_INFINITY);
                NDArray infinities = infinite.broadcast(hidden.getShape());
                NDArray zero = manager.create(0f);
                NDArray zeros = zero.broadcast(hidden.getShape())) {
            return NDArrays.where(hidden, infinities, zeros);
        }
    }

    /**
     * Returns an upper estimate of the bytes of the matmul path, for a chunk of a prompt: scores
     * with four intermediate results, distances, and masks for all tokens and for a block.
     */
    static long byteSize(ModelConfig config, int ranks, long tokens, long length) {
        long heads = config.heads() / ranks;
        long block = Math.min(tokens, QUERY_BLOCK);
        return Float.BYTES * length * (5 * block * heads + 3 * tokens + 2 * block);
    }

    /** Returns the span of a chunk with more than one token. */
    private Span prefill(NDManager manager, int first, TokenBatch.Chunk chunk) {
        int tokens = chunk.tokens().length;
        int length = chunk.length();
        boolean isFirst = chunk.start() == 0;
        if (isFirst && config.layerConfigs().stream().allMatch(layer -> isPlain(layer, length))) {
            return new Span(first, tokens, 1, length, true, null, null);
        }
        NDArray own = manager.arange(chunk.start(), length);
        Map<Integer, NDArray> masks = masks(own, new Shape(1, 1, 1, tokens, length));
        long[] slots = Arrays.stream(chunk.slots(), 0, length).asLongStream().toArray();
        return new Span(first, tokens, 1, length, isFirst, manager.create(slots), masks);
    }

    private boolean isPlain(LayerConfig layer, int length) {
        return layer.attention().isPlain(config.headSize(), length);
    }

    /**
     * Applies head norms and rotary embedding, writes keys and values to the cache, and computes
     * attention.
     *
     * @param weights the weights of the layer
     * @param qkv of shape (tokens or more, (query + 2 · KV heads) · head size)
     * @return of shape (tokens, query heads · head size)
     */
    NDArray apply(
            NDManager manager,
            int layer,
            ModelWeights.Layer weights,
            NDArray qkv,
            Metadata metadata) {
        if (metadata.prefill != null) {
            return applyWithKernels(manager, layer, weights, qkv, metadata);
        }
        NDArray heads = splitHeads(qkv.get(new NDIndex().addSliceDim(0, metadata.tokens)));
        NDArray values = heads(heads, queryHeads + kvHeads, queryHeads + 2L * kvHeads);
        Tables tables = metadata.tables.get(config.layer(layer).attention().rope());
        NDArray rotated = rotate(norm(heads, weights), tables);
        NDArray queries = heads(rotated, 0, queryHeads);
        NDArray keys = heads(rotated, queryHeads, queryHeads + kvHeads);
        cache.write(layer, metadata.slots, keys, values);
        NDList outputs = new NDList();
        if (metadata.decodes != null) {
            outputs.add(attend(manager, layer, queries, metadata.decodes));
        }
        for (Span span : metadata.prefills) {
            if (span.isFirst && isPlain(config.layer(layer), span.length)) {
                outputs.add(
                        mergeHeads(
                                narrow(
                                        Torch.attention(
                                                Float32Matmul.widened(ofSpan(queries, span)),
                                                Float32Matmul.widened(ofSpan(keys, span)),
                                                Float32Matmul.widened(ofSpan(values, span)),
                                                true))));
            } else {
                queryBlocks(span)
                        .forEach(block -> outputs.add(attend(manager, layer, queries, block)));
            }
        }
        return outputs.size() == 1 ? outputs.get(0) : NDArrays.concat(outputs, 0);
    }

    /** As {@link #apply}, with kernels. */
    private NDArray applyWithKernels(
            NDManager manager,
            int layer,
            ModelWeights.Layer weights,
            NDArray qkv,
            Metadata metadata) {
        gpu.rotate(layer, weights, qkv, cache, this, metadata.prefill);
        NDList outputs = new NDList();
        for (Packed packed : metadata.packed) {
            try (NDManager temporary = manager.newSubManager()) { // Frees the copies of keys.
                NDIndex rows = new NDIndex().addSliceDim(packed.first, packed.first + packed.rows);
                boolean isAll = metadata.packed.size() == 1;
                NDArray output = attend(temporary, layer, qkv.get(temporary, rows), packed, isAll);
                output.attach(manager);
                outputs.add(output);
            }
        }
        return outputs.size() == 1 ? outputs.get(0) : NDArrays.concat(outputs, 0);
    }

    /**
     * Computes adjacent chunks.
     *
     * @param isAll whether they are the whole prefill, whose number of rows is one of few: libtorch
     *     keeps a plan for each number
     */
    private NDArray attend(
            NDManager manager, int layer, NDArray qkv, Packed packed, boolean isAll) {
        NDList parts =
                headsFirst(splitHeads(qkv)).split(new long[] {queryHeads, queryHeads + kvHeads}, 1);
        NDArray keys = parts.get(1);
        NDArray values = parts.get(2);
        boolean isFirst = packed.slots == null;
        boolean isSingle = packed.sequences.count() == 1;
        if (isAll && isFirst && isSingle && isPlain(config.layer(layer), packed.rows)) {
            return mergeHeads(Torch.attention(parts.get(0), keys, values, true));
        }
        if (!isFirst) {
            NDList cached = gpu.gather(manager, layer, packed.slots, cache);
            keys = headsFirst(cached.get(0));
            values = headsFirst(cached.get(1));
        }
        int window = config.layer(layer).attention().window();
        return mergeHeads(
                Torch.attentionOfLast(parts.get(0), keys, values, packed.sequences, window));
    }

    /** Returns a view of shape (tokens, heads, head size) of queries, keys and values. */
    private NDArray splitHeads(NDArray qkv) {
        return qkv.reshape(-1, queryHeads + 2L * kvHeads, config.headSize());
    }

    /** Returns the key and value columns of a layer's query, key and value projection. */
    ModelWeights.Linear keysAndValues(NDManager manager, ModelWeights.Linear all) {
        long first = (long) queryHeads * config.headSize();
        long end = first + 2L * kvHeads * config.headSize();
        List<NDArray> weights = List.of();
        QuantizedMatrix quantized = null;
        if (all.quantized() == null) {
            weights = List.of(all.weight().get(new NDIndex().addAllDim().addSliceDim(first, end)));
            weights.get(0).attach(manager);
        } else {
            quantized = all.quantized().slice(first, end);
        }
        NDArray bias = null;
        if (all.bias() != null) {
            bias = all.bias().get(new NDIndex().addSliceDim(first, end));
            bias.attach(manager);
        }
        return new ModelWeights.Linear(weights, bias, quantized);
    }

    /** Divides the query tokens of a span into blocks, to bound the memory of their scores. */
    private static List<Span> queryBlocks(Span span) {
        List<Span> blocks = new ArrayList<>();
        for (int begin = 0; begin < span.tokens; begin += QUERY_BLOCK) {
            int end = Math.min(span.tokens, begin + QUERY_BLOCK);
            NDIndex rows = new NDIndex().addAllDim(3).addSliceDim(begin, end);
            Map<Integer, NDArray> masks = new HashMap<>();
            span.masks.forEach((window, mask) -> masks.put(window, mask.get(rows)));
            blocks.add(
                    new Span(
                            span.first + begin,
                            end - begin,
                            1,
                            span.length,
                            span.isFirst,
                            span.slots,
                            masks));
        }
        return blocks;
    }

    /** Returns the tokens of a span, of shape (1, heads, tokens, head size). */
    private static NDArray ofSpan(NDArray heads, Span span) {
        return headsFirst(
                heads.get(new NDIndex().addSliceDim(span.first, span.first + span.tokens)));
    }

    /** Views (tokens, heads, head size) as (1, heads, tokens, head size). */
    private static NDArray headsFirst(NDArray heads) {
        return heads.expandDims(0).transpose(0, 2, 1, 3);
    }

    /** Reshapes (1, heads, tokens, head size) to (tokens, heads · head size). */
    private NDArray mergeHeads(NDArray headsFirst) {
        return headsFirst.transpose(0, 2, 1, 3).reshape(-1, (long) queryHeads * config.headSize());
    }

    private static NDArray heads(NDArray heads, long from, long to) {
        return heads.get(new NDIndex().addAllDim().addSliceDim(from, to));
    }

    /**
     * Applies the rotary embedding: rotates element i of a head's first half with element i of its
     * second half.
     */
    private NDArray rotate(NDArray heads, Tables tables) {
        int half = config.headSize() / 2;
        NDArray wide = Torch.cast(heads, ScalarType.FLOAT32);
        NDArray first = wide.get(new NDIndex().addAllDim(2).addSliceDim(0, half));
        NDArray second = wide.get(new NDIndex().addAllDim(2).addSliceDim(half, 2L * half));
        NDArray rotated =
                NDArrays.concat(
                        new NDList(
                                first.mul(tables.cosines).sub(second.mul(tables.sines)),
                                second.mul(tables.cosines).add(first.mul(tables.sines))),
                        2);
        return narrow(rotated);
    }

    /** Returns queries and keys, after the norms of heads if the layer has them. */
    private NDArray norm(NDArray heads, ModelWeights.Layer weights) {
        if (weights.queryNorm() == null) {
            return heads(heads, 0, queryHeads + kvHeads);
        }
        float epsilon = (float) config.epsilon();
        NDArray queries = heads(heads, 0, queryHeads);
        NDArray keys = heads(heads, queryHeads, queryHeads + kvHeads);
        return NDArrays.concat(
                new NDList(
                        BlockMath.rmsNorm(queries, weights.queryNorm(), epsilon),
                        BlockMath.rmsNorm(keys, weights.keyNorm(), epsilon)),
                1);
    }

    private NDArray attend(NDManager manager, int layer, NDArray queries, Span span) {
        LayerConfig.Attention of = config.layer(layer).attention();
        int size = config.headSize();
        int groupSize = queryHeads / kvHeads;
        long count = (long) span.sequences * span.tokens;
        long rows = (long) groupSize * span.tokens;
        Shape grouped = new Shape(span.sequences, kvHeads, groupSize, span.tokens, span.length);
        Shape cached = new Shape(span.sequences, span.length, kvHeads, size);
        NDIndex own = new NDIndex().addSliceDim(span.first, span.first + count);
        try (NDManager block = manager.newSubManager()) { // Frees the scores before the next block.
            // (sequences, KV heads, groupSize · tokens, head size)
            NDArray q =
                    Float32Matmul.widened(queries.get(block, own))
                            .reshape(span.sequences, span.tokens, kvHeads, groupSize, size)
                            .transpose(0, 2, 3, 1, 4)
                            .reshape(span.sequences, kvHeads, rows, size);
            NDArray keys =
                    Float32Matmul.widened(cache.keys(block, layer, span.slots)).reshape(cached);
            NDArray values =
                    Float32Matmul.widened(cache.values(block, layer, span.slots)).reshape(cached);
            NDArray products = q.matMul(keys.transpose(0, 2, 3, 1));
            NDArray scaled = Torch.cast(products, ScalarType.FLOAT32).mul((float) of.scale());
            NDArray scores =
                    BlockMath.cap(scaled, of.cap())
                            .reshape(grouped)
                            .add(span.masks.get(of.window()));
            NDArray probabilities =
                    cast(scores.softmax(4), Torch.scalarType(q)).reshape(products.getShape());
            NDArray output =
                    narrow(probabilities.matMul(values.transpose(0, 2, 1, 3)))
                            .reshape(span.sequences, kvHeads, groupSize, span.tokens, size)
                            .transpose(0, 3, 1, 2, 4)
                            .reshape(count, (long) queryHeads * size);
            output.attach(manager);
            return output;
        }
    }

    private NDArray narrow(NDArray wide) {
        return cast(wide, config.type());
    }

    private static NDArray cast(NDArray array, ScalarType type) {
        return Torch.scalarType(array) == type ? array : Torch.cast(array, type);
    }
}
