// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.ParameterStore;
import java.util.ArrayList;
import java.util.List;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;

/** Forward passes of a block with a rank's arrays, and cuts of their graph. */
public final class ForwardPass {

    private ForwardPass() {}

    /** Runs a block on copies of the lists, as blocks such as DJL's LSTM add arrays to theirs. */
    public static NDList forward(Block block, ParameterStore store, NDList data, NDList labels) {
        NDList list = new NDList(data);
        return labels == null
                ? block.forward(store, list, true)
                : block.forward(store, list, new NDList(labels), null);
    }

    public static NDList evaluate(Block block, ParameterStore store, NDList data) {
        return block.forward(store, new NDList(data), false, null);
    }

    /** Returns copies of arrays, which a block may change; null for null. */
    public static NDList copy(NDList arrays, NDManager manager) {
        NDList copies = arrays == null ? null : new NDList();
        for (int k = 0; arrays != null && k < arrays.size(); k++) {
            NDArray copy = NoGradient.get(arrays.get(k)::duplicate);
            copy.attach(manager);
            copy.setName(arrays.get(k).getName());
            copies.add(copy);
        }
        return copies;
    }

    public static void collect(Block block, List<Block> stages) {
        boolean chain =
                block.getClass() == SequentialBlock.class
                        && !((SequentialBlock) block).isReturnIntermediate();
        if (chain) {
            block.getChildren().values().forEach(child -> collect(child, stages));
        } else {
            stages.add(block);
        }
    }

    /**
     * Cuts the graph at arrays. The backward pass calls {@code reached} even if none is recorded.
     */
    public static NDList cut(
            GradientScope scope, NDList arrays, List<NDArray> recorded, Runnable reached) {
        NDList result = new NDList();
        List<NDArray> leaves = new ArrayList<>();
        for (NDArray array : arrays) {
            if (!Torch.requiresGradient(array)) {
                result.add(array);
                continue;
            }
            NDArray leaf = array.stopGradient();
            leaf.setName(array.getName());
            leaves.add(leaf);
            result.add(leaf);
        }
        if (leaves.isEmpty()) {
            leaves.add(arrays.head().getManager().zeros(new Shape()));
        }
        scope.record(
                "a block of a SequentialBlock",
                recorded,
                List.of(),
                leaves,
                (inputs, kept, gradients) -> {
                    reached.run();
                    return gradients.subList(0, inputs.size());
                });
        return result;
    }
}
