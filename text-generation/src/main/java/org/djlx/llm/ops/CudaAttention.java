// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.llm.model.ModelConfig;
import org.djlx.nativeops.torch.PackedSequences;
import org.djlx.nativeops.torch.Torch;

/**
 * Attention of prefills with kernels, on one rank's heads: kernels rotate and fill the KV cache,
 * libtorch's flash attention computes several chunks in one call. First chunks attend to
 * themselves, not to keys and values that the cache has rounded; later chunks attend to the cache
 * as well.
 */
final class CudaAttention {

    private final RankModel model;
    private final ModelConfig config;
    private final ModelKernels gpu;
    private final int queryHeads;
    private final int kvHeads;

    CudaAttention(RankModel model, ModelKernels gpu) {
        this.model = model;
        this.gpu = gpu;
        config = model.config();
        queryHeads = model.queryHeads();
        kvHeads = model.kvHeads();
    }

    record Metadata(ModelKernels.PrefillInputs inputs, List<Packed> packed) {}

    /**
     * Adjacent chunks of a prefill, whose attention is computed in one call. {@code slots} has the
     * cache slots of all keys; null for first chunks, which attend to themselves only.
     */
    record Packed(int first, int rows, PackedSequences sequences, NDArray slots) {}

    /**
     * Returns the metadata of a prefill: first chunks of prompts, then later ones, which are
     * divided, so that the copies of keys of one call are limited by the maximum length. Padding
     * belongs to the last chunk, and gets any slot of its sequence: causal attention hides it from
     * the chunk's own tokens.
     */
    static Metadata metadata(
            NDManager manager,
            List<TokenBatch.Chunk> chunks,
            ModelKernels.PrefillInputs inputs,
            int maxLength) {
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
            int padding = end == chunks.size() ? inputs.rows() - inputs.tokens() : 0;
            packed.add(packed(manager, row, chunks.subList(begin, end), padding));
            row += packed.get(packed.size() - 1).rows;
            begin = end;
        }
        return new Metadata(inputs, packed);
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

    /**
     * Applies head norms and rotary embedding in place, writes keys and values to the cache, and
     * computes attention: from (tokens, (query + 2 · KV heads) · head size) to (tokens, query heads
     * · head size).
     */
    NDArray apply(NDManager manager, int layer, NDArray qkv, Metadata metadata) {
        gpu.rotate(model, layer, qkv, metadata.inputs);
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
     * Computes adjacent chunks. If {@code isAll} they are the whole prefill, whose number of rows
     * is one of few: libtorch keeps a plan for each number.
     */
    private NDArray attend(
            NDManager manager, int layer, NDArray qkv, Packed packed, boolean isAll) {
        NDList parts =
                RankModel.headsFirst(model.splitHeads(qkv))
                        .split(new long[] {queryHeads, queryHeads + kvHeads}, 1);
        NDArray keys = parts.get(1);
        NDArray values = parts.get(2);
        boolean isFirst = packed.slots == null;
        boolean isSingle = packed.sequences.count() == 1;
        if (isAll
                && isFirst
                && isSingle
                && config.layer(layer).attention().isPlain(config.headSize(), packed.rows)) {
            return model.mergeHeads(Torch.attention(parts.get(0), keys, values, true));
        }
        if (!isFirst) {
            NDList cached = gpu.gather(manager, layer, packed.slots, model.cache());
            keys = RankModel.headsFirst(cached.get(0));
            values = RankModel.headsFirst(cached.get(1));
        }
        int window = config.layer(layer).attention().window();
        return model.mergeHeads(
                Torch.attentionOfLast(parts.get(0), keys, values, packed.sequences, window));
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
}
