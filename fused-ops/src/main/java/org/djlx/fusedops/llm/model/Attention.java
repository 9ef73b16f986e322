// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.model;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * Attention of one rank's heads over the KV cache, with libtorch's operators:
 *
 * <ul>
 *   <li>the first chunk of a prompt attends to itself: {@link Torch#attention};
 *   <li>later chunks, and single tokens, attend to the cache as well: {@link Torch#attentionOfLast}
 *       if the model has kernels, otherwise matmuls and softmax.
 * </ul>
 *
 * <p>Grouped-query attention: query heads share a KV head, without a copy of it for each query
 * head.
 */
final class Attention {

    // The matmul path holds the attention scores of at most this many query tokens in memory.
    private static final int QUERY_BLOCK = 512;

    private final LlamaConfig config;
    private final KvCache cache;
    private final LlamaGpu gpu; // null if the model has no kernels
    private final int queryHeads;
    private final int kvHeads;
    private final NDArray cosines; // (positions, 1, head size / 2), in float32
    private final NDArray sines;

    /**
     * Computes the tables of the rotary embedding. Without kernels, {@code gpu} is null, and
     * libtorch applies the rotary embedding.
     */
    Attention(
            LlamaConfig config,
            int ranks,
            KvCache cache,
            LlamaGpu gpu,
            NDManager manager,
            int maxLength) {
        this.config = config;
        this.cache = cache;
        this.gpu = gpu;
        queryHeads = config.heads() / ranks;
        kvHeads = LlamaWeights.kvHeads(config, ranks);
        double[] frequencies = config.rope().frequencies(config.headSize());
        float[] cosine = new float[maxLength * frequencies.length];
        float[] sine = new float[maxLength * frequencies.length];
        for (int position = 0; position < maxLength; position++) {
            for (int i = 0; i < frequencies.length; i++) {
                double angle = position * frequencies[i];
                cosine[position * frequencies.length + i] = (float) Math.cos(angle);
                sine[position * frequencies.length + i] = (float) Math.sin(angle);
            }
        }
        Shape shape = new Shape(maxLength, 1, frequencies.length);
        cosines = manager.create(cosine, shape);
        sines = manager.create(sine, shape);
    }

    /** Returns the cosines of the rotary embedding, of shape (positions, 1, head size / 2). */
    NDArray cosines() {
        return cosines;
    }

    /** Returns the sines of the rotary embedding, of shape (positions, 1, head size / 2). */
    NDArray sines() {
        return sines;
    }

    /**
     * The attention metadata of a forward pass, shared by all layers.
     *
     * @param tokens the number of tokens, including padding
     * @param prefill the input of prefill kernels; null if the model has no kernels
     * @param cosines the cosines of the tokens' positions; null with kernels
     * @param sines the sines of the tokens' positions; null with kernels
     * @param slots the KV cache slot of each token; null with kernels
     * @param decodes the sequences with one token, computed together; null if there are none
     * @param prefills the sequences with more than one token, computed one by one
     */
    record Metadata(
            int tokens,
            LlamaGpu.PrefillInputs prefill,
            NDArray cosines,
            NDArray sines,
            NDArray slots,
            Span decodes,
            List<Span> prefills) {}

    /**
     * Query tokens that are computed in one call.
     *
     * @param slots the cache slots that each sequence attends to, (sequences · length); shorter
     *     sequences are padded. Null for the first chunk of a prompt, which attends to itself only
     * @param mask the mask added to the scores, of shape (sequences, 1, 1, tokens, length): 0, or
     *     -infinity where a token must not attend. Null if {@code slots} is null, and with kernels
     */
    private record Span(int first, int tokens, int sequences, NDArray slots, NDArray mask) {

        long length() {
            return slots.getShape().get(0) / sequences;
        }
    }

    /** Returns the metadata for prefill kernels. */
    Metadata metadata(NDManager manager, TokenBatch.Chunk chunk, LlamaGpu.PrefillInputs prefill) {
        int tokens = prefill.rows();
        NDArray slots = chunk.start() == 0 ? null : manager.create(slots(chunk, tokens));
        List<Span> prefills = List.of(new Span(0, tokens, 1, slots, null));
        return new Metadata(tokens, prefill, null, null, null, null, prefills);
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
        return new Metadata(
                batch.tokens(),
                null,
                cosines.get(manager, index),
                sines.get(manager, index),
                manager.create(slots),
                decodes == 0 ? null : decodes(manager, batch.chunks().subList(0, decodes)),
                prefills);
    }

    /** Returns the span of all chunks that have one token. */
    private static Span decodes(NDManager manager, List<TokenBatch.Chunk> chunks) {
        int length = chunks.stream().mapToInt(TokenBatch.Chunk::length).max().orElseThrow();
        long[] slots = new long[chunks.size() * length];
        float[] mask = new float[chunks.size() * length];
        int entry = 0;
        for (TokenBatch.Chunk chunk : chunks) {
            for (int i = 0; i < length; i++) {
                slots[entry + i] = chunk.slots()[Math.min(i, chunk.length() - 1)];
            }
            Arrays.fill(mask, entry + chunk.length(), entry + length, Float.NEGATIVE_INFINITY);
            entry += length;
        }
        Shape shape = new Shape(chunks.size(), 1, 1, 1, length);
        return new Span(0, 1, chunks.size(), manager.create(slots), manager.create(mask, shape));
    }

    /**
     * Returns the cache slots that the tokens of a chunk, padding included, attend to. Padding
     * tokens may get any slot of the sequence: they come last, so causal attention hides them from
     * all other tokens.
     */
    private static long[] slots(TokenBatch.Chunk chunk, int tokens) {
        long[] slots = new long[chunk.start() + tokens];
        for (int i = 0; i < slots.length; i++) {
            slots[i] = chunk.slots()[i < chunk.length() ? i : 0];
        }
        return slots;
    }

    /** Returns the span of a chunk with more than one token. */
    private static Span prefill(NDManager manager, int first, TokenBatch.Chunk chunk) {
        int tokens = chunk.tokens().length;
        if (chunk.start() == 0) {
            return new Span(first, tokens, 1, null, null);
        }
        int length = chunk.length();
        NDArray own = manager.arange(chunk.start(), length).reshape(tokens, 1);
        NDArray hidden = manager.arange(length).gt(own);
        NDArray mask =
                NDArrays.where(
                        hidden,
                        manager.full(hidden.getShape(), Float.NEGATIVE_INFINITY),
                        manager.zeros(hidden.getShape()));
        Shape shape = new Shape(1, 1, 1, tokens, length);
        NDArray slots = manager.create(slots(chunk, tokens));
        return new Span(first, tokens, 1, slots, mask.reshape(shape));
    }

    /**
     * Applies the rotary embedding, writes keys and values to the cache, and computes attention.
     *
     * @param qkv of shape (tokens or more, (query + 2 · KV heads) · head size)
     * @return of shape (tokens, query heads · head size)
     */
    NDArray apply(NDManager manager, int layer, NDArray qkv, Metadata metadata) {
        if (metadata.prefill != null) {
            return applyWithKernels(manager, layer, qkv, metadata);
        }
        NDArray heads = splitHeads(qkv.get(new NDIndex().addSliceDim(0, metadata.tokens)));
        NDArray values = heads(heads, queryHeads + kvHeads, queryHeads + 2L * kvHeads);
        NDArray rotated = rotate(heads(heads, 0, queryHeads + kvHeads), metadata);
        NDArray queries = heads(rotated, 0, queryHeads);
        NDArray keys = heads(rotated, queryHeads, queryHeads + kvHeads);
        cache.write(layer, metadata.slots, keys, values);
        NDList outputs = new NDList();
        if (metadata.decodes != null) {
            outputs.add(attend(manager, layer, queries, metadata.decodes));
        }
        for (Span span : metadata.prefills) {
            if (span.slots == null) {
                outputs.add(
                        mergeHeads(
                                Torch.attention(
                                        ofSpan(queries, span),
                                        ofSpan(keys, span),
                                        ofSpan(values, span),
                                        true)));
            } else {
                queryBlocks(span)
                        .forEach(block -> outputs.add(attend(manager, layer, queries, block)));
            }
        }
        return outputs.size() == 1 ? outputs.get(0) : NDArrays.concat(outputs, 0);
    }

    /** As {@link #apply}, with kernels. All rows of {@code qkv} are tokens of one prompt. */
    private NDArray applyWithKernels(NDManager manager, int layer, NDArray qkv, Metadata metadata) {
        gpu.rotate(layer, qkv, cache, this, metadata.prefill);
        NDList parts =
                headsFirst(splitHeads(qkv)).split(new long[] {queryHeads, queryHeads + kvHeads}, 1);
        NDArray slots = metadata.prefills.get(0).slots;
        if (slots == null) {
            return mergeHeads(Torch.attention(parts.get(0), parts.get(1), parts.get(2), true));
        }
        NDArray keys = headsFirst(cache.keys(manager, layer, slots));
        NDArray values = headsFirst(cache.values(manager, layer, slots));
        return mergeHeads(Torch.attentionOfLast(parts.get(0), keys, values));
    }

    /** Returns a view of shape (tokens, heads, head size) of queries, keys and values. */
    private NDArray splitHeads(NDArray qkv) {
        return qkv.reshape(-1, queryHeads + 2L * kvHeads, config.headSize());
    }

    /** Returns the key and value columns of a layer's query, key and value projection. */
    NDArray keyValueColumns(NDManager manager, NDArray weight) {
        long first = (long) queryHeads * config.headSize();
        NDArray columns =
                weight.get(new NDIndex().addAllDim().addSliceDim(first, weight.getShape().get(1)));
        columns.attach(manager);
        return columns;
    }

    /** Divides the query tokens of a span into blocks, to bound the memory of their scores. */
    private static List<Span> queryBlocks(Span span) {
        List<Span> blocks = new ArrayList<>();
        for (int begin = 0; begin < span.tokens; begin += QUERY_BLOCK) {
            int end = Math.min(span.tokens, begin + QUERY_BLOCK);
            NDArray mask = span.mask.get(new NDIndex().addAllDim(3).addSliceDim(begin, end));
            blocks.add(new Span(span.first + begin, end - begin, 1, span.slots, mask));
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
    private NDArray rotate(NDArray heads, Metadata metadata) {
        int half = config.headSize() / 2;
        NDArray wide = Torch.cast(heads, ScalarType.FLOAT32);
        NDArray first = wide.get(new NDIndex().addAllDim(2).addSliceDim(0, half));
        NDArray second = wide.get(new NDIndex().addAllDim(2).addSliceDim(half, 2L * half));
        NDArray rotated =
                NDArrays.concat(
                        new NDList(
                                first.mul(metadata.cosines).sub(second.mul(metadata.sines)),
                                second.mul(metadata.cosines).add(first.mul(metadata.sines))),
                        2);
        return narrow(rotated);
    }

    private NDArray attend(NDManager manager, int layer, NDArray queries, Span span) {
        int size = config.headSize();
        int groupSize = queryHeads / kvHeads;
        long length = span.length();
        long count = (long) span.sequences * span.tokens;
        // (sequences, KV heads, groupSize · tokens, head size)
        NDArray q =
                queries.get(new NDIndex().addSliceDim(span.first, span.first + count))
                        .reshape(span.sequences, span.tokens, kvHeads, groupSize, size)
                        .transpose(0, 2, 3, 1, 4)
                        .reshape(span.sequences, kvHeads, (long) groupSize * span.tokens, size);
        Shape cached = new Shape(span.sequences, length, kvHeads, size);
        NDArray keys = cache.keys(manager, layer, span.slots).reshape(cached);
        NDArray values = cache.values(manager, layer, span.slots).reshape(cached);
        NDArray products = q.matMul(keys.transpose(0, 2, 3, 1));
        NDArray scores =
                Torch.cast(products, ScalarType.FLOAT32)
                        .mul((float) (1 / Math.sqrt(size)))
                        .reshape(span.sequences, kvHeads, groupSize, span.tokens, length)
                        .add(span.mask);
        NDArray probabilities = narrow(scores.softmax(4)).reshape(products.getShape());
        return probabilities
                .matMul(values.transpose(0, 2, 1, 3))
                .reshape(span.sequences, kvHeads, groupSize, span.tokens, size)
                .transpose(0, 3, 1, 2, 4)
                .reshape(count, (long) queryHeads * size);
    }

    private NDArray narrow(NDArray wide) {
        return config.type() == ScalarType.FLOAT32 ? wide : Torch.cast(wide, config.type());
    }
}
