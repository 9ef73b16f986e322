/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
 * Attention of one rank's heads to the cached keys and values, by libtorch's operators: of the
 * beginning of a sequence to itself, by {@link Torch#attention}, and of what follows to all before
 * and itself, by {@link Torch#attentionOfLast} where there are kernels, otherwise by matmuls and
 * softmax. Several heads of queries share a head of keys and values, which is not repeated for
 * them.
 */
final class Attention {

    // The most tokens whose scores are in memory at once, where they are.
    private static final int PIECE = 512;

    private final LlamaConfig config;
    private final KvCache cache;
    private final LlamaGpu gpu; // null if there are no kernels
    private final int queryHeads;
    private final int keyHeads;
    private final NDArray cosines; // (positions, 1, half of the head size), in float32
    private final NDArray sines;

    /**
     * Makes the tables of rotations.
     *
     * @param gpu what rotates; null if libtorch does
     * @param manager what they belong to
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
        keyHeads = LlamaWeights.keyHeads(config, ranks);
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

    /** Returns the cosines of rotations, of shape (positions, 1, half of the head size). */
    NDArray cosines() {
        return cosines;
    }

    /** Returns the sines, of the same shape. */
    NDArray sines() {
        return sines;
    }

    /**
     * What is the same in all layers of a forward pass.
     *
     * @param tokens how many new ones there are, with those that fill a prompt up
     * @param prompt what kernels are told of them; null if there are none
     * @param cosines of the new tokens' positions; null if there are kernels, as are sines and rows
     * @param rows where in the cache they go
     * @param singles the sequences with one new token
     * @param several those with more, one by one
     */
    record Step(
            int tokens,
            LlamaGpu.Prompt prompt,
            NDArray cosines,
            NDArray sines,
            NDArray rows,
            Span singles,
            List<Span> several) {}

    /**
     * Sequences that are computed at once.
     *
     * @param first the first of their tokens
     * @param tokens how many each has
     * @param sequences how many there are
     * @param rows where in the cache their tokens are, from the first on, (sequences × length); the
     *     shorter ones filled up. Null for the beginning of one sequence, which sees itself alone
     * @param mask what is added to scores, of shape (sequences, 1, 1, tokens, length): 0, or
     *     -infinity for what a token must not see; null likewise, and of a prompt for kernels
     */
    private record Span(int first, int tokens, int sequences, NDArray rows, NDArray mask) {

        long length() {
            return rows.getShape().get(0) / sequences;
        }
    }

    /** Makes that of a prompt's tokens, whose keys and values kernels write. */
    Step step(NDManager manager, TokenBatch.Chunk chunk, LlamaGpu.Prompt prompt) {
        int tokens = prompt.rows();
        NDArray rows = chunk.start() == 0 ? null : manager.create(rows(chunk, tokens));
        List<Span> several = List.of(new Span(0, tokens, 1, rows, null));
        return new Step(tokens, prompt, null, null, null, null, several);
    }

    /** Makes that of a batch where there are no kernels. */
    Step step(NDManager manager, TokenBatch batch) {
        long[] positions = new long[batch.tokens()];
        long[] rows = new long[batch.tokens()];
        int token = 0;
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            for (int i = 0; i < chunk.tokens().length; i++) {
                positions[token] = chunk.start() + i;
                rows[token++] = chunk.rows()[chunk.start() + i];
            }
        }
        int singles = batch.singles();
        List<Span> several = new ArrayList<>();
        int first = singles;
        for (TokenBatch.Chunk chunk : batch.chunks().subList(singles, batch.chunks().size())) {
            several.add(several(manager, first, chunk));
            first += chunk.tokens().length;
        }
        NDIndex index = new NDIndex("{}", manager.create(positions));
        return new Step(
                batch.tokens(),
                null,
                cosines.get(manager, index),
                sines.get(manager, index),
                manager.create(rows),
                singles == 0 ? null : singles(manager, batch.chunks().subList(0, singles)),
                several);
    }

    /** Chunks of one token. */
    private static Span singles(NDManager manager, List<TokenBatch.Chunk> chunks) {
        int length = chunks.stream().mapToInt(TokenBatch.Chunk::length).max().orElseThrow();
        long[] rows = new long[chunks.size() * length];
        float[] mask = new float[chunks.size() * length];
        int entry = 0;
        for (TokenBatch.Chunk chunk : chunks) {
            for (int i = 0; i < length; i++) {
                rows[entry + i] = chunk.rows()[Math.min(i, chunk.length() - 1)];
            }
            Arrays.fill(mask, entry + chunk.length(), entry + length, Float.NEGATIVE_INFINITY);
            entry += length;
        }
        Shape shape = new Shape(chunks.size(), 1, 1, 1, length);
        return new Span(0, 1, chunks.size(), manager.create(rows), manager.create(mask, shape));
    }

    /**
     * Returns the rows of the cache that so many tokens of a chunk see; those that fill it up see
     * any of the sequence, and no other sees them, as they come last.
     */
    private static long[] rows(TokenBatch.Chunk chunk, int tokens) {
        long[] rows = new long[chunk.start() + tokens];
        for (int i = 0; i < rows.length; i++) {
            rows[i] = chunk.rows()[i < chunk.length() ? i : 0];
        }
        return rows;
    }

    private static Span several(NDManager manager, int first, TokenBatch.Chunk chunk) {
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
        NDArray rows = manager.create(rows(chunk, tokens));
        return new Span(first, tokens, 1, rows, mask.reshape(shape));
    }

    /**
     * Writes keys and values of new tokens to the cache, and lets their queries attend.
     *
     * @param qkv of shape (tokens or more, heads of queries, keys and values × head size)
     * @return of shape (tokens, heads of queries × head size)
     */
    NDArray apply(NDManager manager, int layer, NDArray qkv, Step step) {
        if (step.prompt != null) {
            return applyToPrompt(manager, layer, qkv, step);
        }
        NDArray heads = heads(qkv.get(new NDIndex().addSliceDim(0, step.tokens)));
        NDArray turned = part(heads, 0, queryHeads + keyHeads);
        NDArray values = part(heads, queryHeads + keyHeads, queryHeads + 2L * keyHeads);
        turned = rotated(turned, step);
        NDArray queries = part(turned, 0, queryHeads);
        NDArray keys = part(turned, queryHeads, queryHeads + keyHeads);
        cache.write(layer, step.rows, keys, values);
        NDList outputs = new NDList();
        if (step.singles != null) {
            outputs.add(attend(manager, layer, queries, step.singles));
        }
        for (Span span : step.several) {
            if (span.rows == null) {
                NDArray own = front(queries, span);
                outputs.add(
                        joined(Torch.attention(own, front(keys, span), front(values, span), true)));
            } else {
                pieces(span).forEach(each -> outputs.add(attend(manager, layer, queries, each)));
            }
        }
        return outputs.size() == 1 ? outputs.get(0) : NDArrays.concat(outputs, 0);
    }

    /** As {@link #apply}, by kernels; all rows are tokens. */
    private NDArray applyToPrompt(NDManager manager, int layer, NDArray qkv, Step step) {
        gpu.rotate(layer, qkv, cache, this, step.prompt);
        NDList parts = byHead(heads(qkv)).split(new long[] {queryHeads, queryHeads + keyHeads}, 1);
        NDArray rows = step.several.get(0).rows;
        if (rows == null) {
            return joined(Torch.attention(parts.get(0), parts.get(1), parts.get(2), true));
        }
        NDArray keys = byHead(cache.keys(manager, layer, rows));
        NDArray values = byHead(cache.values(manager, layer, rows));
        return joined(Torch.attentionOfLast(parts.get(0), keys, values));
    }

    /** Returns a view of queries, keys and values of shape (tokens, heads, head size). */
    private NDArray heads(NDArray qkv) {
        return qkv.reshape(-1, queryHeads + 2L * keyHeads, config.headSize());
    }

    /** Returns what of a layer's weight of queries, keys and values is that of the latter two. */
    NDArray keysValues(NDManager manager, NDArray weight) {
        long first = (long) queryHeads * config.headSize();
        NDArray columns =
                weight.get(new NDIndex().addAllDim().addSliceDim(first, weight.getShape().get(1)));
        columns.attach(manager);
        return columns;
    }

    /** Divides the tokens of a sequence, so that their scores do not take much memory at once. */
    private static List<Span> pieces(Span span) {
        List<Span> pieces = new ArrayList<>();
        for (int begin = 0; begin < span.tokens; begin += PIECE) {
            int end = Math.min(span.tokens, begin + PIECE);
            NDArray mask = span.mask.get(new NDIndex().addAllDim(3).addSliceDim(begin, end));
            pieces.add(new Span(span.first + begin, end - begin, 1, span.rows, mask));
        }
        return pieces;
    }

    /** Returns what a span has of heads, of shape (1, heads, tokens, head size). */
    private static NDArray front(NDArray heads, Span span) {
        return byHead(heads.get(new NDIndex().addSliceDim(span.first, span.first + span.tokens)));
    }

    /** Returns a view of (tokens, heads, head size) of shape (1, heads, tokens, head size). */
    private static NDArray byHead(NDArray heads) {
        return heads.expandDims(0).transpose(0, 2, 1, 3);
    }

    /** Returns what heads of queries have computed, of shape (tokens, heads × head size). */
    private NDArray joined(NDArray byHead) {
        return byHead.transpose(0, 2, 1, 3).reshape(-1, (long) queryHeads * config.headSize());
    }

    private static NDArray part(NDArray heads, long from, long to) {
        return heads.get(new NDIndex().addAllDim().addSliceDim(from, to));
    }

    /** Turns pairs of elements, each of a head's first half and its second, by their positions. */
    private NDArray rotated(NDArray heads, Step step) {
        int half = config.headSize() / 2;
        NDArray wide = Torch.cast(heads, ScalarType.FLOAT32);
        NDArray first = wide.get(new NDIndex().addAllDim(2).addSliceDim(0, half));
        NDArray second = wide.get(new NDIndex().addAllDim(2).addSliceDim(half, 2L * half));
        NDArray turned =
                NDArrays.concat(
                        new NDList(
                                first.mul(step.cosines).sub(second.mul(step.sines)),
                                second.mul(step.cosines).add(first.mul(step.sines))),
                        2);
        return narrowed(turned);
    }

    private NDArray attend(NDManager manager, int layer, NDArray queries, Span span) {
        int size = config.headSize();
        int sharing = queryHeads / keyHeads;
        long length = span.length();
        long count = (long) span.sequences * span.tokens;
        // (sequences, key heads, sharing × tokens, head size)
        NDArray q =
                queries.get(new NDIndex().addSliceDim(span.first, span.first + count))
                        .reshape(span.sequences, span.tokens, keyHeads, sharing, size)
                        .transpose(0, 2, 3, 1, 4)
                        .reshape(span.sequences, keyHeads, (long) sharing * span.tokens, size);
        Shape cached = new Shape(span.sequences, length, keyHeads, size);
        NDArray keys = cache.keys(manager, layer, span.rows).reshape(cached);
        NDArray values = cache.values(manager, layer, span.rows).reshape(cached);
        NDArray products = q.matMul(keys.transpose(0, 2, 3, 1));
        NDArray scores =
                Torch.cast(products, ScalarType.FLOAT32)
                        .mul((float) (1 / Math.sqrt(size)))
                        .reshape(span.sequences, keyHeads, sharing, span.tokens, length)
                        .add(span.mask);
        NDArray shares = narrowed(scores.softmax(4)).reshape(products.getShape());
        return shares.matMul(values.transpose(0, 2, 1, 3))
                .reshape(span.sequences, keyHeads, sharing, span.tokens, size)
                .transpose(0, 3, 1, 2, 4)
                .reshape(count, (long) queryHeads * size);
    }

    private NDArray narrowed(NDArray wide) {
        return config.type() == ScalarType.FLOAT32 ? wide : Torch.cast(wide, config.type());
    }
}
