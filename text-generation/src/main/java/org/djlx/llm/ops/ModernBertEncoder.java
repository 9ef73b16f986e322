// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.UnaryOperator;
import org.djlx.llm.model.EncoderConfig;
import org.djlx.llm.model.Rope;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** {@link EncoderConfig.ModernBert}. */
final class ModernBertEncoder extends PackedEncoder {

    // The queries that are computed at once in layers whose tokens attend to near ones.
    private static final long QUERY_BLOCK = 256;

    private final EncoderConfig.ModernBert config;
    private final NDArray words;
    private final EncoderWeights.Norm norm;
    private final List<Layer> layers = new ArrayList<>();
    private final EncoderWeights.Norm lastNorm;
    private final Map<Rope, RotaryTables.Tables> tables = new HashMap<>();

    /** A layer. {@code attentionNorm} does nothing in the first one. */
    private record Layer(
            UnaryOperator<NDArray> attentionNorm,
            DenseLayers queriesKeysValues,
            DenseLayers attentionOut,
            EncoderWeights.Norm norm,
            DenseLayers upGate,
            DenseLayers down) {}

    /** Queries {@code first} to {@code end} and the keys that they may attend to. */
    private record Block(long first, long end, long firstKey, long endKey) {

        /** Returns 0, or -infinity where keys are out of reach, of shape (queries, keys). */
        NDArray mask(NDManager manager, int reach) {
            NDArray queries = manager.arange((float) first, end).reshape(-1, 1);
            NDArray hidden = queries.sub(manager.arange((float) firstKey, endKey)).abs().gt(reach);
            NDArray infinities =
                    manager.create(Float.NEGATIVE_INFINITY).broadcast(hidden.getShape());
            return NDArrays.where(hidden, infinities, infinities.zerosLike());
        }
    }

    ModernBertEncoder(EncoderConfig.ModernBert config, EncoderWeights weights) {
        super(config.sizes(), weights);
        this.config = config;
        int hidden = sizes.hidden();
        words = weights.array("embeddings.tok_embeddings.weight", sizes.vocabulary(), hidden);
        norm = weights.normWithoutBias("embeddings.norm");
        for (int i = 0; i < sizes.layers(); i++) {
            String name = "layers." + i + ".";
            layers.add(
                    new Layer(
                            i == 0
                                    ? UnaryOperator.identity()
                                    : weights.normWithoutBias(name + "attn_norm")::apply,
                            dense(
                                    weights.projectionWithoutBias(
                                            hidden, 3L * hidden, name + "attn.Wqkv")),
                            dense(weights.projectionWithoutBias(hidden, hidden, name + "attn.Wo")),
                            weights.normWithoutBias(name + "mlp_norm"),
                            dense(
                                    weights.projectionWithoutBias(
                                            hidden, 2L * sizes.intermediate(), name + "mlp.Wi")),
                            dense(
                                    weights.projectionWithoutBias(
                                            sizes.intermediate(), hidden, name + "mlp.Wo"))));
            tables.computeIfAbsent(
                    config.layers().get(i).rope(),
                    rope ->
                            RotaryTables.Tables.of(
                                    rope, sizes.headSize(), sizes.maxLength(), weights.manager()));
        }
        lastNorm = weights.normWithoutBias("final_norm");
    }

    @Override
    NDArray encode(NDManager manager, List<int[]> sequences, List<Group> groups) {
        NDIndex positions = new NDIndex("{}", manager.create(positions(sequences, 0)));
        Map<Rope, RotaryTables.Tables> here = new HashMap<>();
        tables.forEach((rope, all) -> here.put(rope, all.at(manager, positions)));
        Map<Integer, UnaryOperator<NDArray>> attentions = new HashMap<>(); // by their reach
        NDArray x = norm.apply(rows(manager, words, tokens(sequences)));
        for (int i = 0; i < layers.size(); i++) {
            Layer layer = layers.get(i);
            EncoderConfig.ModernBert.Attention of = config.layers().get(i);
            try (NDManager activations = manager.newSubManager()) {
                x.attach(activations);
                NDArray heads = layer.queriesKeysValues.apply(layer.attentionNorm.apply(x));
                NDArray attended =
                        attentions
                                .computeIfAbsent(
                                        of.reach(), reach -> attention(manager, groups, reach))
                                .apply(rotate(heads, here.get(of.rope())));
                NDArray middle = layer.attentionOut.addTo(x, attended);
                NDArray inner = gated(layer.upGate.apply(layer.norm.apply(middle)));
                x = layer.down.addTo(middle, inner);
                x.attach(manager);
            }
        }
        return lastNorm.apply(x);
    }

    /** Returns the attention of tokens to those in reach; 0 for all. */
    private UnaryOperator<NDArray> attention(NDManager manager, List<Group> groups, int reach) {
        long longest = groups.get(groups.size() - 1).length();
        if (reach == 0 || longest <= reach + 1) {
            return attention(manager, groups);
        }
        if (hasFlashAttention) {
            return flashAttention(manager, groups, reach);
        }
        Map<Block, NDArray> masks = new HashMap<>();
        return x -> attend(x, groups, (q, k, v) -> attend(q, k, v, reach, manager, masks));
    }

    /** Rotates queries and keys; returns the shape (tokens, 3, heads, head size). */
    private NDArray rotate(NDArray heads, RotaryTables.Tables at) {
        long count = sizes.heads();
        NDArray all = heads.reshape(-1, 3 * count, sizes.headSize());
        NDArray rotated = at.rotate(Torch.narrow(all, 1, 0, 2 * count));
        NDArray values = Torch.narrow(all, 1, 2 * count, count);
        NDList parts = new NDList(Torch.cast(rotated, Torch.scalarType(all)), values);
        return NDArrays.concat(parts, 1).reshape(-1, 3, count, sizes.headSize());
    }

    private NDArray gated(NDArray upGate) {
        NDArray up = Torch.narrow(upGate, 1, 0, sizes.intermediate());
        return activate(sizes.activation(), up)
                .mul(Torch.narrow(upGate, 1, sizes.intermediate(), sizes.intermediate()));
    }

    private static NDArray attend(
            NDArray queries,
            NDArray keys,
            NDArray values,
            int reach,
            NDManager manager,
            Map<Block, NDArray> masks) {
        long length = queries.getShape().get(2);
        if (length <= reach + 1) {
            return Torch.attention(queries, keys, values, false);
        }
        float scale = (float) (1 / Math.sqrt(queries.getShape().get(3)));
        NDList outputs = new NDList();
        for (long first = 0; first < length; first += QUERY_BLOCK) {
            long end = Math.min(length, first + QUERY_BLOCK);
            Block block =
                    new Block(
                            first, end, Math.max(0, first - reach), Math.min(length, end + reach));
            long count = block.endKey - block.firstKey;
            NDArray near = Torch.narrow(keys, 2, block.firstKey, count);
            NDArray products =
                    Torch.narrow(queries, 2, first, end - first).matMul(near.transpose(0, 1, 3, 2));
            NDArray scores =
                    Torch.cast(products, ScalarType.FLOAT32)
                            .mul(scale)
                            .add(masks.computeIfAbsent(block, of -> of.mask(manager, reach)));
            NDArray shares = Torch.cast(scores.softmax(-1), Torch.scalarType(queries));
            outputs.add(shares.matMul(Torch.narrow(values, 2, block.firstKey, count)));
        }
        return NDArrays.concat(outputs, 2);
    }
}
