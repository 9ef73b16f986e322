// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.WeightMap;
import org.djlx.nativeops.torch.Torch;

/** One rank's part of a model: what its operators share. */
record RankModel(
        ModelConfig config,
        ProcessGroup group,
        ModelWeights weights,
        KvCache cache,
        RotaryTables tables) {

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
