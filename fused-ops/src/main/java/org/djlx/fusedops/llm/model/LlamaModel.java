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
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.NormedResidual;
import org.djlx.fusedops.internal.BlockMath;
import org.djlx.fusedops.llm.sampling.Logits;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * One rank's part of a Llama and its forward pass, for inference. Each rank has some of the heads
 * and of the MLP. What goes from layer to layer is either whole on all ranks, and partial results
 * are added up by all-reduces, or, if there are many tokens, divided among the ranks by tokens
 * (sequence parallelism), by all-gather + matmul and matmul + reduce-scatter.
 *
 * <p>Normalisations, rotations, softmax and the activation are computed in float32 and rounded
 * once. To be used by the rank's thread, with gradients off.
 */
public final class LlamaModel implements AutoCloseable {

    // From how many tokens for each rank on they are divided among ranks.
    private static final int SEQUENCE_TOKENS = 16;

    private final LlamaConfig config;
    private final ProcessGroup group;
    private final LlamaWeights weights;
    private final KvCache cache;
    private final NDManager manager;
    private final Attention attention;
    private final LlamaGpu gpu; // null if there are no kernels
    private final Decoder decoder; // likewise

    /** Takes the weights and the cache, which it closes. */
    public LlamaModel(
            LlamaConfig config,
            ProcessGroup group,
            LlamaWeights weights,
            KvCache cache,
            int maxLength) {
        this.config = config;
        this.group = group;
        this.weights = weights;
        this.cache = cache;
        manager = NDManager.newBaseManager(group.device());
        boolean done = false;
        LlamaGpu kernels = null;
        try {
            kernels = LlamaGpu.create(config, group).orElse(null);
            gpu = kernels;
            attention = new Attention(config, group.worldSize(), cache, gpu, manager, maxLength);
            decoder =
                    gpu == null
                            ? null
                            : new Decoder(config, group, weights, cache, gpu, attention, maxLength);
            done = true;
        } finally {
            if (!done) {
                manager.close();
                if (kernels != null) {
                    kernels.close();
                }
            }
        }
    }

    /** Tells whether tokens that follow others are decoded by CUDA graphs. */
    public boolean hasDecoder() {
        return decoder != null;
    }

