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
import org.djlx.nativeops.torch.BlockMath;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Attention of one rank's heads over the KV cache, with libtorch's operators. The first chunk of a
 * prompt attends to itself, not to keys and values that the cache has rounded: by {@link
 * Torch#attention}, unless scores are limited or a window hides some of them. All others are
 * matmuls and softmax.
 *
 * <p>Without cache slots, all chunks are first ones, of layers that need no more.
 *
 * <p>Grouped-query attention: query heads share a KV head, without a copy of it for each query
 * head.
 */
final class TorchAttention {

    // The attention scores of at most this many query tokens are in memory.
    private static final int QUERY_BLOCK = 512;

    private final RankModel model;
    private final ModelConfig config;
    private final KvCache cache;
    private final int queryHeads;
    private final int kvHeads;

    TorchAttention(RankModel model) {
        this.model = model;
        config = model.config();
        cache = model.cache();
        queryHeads = model.queryHeads();
        kvHeads = model.kvHeads();
    }

    /**
     * What all layers of a forward pass share: rotary embeddings at the tokens' positions; the KV
     * cache slot of each token; the sequences with one token, computed together, null if there are
     * none; and those with more tokens, computed one by one.
     */
    record Metadata(
            int tokens,
            Map<Rope, RotaryTables.Tables> tables,
            NDArray slots,
            Span decodes,
            List<Span> prefills) {}

    /**
     * Query tokens that are computed in one call. Several sequences have one token each; {@code
     * length} is that of the longest. If {@code isFirst}, they are the first chunk of a prompt,
     * which attends to itself only.
     *
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
        int decodes = cache.slots() == 0 ? 0 : batch.decodes();
        List<Span> prefills = new ArrayList<>();
        int first = decodes;
        for (TokenBatch.Chunk chunk : batch.chunks().subList(decodes, batch.chunks().size())) {
            prefills.add(prefill(manager, first, chunk));
            first += chunk.tokens().length;
        }
        return new Metadata(
                batch.tokens(),
                model.tables().at(manager, positions),
                manager.create(slots),
                decodes == 0 ? null : decodes(manager, batch.chunks().subList(0, decodes)),
                prefills);
    }

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
     * Returns a mask for each window of the layers, of a shape with a row for each query token;
     * {@code positions} are those of query tokens.
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
     * with four intermediate results, two more with sinks, distances, and masks for all tokens and
     * for a block.
     */
    static long byteSize(ModelConfig config, int ranks, long tokens, long length) {
        long heads = config.heads() / ranks;
        long block = Math.min(tokens, QUERY_BLOCK);
        boolean sinks = config.layerConfigs().stream().anyMatch(of -> of.attention().sinks());
        return Float.BYTES * length * ((sinks ? 7 : 5) * block * heads + 3 * tokens + 2 * block);
    }

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

    /** As {@link CudaAttention#apply}, for as many tokens or more; the result is a new array. */
    NDArray apply(
            NDManager manager,
            int layer,
            ModelWeights.Layer weights,
            NDArray qkv,
            Metadata metadata) {
        NDArray heads = model.splitHeads(qkv.get(new NDIndex().addSliceDim(0, metadata.tokens)));
        NDArray values = heads(heads, queryHeads + kvHeads, queryHeads + 2L * kvHeads);
        RotaryTables.Tables tables = metadata.tables.get(config.layer(layer).attention().rope());
        NDArray rotated = narrow(tables.rotate(norm(layer, heads, weights)));
        NDArray queries = heads(rotated, 0, queryHeads);
        NDArray keys = heads(rotated, queryHeads, queryHeads + kvHeads);
        if (cache.slots() > 0) {
            cache.write(layer, metadata.slots, keys, values);
        }
        NDList outputs = new NDList();
        if (metadata.decodes != null) {
            outputs.add(attend(manager, layer, queries, metadata.decodes));
        }
        for (Span span : metadata.prefills) {
            if (span.isFirst && isPlain(config.layer(layer), span.length)) {
                outputs.add(
                        model.mergeHeads(
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
        return RankModel.headsFirst(
                heads.get(new NDIndex().addSliceDim(span.first, span.first + span.tokens)));
    }

    private static NDArray heads(NDArray heads, long from, long to) {
        return heads.get(new NDIndex().addAllDim().addSliceDim(from, to));
    }

    /** Returns queries and keys, after the norms of heads if the layer has them. */
    private NDArray norm(int layer, NDArray heads, ModelWeights.Layer weights) {
        return switch (config.layer(layer).attention().headNorms()) {
            case NONE -> heads(heads, 0, queryHeads + kvHeads);
            case EACH_HEAD -> normEach(heads, weights);
            case ALL_HEADS -> model.normAllHeads(heads, weights);
        };
    }

    private NDArray normEach(NDArray heads, ModelWeights.Layer weights) {
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
                    cast(softmax(scores, layer), Torch.scalarType(q)).reshape(products.getShape());
            NDArray output =
                    narrow(probabilities.matMul(values.transpose(0, 2, 1, 3)))
                            .reshape(span.sequences, kvHeads, groupSize, span.tokens, size)
                            .transpose(0, 3, 1, 2, 4)
                            .reshape(count, (long) queryHeads * size);
            output.attach(manager);
            return output;
        }
    }

    /** Returns the softmax over tokens, and over the sink of each head if the layer has them. */
    private NDArray softmax(NDArray scores, int layer) {
        NDArray sinks = model.weights().layer(layer).sinks();
        if (sinks == null) {
            return scores.softmax(4);
        }
        long[] shape = scores.getShape().getShape();
        NDArray own =
                Torch.cast(sinks, ScalarType.FLOAT32)
                        .reshape(1, shape[1], shape[2], 1, 1)
                        .broadcast(shape[0], shape[1], shape[2], shape[3], 1);
        NDArray all = NDArrays.concat(new NDList(scores, own), 4).softmax(4);
        return all.get(new NDIndex().addAllDim(4).addSliceDim(0, shape[4]));
    }

    private NDArray narrow(NDArray wide) {
        return cast(wide, config.type());
    }

    private static NDArray cast(NDArray array, ScalarType type) {
        return Torch.scalarType(array) == type ? array : Torch.cast(array, type);
    }
}
