// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.nn.SequentialBlock;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.ForwardPass;
import org.djlx.training.internal.Replica;

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
        ForwardPass.collect(block, stages);
        if (scope == null || stages.size() < 2) {
            return ForwardPass.forward(block, replica.store(), data, labels);
        }
        Map<NDArray, Integer> indices = buckets.indicesByArray(replica.trained());
        if (indices.values().stream().allMatch(bucket -> bucket == 0)) {
            return ForwardPass.forward(
                    block, replica.store(), data, labels); // There is nothing to overlap.
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
                current = ForwardPass.cut(scope, current, recorded, reached);
                if (first) {
                    passes++;
                }
                cut = true;
            }
            current = ForwardPass.forward(stages.get(i), replica.store(), current, labels);
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
}
