// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.NormedResidual;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.WeightMap;
import org.djlx.llm.sampling.Logits;
import org.djlx.nativeops.torch.BlockMath;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One rank's part of a model, and its forward pass for inference. Tensor parallel: each rank has
 * some of the heads and a part of the MLP. Between layers, the hidden state is either
 *
 * <ul>
 *   <li>complete on all ranks, and partial sums are combined by all-reduce; or,
 *   <li>with many tokens, divided among ranks by tokens (sequence parallelism), and layers use
 *       all-gather + matmul and matmul + reduce-scatter.
 * </ul>
 *
 * <p>RMSNorm, rotary embedding, softmax and activation compute in float32 and round once. Use the
 * model only on the rank's thread, with gradients off.
 */
public final class TransformerModel implements AutoCloseable {

    // The minimum number of tokens per rank for sequence parallelism.
    private static final int SEQUENCE_PARALLEL_TOKENS = 16;

    private final ModelConfig config;
    private final ProcessGroup group;
    private final ModelWeights weights;
    private final boolean batchInvariant;
    private final KvCache cache;
    private final NDManager manager;
    private final Attention attention;
    private final ModelKernels gpu; // null if the model has no kernels
    private final Decoder decoder; // null if the model has no kernels
    private final CpuDecoder cpuDecoder; // null on GPUs, and if libtorch decodes

    /**
     * Creates the model. Takes ownership of weights and cache.
     *
     * @param config the configuration
     * @param group the ranks
     * @param weights this rank's weights
     * @param cache this rank's KV cache
     * @param maxLength the maximum number of tokens of a sequence
     * @param batchInvariant whether kernels give a sequence the same bits in every batch; see
     *     {@link org.djlx.llm.engine.TextEngine.Builder#optBatchInvariant}
     */
    public TransformerModel(
            ModelConfig config,
            ProcessGroup group,
            ModelWeights weights,
            KvCache cache,
            int maxLength,
            boolean batchInvariant) {
        this.config = config;
        this.group = group;
        this.weights = weights;
        this.batchInvariant = batchInvariant;
        this.cache = cache;
        manager = NDManager.newBaseManager(group.device());
        ModelKernels kernels = null;
        try {
            kernels =
                    ModelKernels.create(config, group, weights.quantization(), batchInvariant)
                            .orElse(null);
            gpu = kernels;
            attention = new Attention(config, group.worldSize(), cache, gpu, manager, maxLength);
            decoder =
                    gpu == null
                            ? null
                            : new Decoder(
                                    config,
                                    group,
                                    weights,
                                    cache,
                                    gpu,
                                    attention,
                                    maxLength,
                                    batchInvariant);
            cpuDecoder =
                    CpuDecoder.supports(group.device())
                            ? new CpuDecoder(config, group, weights, cache, attention, manager)
                            : null;
        } catch (Throwable e) {
            manager.close();
            if (kernels != null) {
                kernels.close();
            }
            throw e;
        }
    }

    /**
     * {@return whether the model has kernels, which decode with CUDA graphs and sample on the GPU}
     */
    public boolean hasDecoder() {
        return decoder != null;
    }

    /** Makes {@link Logits#toArray} work for tokens that the device samples: for tests. */
    void keepLogits() {
        if (hasDecoder()) {
            decoder.keepLogits();
        }
    }

    /** {@return the slots of the KV cache} */
    public int cacheSlots() {
        return cache.slots();
    }

