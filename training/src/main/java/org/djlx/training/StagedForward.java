// SPDX-License-Identifier: Apache-2.0
package org.djlx.training;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import ai.djl.training.ParameterStore;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;

/**
 * A forward pass of one rank whose graph is cut between the blocks of a {@link SequentialBlock}.
 * The backward pass runs from cut to cut. At each cut the gradients of all later blocks are
 * complete, so they are reduced while the gradients of earlier blocks are computed.
 */
final class StagedForward {

    private final Replica replica;
    private final GradientBuckets buckets;
    private final Supplier<ReductionTime> time;
    private int passes; // forward passes whose backward pass has not ended

    StagedForward(Replica replica, GradientBuckets buckets, Supplier<ReductionTime> time) {
        this.replica = replica;
        this.buckets = buckets;
        this.time = time;
    }

    NDList run(Block block, NDList data, NDList labels) {
        GradientScope scope = GradientScope.current().orElse(null);
        List<Block> stages = new ArrayList<>();
        collect(block, stages);
        if (scope == null || stages.size() < 2) {
            return forward(block, replica.store(), data, labels);
        }
        Map<NDArray, Integer> indices = buckets.indicesByArray(replica.trained());
        if (indices.values().stream().allMatch(bucket -> bucket == 0)) {
            return forward(block, replica.store(), data, labels); // There is nothing to overlap.
        }
        List<Set<Parameter>> complete = complete(stages, indices);
        boolean cut = false;
        NDList current = data;
        for (int i = 0; i < stages.size(); i++) {
            Set<Parameter> parameters = complete.get(i);
            List<NDArray> recorded =
                    parameters.isEmpty()
                            ? List.of()
                            : current.stream().filter(Torch::requiresGradient).toList();
            if (!recorded.isEmpty()) {
                boolean first = !cut;
                Runnable reached = () -> ready(parameters, first);
                current = cut(scope, current, recorded, reached);
                if (first) {
                    passes++;
                }
                cut = true;
            }
            current = forward(stages.get(i), replica.store(), current, labels);
        }
        return current;
    }

    /**
     * Marks gradients as complete in a backward pass, which ends here if {@code last}. They are
     * reduced if no other pass adds to them.
     */
    private void ready(Set<Parameter> complete, boolean last) {
        if (passes == 1 && time.get() == ReductionTime.WITHIN_PASS) {
            buckets.ready(
                    complete.stream()
                            .map(replica.store()::array)
                            // Two parameters share this array: the other one may still add to it.
                            .filter(array -> !replica.isShared(array))
                            .toList());
        }
        if (last) {
            passes--;
        }
    }

    void discardPasses() {
        passes = 0;
    }

    /** Runs a block on copies of the lists, as blocks such as DJL's LSTM add arrays to theirs. */
    static NDList forward(Block block, ParameterStore store, NDList data, NDList labels) {
        NDList list = new NDList(data);
        return labels == null
                ? block.forward(store, list, true)
                : block.forward(store, list, new NDList(labels), null);
    }

    static NDList evaluate(Block block, ParameterStore store, NDList data) {
        return block.forward(store, new NDList(data), false, null);
    }

    /** Returns copies of arrays, which a block may change; null for null. */
    static NDList copy(NDList arrays, NDManager manager) {
        NDList copies = arrays == null ? null : new NDList();
        for (int k = 0; arrays != null && k < arrays.size(); k++) {
            NDArray copy = NoGradient.get(arrays.get(k)::duplicate);
            copy.attach(manager);
            copy.setName(arrays.get(k).getName());
            copies.add(copy);
        }
        return copies;
    }

    static void collect(Block block, List<Block> stages) {
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
     * Returns, for each stage, the parameters whose gradients are complete after its backward pass.
     * A stage that completes no bucket has none: an earlier stage has its parameters, as a cut that
     * starts no reduction only costs time. Empties {@code indices}, the bucket of each trained
     * array.
     */
    private List<Set<Parameter>> complete(List<Block> stages, Map<NDArray, Integer> indices) {
        Set<Parameter> before = new HashSet<>(); // Blocks may share parameters.
        List<Set<Parameter>> complete = new ArrayList<>();
        for (Block stage : stages) {
            Set<Parameter> own = new HashSet<>(stage.getParameters().values());
            own.removeAll(before);
            before.addAll(own);
            complete.add(own);
        }
        Map<Integer, Integer> missing = new HashMap<>(); // by bucket
        indices.values().forEach(bucket -> missing.merge(bucket, 1, Integer::sum));
        for (int i = stages.size() - 1; i > 0; i--) {
            boolean full = false;
            for (Parameter parameter : complete.get(i)) {
                Integer bucket = indices.remove(replica.store().array(parameter));
                full |= bucket != null && missing.merge(bucket, -1, Integer::sum) == 0;
            }
            if (!full) {
                complete.get(i - 1).addAll(complete.set(i, Set.of()));
            }
        }
        return complete;
    }

    /**
     * Cuts the graph at arrays. The backward pass calls {@code reached} even if none is recorded.
     */
    static NDList cut(
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
