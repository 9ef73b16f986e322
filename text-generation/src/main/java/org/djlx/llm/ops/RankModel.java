// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** One rank's part of a model: what its operators share. */
record RankModel(
        ModelConfig config,
        ProcessGroup group,
        ModelWeights weights,
        KvCache cache,
        RotaryTables tables,
        Adapters adapters) {

    int ranks() {
        return group.worldSize();
    }

    int queryHeads() {
        return config.heads() / ranks();
    }

    int kvHeads() {
        return WeightMap.kvHeads(config, ranks());
    }

    /** Returns the number of tokens whose logits this rank computes, including padding. */
    int vocabularyPart() {
        return WeightMap.vocabularyPart(config, ranks());
    }

    float epsilon() {
        return (float) config.epsilon();
    }

    /**
     * Returns queries and keys of (tokens, heads, head size) after an RMSNorm over all heads of a
     * token, on all ranks. All ranks call this at the same time.
     */
    NDArray normAllHeads(NDArray heads, ModelWeights.Layer layer) {
        int size = config.headSize();
        long tokens = heads.getShape().get(0);
        NDArray queries = wide(heads, 0, queryHeads());
        NDArray keys = wide(heads, queryHeads(), kvHeads());
        int[] row = {1};
        NDArray squares =
                NDArrays.concat(
                        new NDList(queries.square().sum(row, true), keys.square().sum(row, true)),
                        1);
        if (ranks() > 1) {
            group.allReduce(squares, ReduceOp.SUM, false);
        }
        // If several ranks have a KV head, its squares count as often.
        float[] shares = {1f / (config.heads() * size), 1f / (ranks() * kvHeads() * size)};
        NDArray factors =
                squares.mul(heads.getManager().create(shares, new Shape(1, 2)))
                        .add(epsilon())
                        .pow(-0.5);
        NDArray normed =
                NDArrays.concat(
                        new NDList(
                                queries.mul(Torch.narrow(factors, 1, 0, 1))
                                        .mul(Torch.cast(layer.queryNorm(), ScalarType.FLOAT32)),
                                keys.mul(Torch.narrow(factors, 1, 1, 1))
                                        .mul(Torch.cast(layer.keyNorm(), ScalarType.FLOAT32))),
                        1);
        return Torch.cast(normed, Torch.scalarType(heads)).reshape(tokens, -1, size);
    }

    /** Returns some heads in float32, of shape (tokens, count · head size). */
    private NDArray wide(NDArray heads, long first, long count) {
        return Torch.cast(Torch.narrow(heads, 1, first, count), ScalarType.FLOAT32)
                .reshape(heads.getShape().get(0), count * config.headSize());
    }

    /** Returns a view of shape (tokens, heads, head size) of queries, keys and values. */
    NDArray splitHeads(NDArray qkv) {
        return qkv.reshape(-1, queryHeads() + 2L * kvHeads(), config.headSize());
    }

    /** Reshapes (1, heads, tokens, head size) to (tokens, heads · head size). */
    NDArray mergeHeads(NDArray headsFirst) {
        return headsFirst
                .transpose(0, 2, 1, 3)
                .reshape(-1, (long) queryHeads() * config.headSize());
    }

    /** Views (tokens, heads, head size) as (1, heads, tokens, head size). */
    static NDArray headsFirst(NDArray heads) {
        return heads.expandDims(0).transpose(0, 2, 1, 3);
    }

    NDArray gather(NDArray x) {
        Shape shape = x.getShape();
        Shape whole = new Shape(shape.get(0) * ranks(), shape.get(1));
        NDArray output = Torch.empty(x.getManager(), whole, Torch.scalarType(x));
        complete(group.allGatherIntoTensor(output, x));
        return output;
    }

    /** Waits for a collective: on a GPU the current stream waits, otherwise this thread. */
    void complete(Work work) {
        if (group.device().isGpu()) {
            work.blockCurrentStream();
        } else {
            work.await();
        }
    }
}
