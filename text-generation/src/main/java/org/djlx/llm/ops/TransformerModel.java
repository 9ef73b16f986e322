// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDManager;
import java.nio.file.Path;
import java.util.Map;
import org.djlx.collectives.ProcessGroup;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.WeightMap;
import org.djlx.llm.sampling.Logits;

/**
 * One rank's part of a model, and its forward pass for inference. Tensor parallel: each rank has
 * some of the heads and a part of the MLP.
 *
 * <p>RMSNorm, rotary embedding, softmax and activation compute in float32 and round once. Use the
 * model only on the rank's thread, with gradients off.
 */
public abstract sealed class TransformerModel implements AutoCloseable
        permits CudaModel, TorchModel {

    final RankModel model;
    final NDManager manager; // of the model's device

    TransformerModel(RankModel model, NDManager manager) {
        this.model = model;
        this.manager = manager;
    }

    /**
     * {@return the model, with kernels if there are some for it} Takes ownership of weights and
     * cache. All ranks call this at the same time.
     */
    public static TransformerModel create(
            ModelConfig config,
            ProcessGroup group,
            ModelWeights weights,
            KvCache cache,
            int maxLength,
            boolean batchInvariant) {
        NDManager manager = NDManager.newBaseManager(group.device());
        ModelKernels gpu = null;
        try {
            gpu = ModelKernels.create(config, group, weights.format(), batchInvariant).orElse(null);
            RotaryTables tables = new RotaryTables(config, manager, maxLength);
            RankModel model = new RankModel(config, group, weights, cache, tables, new Adapters());
            return gpu == null
                    ? new TorchModel(model, manager)
                    : new CudaModel(model, manager, gpu, batchInvariant);
        } catch (Throwable e) {
            manager.close();
            if (gpu != null) {
                gpu.close();
            }
            throw e;
        }
    }

    /**
     * {@return whether the model has kernels, which decode with CUDA graphs and sample on the GPU}
     */
    public abstract boolean hasDecoder();

    /** Makes {@link Logits#toArray} work for tokens that the device samples: for tests. */
    abstract void keepLogits();

    public int cacheSlots() {
        return model.cache().slots();
    }

    /**
     * Sets the adapters that chunks may name, by their ids: frees those that are not among them,
     * and reads new ones from their directories. All ranks call this between forward passes.
     *
     * @return the reasons why adapters could not be read, by id; the others are loaded
     */
    public Map<Integer, String> setAdapters(Map<Integer, Path> directories) {
        return model.adapters().set(model, directories);
    }

    /** {@return an upper estimate of the bytes of a rank's activations in a prefill} */
    public static long activationBytes(ModelConfig config, int ranks, int tokens, int maxLength) {
        long kvWidth = (long) WeightMap.kvHeads(config, ranks) * config.headSize();
        long qkvWidth = (long) config.heads() / ranks * config.headSize() + 2 * kvWidth;
        long inner = config.intermediateSize() / ranks;
        // Residuals, norms and gathered rows; queries, keys and values before and after attention;
        // gate, up and their product.
        long row = 8L * config.hiddenSize() + 3 * qkvWidth + 4 * inner;
        long attended = 4L * maxLength * kvWidth; // copies of a prefix for a later chunk
        long slots = (long) Long.BYTES * maxLength * Math.min(DecoderKernels.MAX_ROWS, tokens / 2);
        // Logits and, in float32, edited logits.
        long logits = DecoderKernels.MAX_ROWS * (long) config.vocabularySize();
        long logitBytes = logits * (2L * config.type().itemSize() + Float.BYTES);
        long scores = TorchAttention.byteSize(config, ranks, tokens, maxLength);
        long results =
                config.layerConfigs().stream()
                        .map(LayerConfig::mlp)
                        .filter(mlp -> mlp.experts() != null)
                        .mapToLong(mlp -> expertElements(config, ranks, tokens, mlp))
                        .max()
                        .orElse(0);
        return ((tokens + DecoderKernels.MAX_ROWS) * row + attended + results)
                        * config.type().itemSize()
                + logitBytes
                + (ModelKernels.computes(config) ? slots : scores);
    }

    /** Returns the elements of the rows of chosen experts, in decode steps and prefills. */
    private static long expertElements(
            ModelConfig config, int ranks, int tokens, LayerConfig.Mlp mlp) {
        int chosen = mlp.experts().chosen();
        long rows = DecoderKernels.MAX_ROWS + Math.min(tokens, WideExperts.MAX_PAIRS / chosen);
        return rows * chosen * (config.hiddenSize() + mlp.intermediateSize() / ranks);
    }

    /**
     * Computes a batch, and writes its keys and values to the cache. All ranks call this at the
     * same time. With kernels, the GPU may still be computing when this returns; few tokens of
     * prompts, and the last token of each prompt, run on the decode kernels.
     *
     * @param manager the manager of returned arrays, of any device
     * @return the logits of the chunks that need logits, on the model's device, in the order of the
     *     batch
     * @throws IllegalArgumentException if a sequence is longer than the maximum length
     */
    public Logits forward(TokenBatch batch, NDManager manager) {
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            int maxLength = model.tables().maxLength();
            if (chunk.length() > maxLength) {
                throw new IllegalArgumentException(
                        String.format(
                                "a sequence has %d tokens, and the model at most %d",
                                chunk.length(), maxLength));
            }
        }
        boolean isHere = manager.getDevice().equals(model.group().device());
        return compute(batch, isHere ? manager : manager.newSubManager(model.group().device()));
    }

    /** As {@link #forward}, with a manager of the model's device. */
    abstract Logits compute(TokenBatch batch, NDManager manager);

    @Override
    public void close() {
        manager.close();
        model.adapters().close();
        model.cache().close();
        model.weights().close();
    }
}
