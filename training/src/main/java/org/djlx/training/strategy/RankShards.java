// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.util.Pair;
import ai.djl.util.PairList;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.engine.DividedBlock;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.djlx.training.internal.ForwardPass;
import org.djlx.training.internal.OptimizerState;
import org.djlx.training.internal.RankStore;
import org.djlx.training.internal.Recomputation;
import org.djlx.training.internal.Replica;

/**
 * One rank's shards of a block's parameters (ZeRO stage 3, Rajbhandari et al., 2020, <a
 * href="https://arxiv.org/abs/1910.02054">arXiv:1910.02054</a>; PyTorch's FSDP). Stages, gathers
 * and reductions: docs/design/data-parallel-step.md, Fully sharded. Gathers start in {@link #visit}
 * and {@link Recorded#begin}, ahead of the pass, or when a stage is used. The optimizer updates one
 * view of the shard for each parameter, under the parameter's id.
 */
final class RankShards implements RankStore.Units {

    private record Reduction(
            ShardedStage stage,
            List<FlatParameter> flats,
            NDManager manager,
            List<NDArray> results,
            Work work) {}

    private final Replica replica;
    private final ProcessGroup group;
    private final ProcessGroup parallel; // of tensor parallelism; null for none
    private final Device device;
    private final NDManager manager;
    private final RankStore store;
    private final StageContext context;
    private final ReduceOp op;
    private final StageTree tree;
    private final Map<Block, ShardedStage> stages; // by FullyShard, in order
    private final List<ParameterSlot> slots;
    // That the running forward pass visited last.
    private Optional<ShardedStage> last = Optional.empty();
    // Of these the last one with a backward pass.
    private Optional<ShardedStage> lastRecorded = Optional.empty();
    private int discarded; // how often passes were discarded
    private Reduction reduction; // running, or null
    private NDManager gradientManager; // of the shards' gradients and their views; null if none

    /** Copies this rank's shards of an initialised block; its arrays are not needed afterwards. */
    RankShards(Replica replica, FullyShard root, ReduceOp op) {
        this.replica = replica;
        this.op = op;
        group = replica.group();
        parallel = DividedBlock.groupOf(root);
        device = replica.device();
        manager = replica.manager();
        store = replica.store();
        context = new StageContext(replica);
        tree = new StageTree(replica, context, root);
        stages = tree.stages();
        slots = tree.slots();
        store.setUnits(this);
    }

    /** Destroys the groups of hybrid sharding. */
    void destroyMeshes() {
        tree.destroyMeshes();
    }

    List<ParameterShard> shards() {
        List<ParameterShard> shards = new ArrayList<>();
        for (ShardedStage stage : stages.values()) {
            for (FlatParameter flat : stage.flats()) {
                for (FlatParameter.Part part : flat.parts) {
                    if (part.owned() != null) {
                        long first = flat.shard.size() * stage.mesh().shards().rank();
                        shards.add(
                                new ParameterShard(
                                        part.name(),
                                        part.id(),
                                        part.shape(),
                                        first + part.from() - part.offset(),
                                        part.owned(),
                                        true,
                                        stage.mesh().isFirstReplica()));
                    }
                }
            }
        }
        return shards;
    }

    void addSpecs(Map<String, TensorSpec> specs) {
        for (ShardedStage stage : stages.values()) {
            for (FlatParameter flat : stage.flats()) {
                ScalarType type = Torch.scalarType(flat.shard);
                for (FlatParameter.Part part : flat.parts) {
                    specs.put(part.name(), TensorSpec.of(part.name(), type, part.shape()));
                }
            }
        }
    }

    /** Computes the whole model; records it in the current gradient scope. */
    NDList forward(FullyShard root, NDList data, NDList labels, boolean training) {
        last = Optional.empty();
        lastRecorded = Optional.empty();
        slots.forEach(ParameterSlot::evictIfUnused); // The shards may have changed.
        try {
            return training
                    ? ForwardPass.forward(root, store, data, labels)
                    : ForwardPass.evaluate(root, store, data);
        } finally {
            stages.values().forEach(ShardedStage::unpublishIfUnused);
        }
    }

    /** Computes a stage; records it in the current gradient scope. */
    @Override
    public NDList forward(
            Block wrapper, RankStore own, NDList data, NDList labels, boolean training) {
        ShardedStage stage = stages.get(wrapper);
        Block block = stage.block();
        stage.acquire();
        try {
            // Not if the store is of a pass that only some ranks run, or that computes again.
            boolean isVisited = own == store && !Recomputation.isRunning();
            if (isVisited) {
                visit(stage);
            }
            GradientScope scope = training ? GradientScope.current().orElse(null) : null;
            boolean isRecorded =
                    scope != null && JniUtils.isGradMode() && Recomputation.isTrained(block, data);
            NDList outputs;
            if (isRecorded && !stage.flats().isEmpty()) {
                outputs = compute(new Recorded(stage, isVisited), own, data, labels, scope);
            } else if (isRecorded) {
                outputs = ForwardPass.forward(block, own, data, labels);
            } else {
                outputs =
                        NoGradient.get(
                                () -> Recomputation.compute(block, own, data, labels, training));
            }
            return stage.withoutViews(outputs);
        } finally {
            stage.release();
        }
    }

