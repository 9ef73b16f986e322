// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.util.HashMap;
import java.util.Map;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Rope;

/** The rotary embeddings of a model's layers, as tables of cosines and sines in float32. */
final class RotaryTables {

    private final ModelConfig config;
    private final int maxLength;
    private final Map<Rope, Tables> tables = new HashMap<>();

    /** Tables of one embedding, of shape (positions, 1, head size / 2). */
    record Tables(NDArray cosines, NDArray sines) {}

    RotaryTables(ModelConfig config, NDManager manager, int maxLength) {
        this.config = config;
        this.maxLength = maxLength;
        for (LayerConfig layer : config.layerConfigs()) {
            tables.computeIfAbsent(layer.attention().rope(), rope -> tables(rope, manager));
        }
    }

    private Tables tables(Rope rope, NDManager manager) {
        int half = config.headSize() / 2;
        float[] cosines = new float[maxLength * half];
        float[] sines = new float[maxLength * half];
        rope.fillTables(config.headSize(), maxLength, cosines, sines);
        Shape shape = new Shape(maxLength, 1, half);
        return new Tables(manager.create(cosines, shape), manager.create(sines, shape));
    }

    int maxLength() {
        return maxLength;
    }

    Tables of(int layer) {
        return tables.get(config.layer(layer).attention().rope());
    }

    /** Returns the tables of all embeddings at some positions. */
    Map<Rope, Tables> at(NDManager manager, long[] positions) {
        NDIndex index = new NDIndex("{}", manager.create(positions));
        Map<Rope, Tables> some = new HashMap<>();
        tables.forEach(
                (rope, all) ->
                        some.put(
                                rope,
                                new Tables(
                                        all.cosines.get(manager, index),
                                        all.sines.get(manager, index))));
        return some;
    }
}
