// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDArrays;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.index.NDIndex;
import ai.djl.ndarray.types.Shape;
import java.util.HashMap;
import java.util.Map;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Rope;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/** The rotary embeddings of a model's layers, as tables of cosines and sines in float32. */
final class RotaryTables {

    private final ModelConfig config;
    private final int maxLength;
    private final Map<Rope, Tables> tables = new HashMap<>();

    /** Tables of one embedding, of shape (positions, 1, head size / 2). */
    record Tables(NDArray cosines, NDArray sines) {

        static Tables of(Rope rope, int headSize, int positions, NDManager manager) {
            int half = headSize / 2;
            float[] cosines = new float[positions * half];
            float[] sines = new float[positions * half];
            rope.fillTables(headSize, positions, cosines, sines);
            Shape shape = new Shape(positions, 1, half);
            return new Tables(manager.create(cosines, shape), manager.create(sines, shape));
        }

        Tables at(NDManager manager, NDIndex positions) {
            return new Tables(cosines.get(manager, positions), sines.get(manager, positions));
        }

        /**
         * Rotates element i of a head's first half with element i of its second half.
         *
         * @param heads of shape (positions, heads, head size)
         * @return the rotated heads in float32
         */
        NDArray rotate(NDArray heads) {
            long half = cosines.getShape().get(2);
            NDArray wide = Torch.cast(heads, ScalarType.FLOAT32);
            NDArray first = wide.get(new NDIndex().addAllDim(2).addSliceDim(0, half));
            NDArray second = wide.get(new NDIndex().addAllDim(2).addSliceDim(half, 2 * half));
            return NDArrays.concat(
                    new NDList(
                            first.mul(cosines).sub(second.mul(sines)),
                            second.mul(cosines).add(first.mul(sines))),
                    2);
        }
    }

    RotaryTables(ModelConfig config, NDManager manager, int maxLength) {
        this.config = config;
        this.maxLength = maxLength;
        for (LayerConfig layer : config.layerConfigs()) {
            tables.computeIfAbsent(
                    layer.attention().rope(),
                    rope -> Tables.of(rope, config.headSize(), maxLength, manager));
        }
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
        tables.forEach((rope, all) -> some.put(rope, all.at(manager, index)));
        return some;
    }
}