    /**
     * {@return an upper estimate of the bytes of a rank's activations in a prefill}
     *
     * @param config the configuration
     * @param ranks the number of ranks
     * @param tokens the tokens of the prefill
     * @param maxLength the maximum number of tokens of a sequence
     */
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
        long scores = Attention.byteSize(config, ranks, tokens, maxLength);
        return ((tokens + DecoderKernels.MAX_ROWS) * row + attended) * config.type().itemSize()
                + logitBytes
                + (ModelKernels.computes(config) ? slots : scores);
    }

    /**
     * Computes a batch, and writes its keys and values to the cache. All ranks call this at the
     * same time. With kernels, the GPU may still be computing when this returns; few tokens of
     * prompts, and the last token of each prompt, run on the decode kernels.
     *
     * @param batch the tokens
     * @param manager the manager of returned arrays, of any device
     * @return the logits of the chunks that need logits, on the model's device, in the order of the
     *     batch
     * @throws IllegalArgumentException if a sequence is longer than the maximum length
     */
    public Logits forward(TokenBatch batch, NDManager manager) {
        if (!manager.getDevice().equals(group.device())) {
            return forward(batch, manager.newSubManager(group.device()));
        }
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            if (chunk.length() > attention.maxLength()) {
                throw new IllegalArgumentException(
                        String.format(
                                "a sequence has %d tokens, and the model at most %d",
                                chunk.length(), attention.maxLength()));
            }
        }
        // The order of summation in a matmul depends on its number of rows. Without kernels the
        // logits of a sequence must not depend on the batch: single tokens take the kernels of
        // CPUs, other chunks are computed one by one; together only in float32, where the
        // difference hardly matters. With kernels see TokenBatch.prefills.
        List<Logits> parts = new ArrayList<>();
        if (decoder == null) {
            List<TokenBatch.Chunk> rest = batch.chunks();
            if (cpuDecoder != null && batch.decodes() > 0) {
                NDArray own = cpuDecoder.decode(rest.subList(0, batch.decodes()), manager);
                if (own != null) {
                    parts.add(Logits.of(complete(own, manager)));
                }
                rest = rest.subList(batch.decodes(), rest.size());
            }
            boolean together = config.type() == ScalarType.FLOAT32 && !rest.isEmpty();
            for (List<TokenBatch.Chunk> chunks :
                    together ? List.of(rest) : rest.stream().map(List::of).toList()) {
                forwardOnTorch(new TokenBatch(chunks), manager).ifPresent(parts::add);
            }
            return Logits.concat(parts);
        }
        List<TokenBatch.Chunk> decodes = new ArrayList<>(batch.chunks());
        List<TokenBatch.Chunk> computed = new ArrayList<>();
        for (List<TokenBatch.Chunk> chunks : batch.prefills(!batchInvariant)) {
            decoder.await(); // Its all-reduces of the same group run on another stream.
            prefill(chunks).ifPresent(parts::add);
            decodes.removeAll(chunks);
            computed.addAll(chunks);
        }
        if (!decodes.isEmpty()) {
            parts.add(decoder.decode(decodes));
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

    /**
     * Computes a batch with libtorch. Returns the logits of the chunks that need logits; may be
     * empty.
     */
    private Optional<Logits> forwardOnTorch(TokenBatch batch, NDManager manager) {
        try (NDManager step = this.manager.newSubManager()) {
            boolean divided = isDivided(batch.tokens());
            Attention.Metadata metadata = attention.metadata(step, batch);
            NDArray tokens = scaled(embed(step, batch, divided));
            NDArray norm = rmsNorm(tokens, weights.layer(0).attentionNorm());
            Hidden hidden =
                    layers(
                            step,
                            new Hidden(tokens, new Operand(norm)),
                            metadata,
                            divided,
                            config.layers());
            NDArray rows = logitsRows(step, batch);
            if (rows == null) {
                return Optional.empty();
            }
            NDArray norms = hidden.norm.elements();
            NDArray last = divided ? gather(norms) : norms;
            NDArray selected = last.get(new NDIndex("{}", rows));
            return Optional.of(Logits.of(complete(weights.output().multiply(selected), manager)));
        }
    }

    /** Returns the logits of all ranks' parts of the vocabulary, in float32. */
    private NDArray complete(NDArray own, NDManager manager) {
        NDArray logits = BlockMath.cap(gatherColumns(own), config.logitCap());
        logits.attach(manager);
        return logits;
    }

    /**
     * Computes chunks of several sequences with kernels. The last layer computes keys and values
     * only, except for the last tokens of chunks that need logits.
     *
     * @param chunks first chunks of prompts, then later ones
     */
    private Optional<Logits> prefill(List<TokenBatch.Chunk> chunks) {
        int count = chunks.stream().mapToInt(chunk -> chunk.tokens().length).sum();
        boolean divided = isDivided(count);
        int last = config.layers() - 1;
        try (NDManager step = this.manager.newSubManager()) {
            ModelKernels.PrefillInputs inputs =
                    ModelKernels.inputs(step, chunks, paddedRows(count, group.worldSize()));
            Attention.Metadata metadata = attention.metadata(step, chunks, inputs);
            NDArray tokens = sum(gpu.embed(inputs, weights), divided);
            Operand norm = gpu.rmsNorm(tokens, weights.layer(0).attentionNorm());
            Hidden hidden = layers(step, new Hidden(tokens, norm), metadata, divided, last);
            ModelWeights.Layer layer = weights.layer(last);
            ModelWeights.Linear keysAndValues =
                    attention.keysAndValues(step, layer.queriesKeysValues());
            NDArray keysValues = columnParallel(hidden.norm, keysAndValues, divided);
            gpu.rotate(last, layer, keysValues, cache, attention, inputs);
            long rows = hidden.residual.getShape().get(0);
            long[] lastRows = new long[chunks.size()];
            List<TokenBatch.Chunk> ends = new ArrayList<>();
            long row = -1;
            for (TokenBatch.Chunk chunk : chunks) {
                row += chunk.tokens().length;
                if (chunk.needsLogits()) {
                    // Rank 0, if all ranks have all rows.
                    boolean isHere = row / rows == group.rank();
                    lastRows[ends.size()] = isHere ? row % rows : -1;
                    ends.add(chunk);
                }
            }
            return ends.isEmpty()
                    ? Optional.empty()
                    : Optional.of(decoder.finishPrefill(ends, hidden.residual, lastRows));
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

    /** Returns whether sequence parallelism is used. */
    private boolean isDivided(int tokens) {
        return group.worldSize() > 1 && tokens >= SEQUENCE_PARALLEL_TOKENS * group.worldSize();
    }

    /** Computes the first layers. */
    private Hidden layers(
            NDManager step, Hidden first, Attention.Metadata metadata, boolean divided, int count) {
        Hidden hidden = first;
        for (int layer = 0; layer < count; layer++) {
            // Frees the activations of a layer before the next.
            try (NDManager temporary = step.newSubManager()) {
                hidden.attach(temporary);
                hidden = layer(temporary, layer, hidden, metadata, divided);
                hidden.attach(step);
            }
        }
        return hidden;
    }

    /**
     * The hidden state between layers: of all tokens, or of this rank's tokens.
     *
     * @param residual the residual stream
     * @param norm the RMSNorm of {@code residual} for the next layer
     */
    private record Hidden(NDArray residual, Operand norm) {

        void attach(NDManager manager) {
            residual.attach(manager);
            norm.attach(manager);
        }
    }

    private Hidden layer(
            NDManager temporary,
            int index,
            Hidden hidden,
            Attention.Metadata metadata,
            boolean divided) {
        ModelWeights.Layer layer = weights.layer(index);
        NDArray qkv = columnParallel(hidden.norm, layer.queriesKeysValues(), divided);
        NDArray heads = pad(attention.apply(temporary, index, layer, qkv, metadata), qkv);
        Hidden attended =
                add(
                        hidden.residual,
                        rowParallel(new Operand(heads), layer.attentionOut(), divided),
                        layer.attentionPostNorm(),
                        layer.mlpNorm(),
                        divided);
        LayerConfig.Mlp mlp = config.layer(index).mlp();
        NDArray changes =
                layer.router() == null
                        ? rowParallel(
                                activated(attended.norm, layer.mlp().gateUp(), mlp, divided),
                                layer.mlp().down(),
                                divided)
                        : experts(attended.norm.elements(), layer, mlp, divided);
        NDArray next =
                index + 1 < config.layers()
                        ? weights.layer(index + 1).attentionNorm()
                        : weights.norm();
        return add(attended.residual, changes, layer.mlpPostNorm(), next, divided);
    }

    /**
     * Multiplies by this rank's rows of a weight. Returns the rank's partial sum; with sequence
     * parallelism the sum over all ranks, of this rank's rows.
     */
    private NDArray rowParallel(Operand x, ModelWeights.Linear linear, boolean divided) {
        NDArray sum =
                divided && linear.isFusible()
                        ? FusedOps.matmulReduceScatter(
                                x.elements(), linear.weight(), ReduceOp.SUM, 0, group)
                        : divided ? sum(multiply(x, linear), true) : multiply(x, linear);
        boolean biased = linear.bias() != null && (divided || group.rank() == 0);
        return biased ? sum.addi(linear.bias()) : sum;
    }

    /**
     * Adds a {@link #rowParallel} result to the residual, and applies RMSNorm.
     *
     * @param postNorm the norm of the result; null if there is none
     * @param norm the norm of the sum
     */
    private Hidden add(
            NDArray residual, NDArray x, NDArray postNorm, NDArray norm, boolean divided) {
        boolean alone = gpu != null && group.worldSize() == 1;
        if (!divided && postNorm == null && !alone) {
            NormedResidual sum =
                    FusedOps.allReduceRmsNorm(x, residual, norm, (float) config.epsilon(), group);
            return new Hidden(sum.residual(), new Operand(sum.norm()));
        }
        if (gpu != null) { // Then there is no norm of the result.
            return new Hidden(x, gpu.addRmsNorm(x, residual, norm));
        }
        NDArray complete = divided ? x : sum(x, false);
        NDArray sum = residual.add(postNorm == null ? complete : rmsNorm(complete, postNorm));
        return new Hidden(sum, new Operand(rmsNorm(sum, norm)));
    }

    /**
     * Computes a mixture of experts: each rank computes its part of every expert. The host chooses
     * the experts, all ranks the same.
     *
     * @return as {@link #rowParallel}
     */
    private NDArray experts(
            NDArray x, ModelWeights.Layer layer, LayerConfig.Mlp mlp, boolean divided) {
        NDArray all = divided ? gather(x) : x;
        NDArray scores = Torch.cast(all.matMul(layer.router()), ScalarType.FLOAT32);
        Map<Integer, ExpertRouter> routes =
                ExpertRouter.route(mlp.experts(), scores.toFloatArray());
        NDManager manager = all.getManager();
        NDArray sum = manager.zeros(all.getShape());
        for (Map.Entry<Integer, ExpertRouter> route : routes.entrySet()) {
            try (NDManager temporary = manager.newSubManager()) {
                ModelWeights.Mlp expert = layer.mlps().get(route.getKey());
                ExpertRouter chosen = route.getValue();
                NDIndex rows = new NDIndex("{}", temporary.create(chosen.tokens()));
                NDArray own = all.get(temporary, rows);
                NDArray inner = gated(expert.gateUp().multiply(own), mlp);
                NDArray result =
                        Torch.cast(expert.down().multiply(inner), ScalarType.FLOAT32)
                                .mul(temporary.create(chosen.weights()).expandDims(1));
                sum.set(rows, sum.get(temporary, rows).add(result));
            }
        }
        NDArray partial = Torch.cast(sum, config.type());
        return divided ? sum(partial, true) : partial;
    }

    /**
     * Looks up the embedding: each rank looks up its part of the vocabulary, with zeros for other
     * tokens; the results are summed.
     */
    private NDArray embed(NDManager step, TokenBatch batch, boolean divided) {
        int ranks = group.worldSize();
        int rows = divided ? roundUp(batch.tokens(), ranks) : batch.tokens();
        int own = WeightMap.vocabularyPart(config, ranks);
        int first = own * group.rank();
        long[] ids = new long[rows];
        float[] factors = new float[rows];
        int row = 0;
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            for (int token : chunk.tokens()) {
                boolean here = token >= first && token - first < own;
                ids[row] = here ? token - first : 0;
                factors[row++] = here ? 1 : 0;
            }
        }
        NDArray found = weights.embedding().get(step, new NDIndex("{}", step.create(ids)));
        if (ranks == 1) {
            return found;
        }
        NDArray mask = Torch.cast(step.create(factors, new Shape(rows, 1)), config.type());
        return sum(found.mul(mask), divided);
    }

    /** Multiplies embeddings by their scale, rounded to their type. */
    private NDArray scaled(NDArray tokens) {
        if (config.embeddingScale() == 1) {
            return tokens;
        }
        NDArray scale = tokens.getManager().create((float) config.embeddingScale());
        return tokens.mul(Torch.cast(scale, config.type()));
    }

    private NDArray multiply(Operand x, ModelWeights.Linear linear) {
        return gpu == null ? linear.multiply(x.elements()) : gpu.multiply(x, linear);
    }

    /** Multiplies all tokens by this rank's columns of the weight, and adds the bias. */
    private NDArray columnParallel(Operand x, ModelWeights.Linear linear, boolean divided) {
        NDArray product;
        if (divided && linear.isFusible()) {
            List<NDArray> products =
                    FusedOps.allGatherMatmul(x.elements(), linear.weights(), 0, group, false)
                            .outputs();
            product =
                    products.size() == 1
                            ? products.get(0)
                            : NDArrays.concat(new NDList(products), 1);
        } else {
            product = multiply(divided ? new Operand(gather(x.elements())) : x, linear);
        }
        return linear.bias() == null ? product : product.addi(linear.bias());
    }

    /** Returns the sum over all ranks; with sequence parallelism, only this rank's rows. */
    private NDArray sum(NDArray x, boolean divided) {
        if (group.worldSize() == 1) {
            return x;
        }
        if (!divided) {
            group.allReduce(x, ReduceOp.SUM, false);
            return x;
        }
        Shape shape = x.getShape();
        Shape part = new Shape(shape.get(0) / group.worldSize(), shape.get(1));
        NDArray output = Torch.empty(x.getManager(), part, config.type());
        complete(group.reduceScatterTensor(output, x, ReduceOp.SUM));
        return output;
    }

    /** Returns the rows of all ranks. */
    private NDArray gather(NDArray x) {
        Shape shape = x.getShape();
        Shape whole = new Shape(shape.get(0) * group.worldSize(), shape.get(1));
        NDArray output = Torch.empty(x.getManager(), whole, Torch.scalarType(x));
        complete(group.allGatherIntoTensor(output, x));
        return output;
    }

    /** Returns the columns of all ranks, without padding, in float32; or x if that is the same. */
    private NDArray gatherColumns(NDArray x) {
        int ranks = group.worldSize();
        Shape shape = x.getShape();
        NDArray all = ranks == 1 ? x : gather(x).reshape(ranks, shape.get(0), shape.get(1));
        NDArray rows =
                ranks == 1
                        ? all
                        : all.transpose(1, 0, 2).reshape(shape.get(0), ranks * shape.get(1));
        long columns = config.vocabularySize();
        if (rows.getShape().get(1) == columns && Torch.scalarType(rows) == ScalarType.FLOAT32) {
            return rows;
        }
        return Torch.cast(
                rows.get(new NDIndex().addAllDim().addSliceDim(0, columns)), ScalarType.FLOAT32);
    }

    /** Waits for a collective: on a GPU the current stream waits, otherwise this thread. */
    private void complete(Work work) {
        if (group.device().isGpu()) {
            work.blockCurrentStream();
        } else {
            work.await();
        }
    }

    private NDArray rmsNorm(NDArray x, NDArray weight) {
        return BlockMath.rmsNorm(x, weight, (float) config.epsilon());
    }

    /** Returns {@code activation(gate) · up} of all tokens. */
    private Operand activated(
            Operand x, ModelWeights.Linear linear, LayerConfig.Mlp mlp, boolean divided) {
        if (gpu != null && divided && linear.bias() == null && linear.quantized() == null) {
            Optional<NDArray> gated = FusedOps.allGatherGated(x.elements(), linear.weight(), group);
            if (gated.isPresent()) {
                return new Operand(gated.get());
            }
        }
        NDArray gateUp = columnParallel(x, linear, divided);
        return gpu == null ? new Operand(gated(gateUp, mlp)) : gpu.siluAndMul(gateUp);
    }

    private static NDArray gated(NDArray gateUp, LayerConfig.Mlp mlp) {
        long inner = gateUp.getShape().get(1) / 2;
        NDArray gate = gateUp.get(new NDIndex().addAllDim().addSliceDim(0, inner));
        NDArray up = gateUp.get(new NDIndex().addAllDim().addSliceDim(inner, 2 * inner));
        return mlp.activation() == LayerConfig.Activation.SILU
                ? BlockMath.siluGate(gate, up)
                : BlockMath.geluGate(gate, up);
    }

    /** Appends rows of zeros, up to the number of rows of another array. */
    private NDArray pad(NDArray x, NDArray like) {
        long missing = like.getShape().get(0) - x.getShape().get(0);
        if (missing == 0) {
            return x;
        }
        Shape shape = new Shape(missing, x.getShape().get(1));
        NDArray zeros =
                Torch.cast(x.getManager().zeros(shape, DataType.FLOAT32), Torch.scalarType(x));
        return NDArrays.concat(new NDList(x, zeros), 0);
    }

    /** Returns the rows of the last tokens of chunks that need logits; null if there are none. */
    private static NDArray logitsRows(NDManager step, TokenBatch batch) {
        long[] rows = new long[batch.chunks().size()];
        int count = 0;
        int row = 0;
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            row += chunk.tokens().length;
            if (chunk.needsLogits()) {
                rows[count++] = row - 1;
            }
        }
        return count == 0 ? null : step.create(Arrays.copyOf(rows, count));
    }

    @Override
    public void close() {
        if (gpu != null) {
            decoder.close();
            gpu.close();
        }
        if (cpuDecoder != null) {
            cpuDecoder.close();
        }
        manager.close();
        cache.close();
        weights.close();
    }
}
