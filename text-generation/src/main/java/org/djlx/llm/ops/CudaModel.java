// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDManager;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.djlx.llm.sampling.Logits;

/**
 * A model with kernels on a GPU. {@link CudaOps} computes prefills, libtorch's operators prefills
 * with adapters, and {@link Decoder} all other tokens.
 */
final class CudaModel extends TransformerModel {

    private final ModelKernels gpu;
    private final boolean batchInvariant;
    private final CudaAttention attention;
    private final Decoder decoder;
    private final TorchModel torch; // for prefills with adapters

    /** Owns {@code gpu}, unless this throws. */
    CudaModel(RankModel model, NDManager manager, ModelKernels gpu, boolean batchInvariant) {
        super(model, manager);
        this.gpu = gpu;
        this.batchInvariant = batchInvariant;
        attention = new CudaAttention(model, gpu);
        for (ModelWeights.Layer layer : model.weights().layers()) {
            if (layer.router() != null) {
                gpu.wideExperts().ifPresent(experts -> experts.add(layer.router(), layer.mlps()));
            }
        }
        decoder = new Decoder(model, gpu, batchInvariant);
        torch = new TorchModel(model, manager);
    }

    @Override
    public boolean hasDecoder() {
        return true;
    }

    @Override
    void keepLogits() {
        decoder.keepLogits();
    }

    @Override
    Logits compute(TokenBatch batch, NDManager manager) {
        List<Logits> parts = new ArrayList<>();
        List<TokenBatch.Chunk> decodes = new ArrayList<>(batch.chunks());
        List<TokenBatch.Chunk> computed = new ArrayList<>();
        for (List<TokenBatch.Chunk> chunks : prefills(batch, false)) {
            decoder.await(); // Its all-reduces of the same group run on another stream.
            prefill(chunks).ifPresent(parts::add);
            decodes.removeAll(chunks);
            computed.addAll(chunks);
        }
        List<TokenBatch.Chunk> rows = new ArrayList<>(decodes); // of the decoder
        for (List<TokenBatch.Chunk> chunks : prefills(batch, true)) {
            // The decoder computes each chunk's last token, because it samples the next one.
            decoder.await();
            List<TokenBatch.Chunk> heads =
                    chunks.stream()
                            .map(CudaModel::head)
                            .sorted(Comparator.comparingInt(head -> head.tokens().length))
                            .toList();
            torch.computeByTorch(new TokenBatch(heads), manager);
            rows.replaceAll(chunk -> chunks.contains(chunk) ? last(chunk) : chunk);
        }
        if (!rows.isEmpty()) {
            parts.add(decoder.decode(rows));
        }
        if (computed.isEmpty()) {
            return Logits.concat(parts);
        }
        computed.addAll(decodes);
        computed.removeIf(chunk -> !chunk.needsLogits());
        Map<TokenBatch.Chunk, Integer> places = new IdentityHashMap<>();
        computed.forEach(chunk -> places.put(chunk, places.size()));
        List<Integer> order =
                batch.chunks().stream()
                        .filter(TokenBatch.Chunk::needsLogits)
                        .map(places::get)
                        .toList();
        return Logits.concat(parts, order);
    }

    /** Returns the {@link TokenBatch#prefills} of the chunks with or without adapters. */
    private List<List<TokenBatch.Chunk>> prefills(TokenBatch batch, boolean adapted) {
        return new TokenBatch(
                        batch.chunks().stream()
                                .filter(chunk -> chunk.adapter() != 0 == adapted)
                                .toList())
                .prefills(!batchInvariant);
    }

    /** Returns a chunk without its last token. */
    private static TokenBatch.Chunk head(TokenBatch.Chunk of) {
        return of.part(0, of.tokens().length - 1);
    }

    private static TokenBatch.Chunk last(TokenBatch.Chunk of) {
        return of.part(of.tokens().length - 1, of.tokens().length);
    }

    /** Waits for steps in flight first: they may read adapters that are freed here. */
    @Override
    public Map<Integer, String> setAdapters(Map<Integer, Path> directories) {
        decoder.await();
        return super.setAdapters(directories);
    }

    /**
     * Computes first chunks of prompts, then later ones. The last layer computes keys and values
     * only, except for the last tokens of chunks that need logits.
     */
    private Optional<Logits> prefill(List<TokenBatch.Chunk> chunks) {
        int count = chunks.stream().mapToInt(chunk -> chunk.tokens().length).sum();
        int last = model.config().layers() - 1;
        try (NDManager step = manager.newSubManager()) {
            ModelKernels.PrefillInputs inputs =
                    ModelKernels.inputs(step, chunks, paddedRows(count, model.ranks()));
            CudaAttention.Metadata metadata =
                    CudaAttention.metadata(step, chunks, inputs, model.tables().maxLength());
            CudaOps ops = new CudaOps(model, step, gpu, attention, metadata);
            ForwardPass.layers(model, ops, 0, last);
            ops.cacheKeysAndValues(last);
            long rows = ops.residual().getShape().get(0);
            long[] lastRows = new long[chunks.size()];
            List<TokenBatch.Chunk> ends = new ArrayList<>();
            long row = -1;
            for (TokenBatch.Chunk chunk : chunks) {
                row += chunk.tokens().length;
                if (chunk.needsLogits()) {
                    // Rank 0, if all ranks have all rows.
                    boolean isHere = row / rows == model.group().rank();
                    lastRows[ends.size()] = isHere ? row % rows : -1;
                    ends.add(chunk);
                }
            }
            return ends.isEmpty()
                    ? Optional.empty()
                    : Optional.of(decoder.finishPrefill(ends, ops.residual(), lastRows));
        }
    }

    /**
     * Returns the padded number of rows of a prefill. It is a multiple of the number of ranks, and
     * at most 1/16 more than the tokens, or one matmul tile more. Padding keeps the number of
     * different shapes low: libtorch and fused operators keep a plan for each shape, and cuDNN's
     * attention takes 45 ms for a new shape.
     */
    static int paddedRows(int tokens, int ranks) {
        int step = Math.max(64, Integer.highestOneBit(tokens - 1) / 16);
        return roundUp(roundUp(tokens, step), ranks);
    }

    private static int roundUp(int number, int multiple) {
        return (number + multiple - 1) / multiple * multiple;
    }

    @Override
    public void close() {
        decoder.close();
        gpu.close();
        super.close();
    }
}