    /** The backward pass of a stage. */
    private final class Recorded {

        private final ShardedStage stage;
        private final Optional<ShardedStage> before; // whose backward pass is next, if known
        private final boolean isInSlot;
        private final int time = discarded;
        private boolean isAcquired; // until the gradients are reduced

        Recorded(ShardedStage stage, boolean isVisited) {
            this.stage = stage;
            isInSlot = stage.isInSlot();
            before = isVisited ? lastRecorded : Optional.empty();
            if (isVisited) {
                lastRecorded = Optional.of(stage);
            }
        }

        void acquire() {
            requireCurrent();
            stage.acquire();
            isAcquired = true;
        }

        /** Begins the backward pass: gathers the parameters into the slot again. */
        void begin() {
            acquire();
            for (FlatParameter.Part part : stage.parts()) {
                try (NDArray gradient =
                        JniUtils.getGradient((PtNDArray) store.array(part.parameter()))) {
                    if (gradient != null) {
                        throw new IllegalStateException(
                                "backward: the loss depends on a result of "
                                        + stage.block().getClass().getName()
                                        + " that the block did not return, so its gradient was"
                                        + " computed while the parameters were not gathered;"
                                        + " return it as an output, or choose this block with"
                                        + " optReshardAfterForward(false)");
                    }
                }
            }
            before.ifPresent(ShardedStage::prefetch);
        }

        /** Ends the backward pass; nothing to do if the forward pass failed within the block. */
        void end() {
            requireCurrent();
            if (isAcquired) {
                isAcquired = false;
                reduce(stage);
            }
        }

        private void requireCurrent() {
            if (time != discarded) {
                throw new IllegalStateException(
                        "backward: between forward and backward pass, the trainer's step,"
                                + " newGradientCollector, zeroGradients or a clipping has"
                                + " discarded this pass; call backward before");
            }
        }
    }

    /**
     * Records a stage between two cuts of the graph. In the backward pass, the cut behind the
     * outputs gathers the parameters into the slot again; the cut before the inputs reduces the
     * gradients and releases the slot. A stage without a slot keeps its parameters, and has only
     * the cut before its inputs.
     */
    private NDList compute(
            Recorded pass, RankStore own, NDList data, NDList labels, GradientScope scope) {
        if (!pass.isInSlot) {
            pass.acquire(); // The end of the backward pass releases it.
        }
        NDList inputs = ForwardPass.cut(scope, data, requiringGradients(data), pass::end);
        NDList outputs = ForwardPass.forward(pass.stage.block(), own, inputs, labels);
        outputs.attach(data.head().getManager()); // A result of parameters is closed with them.
        return pass.isInSlot
                ? ForwardPass.cut(scope, outputs, requiringGradients(outputs), pass::begin)
                : outputs;
    }

    private static List<NDArray> requiringGradients(NDList arrays) {
        return arrays.stream().filter(Torch::requiresGradient).toList();
    }

    /** Records the order of stages, and starts to gather the next one. */
    private void visit(ShardedStage stage) {
        if (stage.flats().isEmpty()) {
            return;
        }
        last.ifPresent(previous -> previous.setNext(stage));
        last = Optional.of(stage);
        stage.next().ifPresent(ShardedStage::prefetch);
    }

    /** Starts to reduce the gradients of a stage, and releases its parameters. */
    private void reduce(ShardedStage stage) {
        NDManager temporary = manager.newSubManager();
        List<FlatParameter> trained =
                stage.flats().stream().filter(FlatParameter::isTrained).toList();
        List<NDArray> inputs = new ArrayList<>();
        List<NDArray> results = new ArrayList<>();
        for (FlatParameter flat : trained) {
            ScalarType type = stage.policy().reductionType(Torch.scalarType(flat.shard));
            NDArray row = Torch.empty(temporary, stage.unshardedShape(flat), type);
            flat.parts.forEach(part -> fill(temporary, row, part));
            FlatParameter.Part end = flat.parts.get(flat.parts.size() - 1);
            long used = end.offset() + end.shape().size();
            TorchInPlace.zero(Torch.narrow(row, 0, used, row.size() - used));
            inputs.add(row);
            results.add(Torch.empty(temporary, flat.shard.getShape(), type));
        }
        stage.release();
        finishReduction();
        if (!inputs.isEmpty()) {
            Work work =
                    context.limited(
                            stage.mesh().shards().reduceScatterCoalesced(results, inputs, op));
            reduction = new Reduction(stage, trained, temporary, results, work);
        } else {
            temporary.close();
        }
    }

    /** Writes a gradient to its place in a row, zeros if there is none, and clears it. */
    private void fill(NDManager rows, NDArray row, FlatParameter.Part part) {
        NDArray array = store.array(part.parameter());
        NDArray place =
                Torch.narrow(row, 0, part.offset(), part.shape().size()).reshape(part.shape());
        try (NDArray gradient = Recomputation.gradient(array, rows)) {
            if (gradient == null) {
                TorchInPlace.zero(place);
            } else {
                Torch.copy(place, gradient);
            }
        }
        Torch.setGradient(array, null);
    }

