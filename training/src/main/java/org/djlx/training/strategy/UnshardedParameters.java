// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Parameter;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.djlx.collectives.Work;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.Replica;

/**
 * A stage's whole parameters, a row for each element type, and the all-gather that fills them.
 * Blocks compute with its arrays.
 */
final class UnshardedParameters {

    private final ShardedStage stage;
    private final StageContext context;
    private final boolean inOwnType; // whether gathers ignore the policy's type
    private final NDManager owner;
    private final List<NDArray> rows; // of the flat parameters
    private final List<NDArray> arrays = new ArrayList<>(); // of the stage's parts
    private NDManager temporary; // of the running gather
    private final List<NDArray> gathered = new ArrayList<>(); // outputs of the running gather
    private Work gathering; // running, or null

    /**
     * Takes memory for the flat parameters: arrays of their {@linkplain ShardedStage#heldType held
     * types}, from a function of the manager that owns them.
     *
     * @param inOwnType whether to gather the parameters' types, not those of the stage's policy
     */
    UnshardedParameters(
            ShardedStage stage,
            StageContext context,
            boolean inOwnType,
            Function<NDManager, List<NDArray>> memory) {
        this.stage = stage;
        this.context = context;
        this.inOwnType = inOwnType;
        owner = context.manager().newSubManager();
        rows = NoGradient.get(() -> memory.apply(owner));
        NoGradient.run(this::divide);
    }

    /** In memory of their own. */
    UnshardedParameters(ShardedStage stage, StageContext context, boolean inOwnType) {
        this(
                stage,
                context,
                inOwnType,
                owner ->
                        stage.flats().stream()
                                .map(flat -> row(stage, flat, inOwnType, owner))
                                .toList());
    }

    private void divide() {
        for (int i = 0; i < rows.size(); i++) {
            rows.get(i).attach(owner);
            for (FlatParameter.Part part : stage.flats().get(i).parts) {
                try (NDArray elements =
                                Torch.narrow(rows.get(i), 0, part.offset(), part.shape().size());
                        NDArray shaped = elements.reshape(part.shape())) {
                    arrays.add(Torch.data(owner, shaped));
                }
            }
        }
    }

    private static NDArray row(
            ShardedStage stage, FlatParameter flat, boolean inOwnType, NDManager owner) {
        return Torch.empty(owner, stage.unshardedShape(flat), stage.heldType(flat, inOwnType));
    }

    /** {@return the arrays of the stage's parts, in their order} */
    List<NDArray> arrays() {
        return arrays;
    }

    /** Starts to gather the parameters. */
    void gather() {
        NoGradient.run(this::issue);
    }

    private void issue() {
        temporary = owner.newSubManager();
        gathered.clear();
        List<NDArray> shards = new ArrayList<>();
        for (int i = 0; i < rows.size(); i++) {
            FlatParameter flat = stage.flats().get(i);
            ScalarType type = stage.gatheredType(flat, inOwnType);
            boolean isHeld = type == Torch.scalarType(rows.get(i));
            gathered.add(
                    isHeld
                            ? rows.get(i)
                            : Torch.empty(temporary, stage.unshardedShape(flat), type));
            shards.add(context.converted(temporary, flat.shard, type, context.device()));
        }
        gathering = context.limited(stage.mesh().shards().allGatherCoalesced(gathered, shards));
    }

    /** Waits until they are gathered, if they are on their way. */
    void await() {
        NoGradient.run(this::complete);
    }

    private void complete() {
        Work running = gathering;
        gathering = null; // Also if it fails: a later await() does not wait again.
        if (running == null) {
            return;
        }
        try {
            Replica.complete(context.device(), running);
            for (int i = 0; i < rows.size(); i++) {
                if (gathered.get(i) != rows.get(i)) {
                    Torch.copy(rows.get(i), gathered.get(i));
                }
            }
        } finally {
            gathered.clear();
            temporary.close();
        }
    }

    /** Gives blocks aliases of the arrays; closing the result closes what blocks derive. */
    NDManager publish() {
        NDManager use = owner.newSubManager();
        List<FlatParameter.Part> parts = stage.parts();
        for (int i = 0; i < parts.size(); i++) {
            NDArray array = arrays.get(i);
            array.setRequiresGradient(parts.get(i).parameter().requiresGradient());
            NDArray alias = Torch.alias(use, array);
            for (Parameter parameter : parts.get(i).parameters()) {
                context.store().put(parameter, alias);
            }
        }
        return use;
    }

    /** Clears gradients that a failed backward pass has left. */
    void clearGradients() {
        arrays.forEach(array -> Torch.setGradient(array, null));
    }

    /** Returns outputs, with copies of those that are views of this memory. */
    NDList withoutViews(NDList outputs) {
        NDList result = new NDList();
        List<TensorInfo> infos = rows.stream().map(Torch::info).toList();
        for (NDArray output : outputs) {
            TensorInfo info = Torch.info(output);
            boolean overlaps = infos.stream().anyMatch(info::overlaps);
            // Not duplicate(), which autograd does not record.
            NDArray own = overlaps ? Torch.cast(output, Torch.scalarType(output)) : output;
            own.setName(output.getName());
            result.add(own);
        }
        return result;
    }

    void close() {
        owner.close();
    }
}