    /**
     * Runs the tokens of a batch through the model, and writes their keys and values to the cache.
     * All ranks do, at the same time. Where there are kernels, few tokens of a sequence are
     * decoded, and the last of many goes through the last layer as such; they may still be computed
     * when this returns.
     *
     * @param all whether all scores of a sequence may be asked for, and not only the best
     * @param to the manager of arrays that are returned
     * @return the scores of what follows the chunks that want them
     */
    public Logits forward(TokenBatch batch, boolean all, NDManager to) {
        List<Logits> parts = new ArrayList<>();
        // Products of many rows are in another order for each number of them: so that a sequence
        // gets the same whatever others there are, long chunks are read one by one; without kernels
        // all chunks are, but in float32, where it hardly ever matters and takes many times longer.
        if (decoder == null) {
            if (config.type() == ScalarType.FLOAT32) {
                scores(batch, to).ifPresent(parts::add);
            } else {
                for (TokenBatch.Chunk chunk : batch.chunks()) {
                    scores(new TokenBatch(List.of(chunk)), to).ifPresent(parts::add);
                }
            }
            return Logits.joined(parts);
        }
        List<TokenBatch.Chunk> few = new ArrayList<>();
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            if (chunk.isDecoded()) {
                few.add(chunk);
            } else {
                decoder.await(); // It adds up what ranks have on another stream.
                read(chunk, all, to).ifPresent(parts::add);
            }
        }
        int ofMany = 0;
        int ofFew = parts.size();
        if (!few.isEmpty()) {
            parts.add(decoder.decode(few, all, to));
        }
        List<Integer> order = new ArrayList<>(); // in the batch, of those that are wanted
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            if (chunk.wanted()) {
                order.add(chunk.isDecoded() ? ofFew++ : ofMany++);
            }
        }
        return Logits.joined(parts).inOrder(order);
    }

    /** Computes scores in float32, of shape (chunks that want them, vocabulary), if any does. */
    private Optional<Logits> scores(TokenBatch batch, NDManager to) {
        try (NDManager step = manager.newSubManager()) {
            boolean divided = isDivided(batch.tokens());
            Attention.Step places = attention.step(step, batch);
            NDArray tokens = embed(step, batch, divided);
            NDArray norm = normalized(tokens, weights.layer(0).attentionNorm());
            Hidden hidden =
                    layers(step, new Hidden(tokens, norm), places, divided, config.layers());
            NDArray wanted = wanted(step, batch);
            if (wanted == null) {
                return Optional.empty();
            }
            NDArray last = divided ? gather(hidden.norm) : hidden.norm;
            NDArray scores = gatherColumns(rows(last, wanted).matMul(weights.head()));
            scores.attach(to);
            return Optional.of(Logits.of(scores));
        }
    }

    /**
     * Reads many tokens of a sequence where there are kernels. Of the last layer they leave keys
     * and values alone, but for the last token, if what follows it is wanted.
     */
    private Optional<Logits> read(TokenBatch.Chunk chunk, boolean all, NDManager to) {
        int count = chunk.tokens().length;
        boolean divided = isDivided(count);
        int last = config.layers() - 1;
        try (NDManager step = manager.newSubManager()) {
            LlamaGpu.Prompt prompt = LlamaGpu.prompt(step, chunk, rows(count, group.worldSize()));
            Attention.Step places = attention.step(step, chunk, prompt);
            NDArray tokens = combined(gpu.embed(prompt, weights), divided);
            NDArray norm = gpu.normalized(tokens, weights.layer(0).attentionNorm());
            Hidden hidden = layers(step, new Hidden(tokens, norm), places, divided, last);
            NDArray weight = attention.keysValues(step, weights.layer(last).queriesKeysValues());
            gpu.rotate(last, into(hidden.norm, weight, divided), cache, attention, prompt);
            if (!chunk.wanted()) {
                return Optional.empty();
            }
            long rows = hidden.residual.getShape().get(0);
            long row = count - 1;
            boolean here = row / rows == group.rank(); // Rank 0, if all ranks have all rows.
            return Optional.of(
                    decoder.finish(chunk, hidden.residual, here ? row % rows : -1, all, to));
        }
    }

    /**
     * Returns how many rows a prompt is filled up to: there are few such numbers, as what libtorch
     * and fused operators prepare for each is kept, and cuDNN's attention takes 45 ms for one that
     * it has not seen. They are a multiple of the ranks, and at most a sixteenth more than the
     * tokens, or what fills a tile of a product.
     */
    static int rows(int tokens, int ranks) {
        int step = Math.max(64, Integer.highestOneBit(tokens - 1) / 16);
        return multiple(multiple(tokens, step), ranks);
    }

    private static int multiple(int number, int of) {
        return (number + of - 1) / of * of;
    }

    private boolean isDivided(int tokens) {
        return group.worldSize() > 1 && tokens >= SEQUENCE_TOKENS * group.worldSize();
    }

    /** Runs tokens through the first layers. */
    private Hidden layers(
            NDManager step, Hidden first, Attention.Step places, boolean divided, int count) {
        Hidden hidden = first;
        for (int layer = 0; layer < count; layer++) {
            // What a layer computes is freed before the next.
            try (NDManager temporary = step.newSubManager()) {
                hidden.attach(temporary);
                hidden = layer(temporary, layer, hidden, places, divided);
                hidden.attach(step);
            }
        }
        return hidden;
    }

    /**
     * What goes from layer to layer, all of it or this rank's tokens.
     *
     * @param residual what each layer adds to
     * @param norm the same, normalised for the next
     */
    private record Hidden(NDArray residual, NDArray norm) {

        void attach(NDManager manager) {
            residual.attach(manager);
            norm.attach(manager);
        }
    }

    private Hidden layer(
            NDManager temporary, int index, Hidden hidden, Attention.Step places, boolean divided) {
        LlamaWeights.Layer layer = weights.layer(index);
        NDArray qkv = into(hidden.norm, layer.queriesKeysValues(), divided);
        NDArray heads = padded(attention.apply(temporary, index, qkv, places), qkv);
        Hidden attended =
                add(hidden.residual, heads, layer.attentionOut(), layer.mlpNorm(), divided);
        NDArray inner = activated(attended.norm, layer.gateUp(), divided);
        NDArray next =
                index + 1 < config.layers()
                        ? weights.layer(index + 1).attentionNorm()
                        : weights.norm();
        return add(attended.residual, inner, layer.down(), next, divided);
    }

    /** Multiplies with this rank's rows, adds that of all ranks to the residual, and normalises. */
    private Hidden add(NDArray residual, NDArray x, NDArray weight, NDArray norm, boolean divided) {
        if (divided) {
            NDArray sum = FusedOps.matmulReduceScatter(x, weight, ReduceOp.SUM, 0, group);
            if (gpu != null) {
                return new Hidden(sum, gpu.addAndNormalize(sum, residual, norm));
            }
            sum = residual.add(sum);
            return new Hidden(sum, normalized(sum, norm));
        }
        NormedResidual sum =
                FusedOps.allReduceRmsNorm(
                        x.matMul(weight), residual, norm, (float) config.epsilon(), group);
        return new Hidden(sum.residual(), sum.norm());
    }

    /** Looks tokens up: each rank those it has, and zeros for the others, which are added up. */
    private NDArray embed(NDManager step, TokenBatch batch, boolean divided) {
        int ranks = group.worldSize();
        int rows = divided ? multiple(batch.tokens(), ranks) : batch.tokens();
        int own = LlamaWeights.tokens(config, ranks);
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
        return combined(found.mul(mask), divided);
    }

    /** Multiplies all tokens with this rank's columns. */
    private NDArray into(NDArray x, NDArray weight, boolean divided) {
        return divided
                ? FusedOps.allGatherMatmul(x, List.of(weight), 0, group, false).outputs().get(0)
                : x.matMul(weight);
    }

    /** Adds up what ranks have; if divided, returns this rank's rows. */
    private NDArray combined(NDArray x, boolean divided) {
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

    private NDArray gather(NDArray x) {
        Shape shape = x.getShape();
        Shape whole = new Shape(shape.get(0) * group.worldSize(), shape.get(1));
        NDArray output = Torch.empty(x.getManager(), whole, Torch.scalarType(x));
        complete(group.allGatherIntoTensor(output, x));
        return output;
    }

    /** Puts the columns of all ranks side by side, without those that only fill up, in float32. */
    private NDArray gatherColumns(NDArray x) {
        int ranks = group.worldSize();
        Shape shape = x.getShape();
        NDArray all = ranks == 1 ? x : gather(x).reshape(ranks, shape.get(0), shape.get(1));
        NDArray rows =
                ranks == 1
                        ? all
                        : all.transpose(1, 0, 2).reshape(shape.get(0), ranks * shape.get(1));
        return Torch.cast(
                rows.get(new NDIndex().addAllDim().addSliceDim(0, config.vocabularySize())),
                ScalarType.FLOAT32);
    }

    /** Lets the caller go on when the result is there: on a GPU its stream, otherwise itself. */
    private void complete(Work work) {
        if (group.device().isGpu()) {
            work.blockCurrentStream();
        } else {
            work.await();
        }
    }

    private NDArray normalized(NDArray x, NDArray weight) {
        return BlockMath.rmsNorm(x, weight, (float) config.epsilon());
    }

    /** Returns {@code silu(gates) · values} of all tokens. */
    private NDArray activated(NDArray x, NDArray weight, boolean divided) {
        if (gpu != null && divided) {
            Optional<NDArray> gated = FusedOps.allGatherGated(x, weight, group);
            if (gated.isPresent()) {
                return gated.get();
            }
        }
        NDArray gateUp = into(x, weight, divided);
        if (gpu != null) {
            return gpu.activated(gateUp);
        }
        long inner = gateUp.getShape().get(1) / 2;
        NDArray gate = gateUp.get(new NDIndex().addAllDim().addSliceDim(0, inner));
        NDArray up = gateUp.get(new NDIndex().addAllDim().addSliceDim(inner, 2 * inner));
        return BlockMath.siluGate(gate, up);
    }

    /** Adds zeros for the tokens by which they were filled up to be divided. */
    private NDArray padded(NDArray x, NDArray like) {
        long missing = like.getShape().get(0) - x.getShape().get(0);
        if (missing == 0) {
            return x;
        }
        Shape shape = new Shape(missing, x.getShape().get(1));
        NDArray zeros =
                Torch.cast(x.getManager().zeros(shape, DataType.FLOAT32), Torch.scalarType(x));
        return NDArrays.concat(new NDList(x, zeros), 0);
    }

    /** Returns the rows of the last tokens of the chunks that want scores; null if none does. */
    private static NDArray wanted(NDManager step, TokenBatch batch) {
        long[] rows = new long[batch.chunks().size()];
        int count = 0;
        int row = 0;
        for (TokenBatch.Chunk chunk : batch.chunks()) {
            row += chunk.tokens().length;
            if (chunk.wanted()) {
                rows[count++] = row - 1;
            }
        }
        return count == 0 ? null : step.create(Arrays.copyOf(rows, count));
    }

    private static NDArray rows(NDArray x, NDArray indices) {
        return x.get(new NDIndex("{}", indices));
    }

    @Override
    public void close() {
        if (gpu != null) {
            decoder.close();
            gpu.close();
        }
        manager.close();
        cache.close();
        weights.close();
    }
}