    /** Waits for the running reduction, and adds its result to the gradients. */
    private void finishReduction() {
        if (reduction == null) {
            return;
        }
        Replica.complete(device, reduction.work);
        List<NDArray> results = reduction.results;
        reduction
                .stage
                .mesh()
                .replicas()
                .map(replicas -> replicas.allReduceCoalesced(results, op))
                .ifPresent(work -> Replica.complete(device, work));
        for (int i = 0; i < reduction.results.size(); i++) {
            FlatParameter flat = reduction.flats.get(i);
            ScalarType type = Torch.scalarType(flat.shard);
            try (NDManager temporary = flat.shard.getManager().newSubManager()) {
                Device owner = flat.shard.getDevice();
                NDArray result =
                        context.converted(temporary, reduction.results.get(i), type, owner);
                if (flat.gradient == null) {
                    flat.gradient = result;
                    result.attach(gradientManager());
                } else {
                    TorchInPlace.add(flat.gradient, result);
                }
            }
        }
        reduction.manager.close();
        reduction = null;
    }

    private NDManager gradientManager() {
        if (gradientManager == null) {
            gradientManager = manager.newSubManager();
        }
        return gradientManager;
    }

    /** Returns the reduced gradients of this rank's parts of trained parameters. */
    private PairList<FlatParameter.Part, NDArray> reduced() {
        finishReduction();
        PairList<FlatParameter.Part, NDArray> gradients = new PairList<>();
        for (ShardedStage stage : stages.values()) {
            for (FlatParameter flat : stage.flats()) {
                if (flat.gradient == null && flat.isTrained()) {
                    flat.gradient = Torch.zerosLike(flat.shard);
                    flat.gradient.attach(gradientManager());
                }
                for (FlatParameter.Part part : flat.parts) {
                    if (part.isTrained()) {
                        gradients.add(part, flat.gradient(part));
                    }
                }
            }
        }
        return gradients;
    }

    double norm() {
        PairList<FlatParameter.Part, NDArray> reduced = reduced();
        return GradientNorm.of(
                replica, reduced.values(), i -> reduced.keyAt(i).copies(), group, parallel);
    }

    /** Returns this rank's reduced gradients, which may be changed in place until the step. */
    Collection<NDArray> reducedGradients() {
        return reduced().values();
    }

    /** Passes each part of a parameter and its gradient to a visitor, then drops all gradients. */
    void step(ParameterStrategy.Update visitor) {
        for (Pair<FlatParameter.Part, NDArray> reduced : reduced()) {
            FlatParameter.Part part = reduced.getKey();
            visitor.apply(part.id(), part.owned(), reduced.getValue());
        }
        zeroGradients();
    }

    void zeroGradients() {
        finishReduction();
        if (gradientManager != null) {
            gradientManager.close();
            gradientManager = null;
            stages.values().forEach(stage -> stage.flats().forEach(flat -> flat.gradient = null));
        }
    }

    /** Frees all parameters that passes without a backward pass have left gathered. */
    void reset() {
        discarded++;
        stages.values().forEach(ShardedStage::discard);
    }

    /** Gathers all parameters, and keeps them until {@link #releaseAll}. Calls nest. */
    void acquireAll() {
        stages.values().forEach(stage -> stage.acquireInOwnMemory());
    }

    void releaseAll() {
        stages.values().forEach(ShardedStage::release);
    }

    /** Closes the block's own arrays. Using them throws until {@link #restore}. */
    void closeOriginals() {
        parts().forEach(part -> part.parameter().getArray().close());
    }

    /**
     * Gathers one stage after the other, in the parameters' own type; with an owner, gives the
     * block its whole arrays again.
     */
    void restore(Optional<NDManager> owner) {
        for (ShardedStage stage : stages.values()) {
            if (stage.flats().isEmpty()) {
                continue;
            }
            UnshardedParameters whole = new UnshardedParameters(stage, context, true);
            try {
                whole.gather();
                whole.await();
                owner.ifPresent(own -> restore(stage.parts(), whole.arrays(), own));
            } finally {
                whole.close();
            }
        }
    }

    private static void restore(
            List<FlatParameter.Part> parts, List<NDArray> arrays, NDManager owner) {
        for (int i = 0; i < parts.size(); i++) {
            NDArray copy = NoGradient.get(arrays.get(i)::duplicate);
            copy.attach(owner);
            for (Parameter parameter : parts.get(i).parameters()) {
                parameter.close(); // Otherwise DJL refuses another array.
                parameter.setShape(null);
                parameter.setArray(copy);
            }
        }
    }

    /** Removes the optimizer's state, which fits only these shards. */
    void removeState(OptimizerState state) {
        parts().forEach(part -> state.set(part.id(), device, null, Map.of()));
    }

    private List<FlatParameter.Part> parts() {
        return stages.values().stream().flatMap(stage -> stage.parts().stream()).toList();
    }
}
