// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDList;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.util.Pair;
import ai.djl.util.PairList;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.function.ToIntFunction;
import org.djlx.collectives.DeviceMesh;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.engine.DividedBlock;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.djlx.training.internal.ForwardPass;
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.internal.OptimizerState;
import org.djlx.training.internal.RankStore;
import org.djlx.training.internal.Recomputation;
import org.djlx.training.internal.Recomputation.Mode;
import org.djlx.training.internal.Replica;

/**
 * One rank's shards of a block's parameters (ZeRO stage 3, Rajbhandari et al., 2020, <a
 * href="https://arxiv.org/abs/1910.02054">arXiv:1910.02054</a>; PyTorch's FSDP). Stages, gathers
 * and reductions: docs/design/data-parallel-step.md, Fully sharded. The optimizer updates one view
 * of the shard for each parameter, under the parameter's id.
 */
final class RankShards implements RankStore.Units {

    /**
     * A parameter in a flat parameter, and this rank's part of it.
     *
     * @param parameters the parameter, and others that have the same array
     * @param offset where the parameter begins in the row
     * @param owned the rank's part, a view of the shard; null if the rank has no part
     * @param from where the rank's part begins in the shard
     * @param casts whether every layer that uses the parameter casts it itself
     * @param copies how many ranks, tensor-parallel ones included, have the same part
     */
    private record Part(
            String name,
            List<Parameter> parameters,
            String id,
            Shape shape,
            long offset,
            NDArray owned,
            long from,
            boolean casts,
            int copies) {

        Parameter parameter() {
            return parameters.get(0);
        }

        /** Returns whether this rank has elements of the parameter, and updates them. */
        boolean isTrained() {
            return owned != null && parameter().requiresGradient();
        }
    }

    /** A stage's parameters of one element type in a row, and this rank's shard of the row. */
    private static final class FlatParameter {

        private final List<Part> parts = new ArrayList<>();
        private final NDArray shard;
        private NDArray gradient; // of the shard; null for zeros

        FlatParameter(NDArray shard) {
            this.shard = shard;
        }

        NDArray gradient(Part part) {
            return Torch.narrow(gradient, 0, part.from, part.owned.size());
        }
    }

    /** A block that is gathered as a whole. */
    private final class Stage {

        private final Block block;
        private final FullyShardPolicy policy;
        private final Mesh mesh;
        private final Stage outer; // null for the whole model
        private final int depth; // number of stages around this one
        private final List<FlatParameter> flats = new ArrayList<>();
        private final Recomputation recomputation;
        private boolean hasInner; // whether the stage contains others
        private Stage next; // in the order of the last pass; before the first one, of the model
        private NDManager gathered; // of the whole parameters; null while they are divided
        private List<NDArray> wholes; // outputs of the running gather: the whole rows
        private Work gathering; // running, or null
        private int uses; // calls of acquire() without release()

        Stage(FullyShard wrapper, Stage outer) {
            block = wrapper.block();
            policy = wrapper.policy();
            mesh =
                    meshes.computeIfAbsent(
                            policy.shardRanks(group.worldSize()), RankShards.this::mesh);
            this.outer = outer;
            depth = outer == null ? 0 : outer.depth + 1;
            recomputation = new Recomputation(block, store);
        }

        /** Starts to gather the parameters, unless they are gathered. */
        void begin() {
            if (gathered == null && !flats.isEmpty()) {
                gathered = manager.newSubManager();
                NoGradient.run(this::gather);
            }
        }

        private void gather() {
            List<NDArray> shards = new ArrayList<>();
            wholes = new ArrayList<>();
            for (FlatParameter flat : flats) {
                ScalarType own = Torch.scalarType(flat.shard);
                ScalarType type = inOwnType ? own : policy.parameterType(own);
                wholes.add(Torch.empty(gathered, whole(flat), type));
                shards.add(converted(gathered, flat.shard, type, device));
            }
            gathering = limited(mesh.shards.allGatherCoalesced(wholes, shards));
        }

        /** Gives blocks the gathered parameters. */
        private void publish() {
            for (int i = 0; i < flats.size(); i++) {
                ScalarType type = Torch.scalarType(flats.get(i).shard);
                for (Part part : flats.get(i).parts) {
                    NDArray row = Torch.narrow(wholes.get(i), 0, part.offset, part.shape.size());
                    boolean layersCast = part.casts && Torch.scalarType(row) == store.computeType();
                    NDArray array = layersCast ? row : converted(gathered, row, type, device);
                    array = array.reshape(part.shape);
                    array.setRequiresGradient(part.parameter().requiresGradient());
                    for (Parameter parameter : part.parameters) {
                        store.put(parameter, array);
                    }
                }
            }
            wholes.forEach(NDArray::close); // The parameters' arrays are views or casts.
        }

        /** Waits until the parameters are gathered, and keeps them until {@link #release}. */
        void acquire() {
            begin();
            uses++;
            await();
        }

        private void await() {
            Work running = gathering;
            gathering = null; // Also if it fails: free() then does not wait for it again.
            if (running != null) {
                Replica.complete(device, running);
                NoGradient.run(this::publish);
            }
        }

        /** Frees the parameters if this is the last use. */
        void release() {
            uses--;
            freeUnused();
        }

        Shape whole(FlatParameter flat) {
            return new Shape(flat.shard.size() * mesh.shards.worldSize());
        }

        void freeUnused() {
            if (uses == 0) {
                free();
            }
        }

        /** Frees the parameters, even if they are in use. */
        void free() {
            uses = 0;
            if (gathered != null) {
                await();
                parts().forEach(part -> part.parameters.forEach(store::remove));
                gathered.close();
                gathered = null;
            }
        }

        /** Returns the innermost stage that contains both. */
        Stage innermostCommon(Stage other) {
            Stage one = this;
            while (one != other) {
                if (one.depth < other.depth) {
                    other = other.outer;
                } else {
                    one = one.outer;
                }
            }
            return one;
        }

        List<Part> parts() {
            return flats.stream().flatMap(flat -> flat.parts.stream()).toList();
        }
    }

    /**
     * The group of ranks that divide a stage, and the group of ranks with the same part of it.
     *
     * @param replicas null if all ranks divide it
     */
    private record Mesh(ProcessGroup shards, ProcessGroup replicas) {

        boolean isFirstReplica() {
            return replicas == null || replicas.rank() == 0;
        }
    }

    private record Reduction(Stage stage, NDManager manager, List<NDArray> results, Work work) {}

    private static final int MAX_RUNNING = 3; // a gather, a reduction, and one that has just ended

    private final Replica replica;
    private final ProcessGroup group;
    private final ProcessGroup parallel; // of tensor parallelism; null for none
    private final Device device;
    private final NDManager manager;
    private final NDManager host; // of offloaded shards
    private final RankStore store;
    private final ReduceOp op;
    // Arrays that a layer uses without casting them; empty after the constructor.
    private final Set<NDArray> uncast = Collections.newSetFromMap(new IdentityHashMap<>());
    private final Map<Integer, Mesh> meshes = new HashMap<>(); // by the number of ranks that divide
    private final Map<Block, Stage> stages = new LinkedHashMap<>(); // by FullyShard, in order
    private boolean inOwnType; // whether gathers ignore the policy's type
    private Stage last; // that the running forward pass has begun; null if none
    private Reduction reduction; // running, or null
    private final Queue<Work> running = new ArrayDeque<>(); // oldest first
    private NDManager gradientManager; // of the shards' gradients and their views; null if none

    /** Copies this rank's shards of an initialised block; its arrays are not needed afterwards. */
    RankShards(Replica replica, FullyShard root, ReduceOp op) {
        this.replica = replica;
        this.op = op;
        group = replica.group();
        parallel = DividedBlock.groupOf(root);
        device = replica.device();
        manager = replica.manager();
        host = manager.newSubManager(Device.cpu());
        store = replica.store();
        Map<NDArray, Stage> owners = new IdentityHashMap<>();
        collect(root, null, owners);
        Map<NDArray, Named> byArray = new IdentityHashMap<>();
        List<Named> parameters = new ArrayList<>();
        for (Pair<String, Parameter> named : root.getParameters()) {
            if (!LocalParameter.isStatistic(named.getValue())) {
                NDArray array = named.getValue().getArray();
                if (!byArray.containsKey(array)) {
                    byArray.put(array, new Named(named.getKey(), new ArrayList<>()));
                    parameters.add(byArray.get(array));
                }
                List<Parameter> same = byArray.get(array).parameters;
                if (!same.contains(named.getValue())) { // A block may hold a parameter twice.
                    same.add(named.getValue());
                }
            }
        }
        Map<Stage, Map<ScalarType, List<Named>>> byStage = new IdentityHashMap<>();
        for (Named named : parameters) {
            Stage owner = owners.get(named.array());
            if (owner == null) { // Its block lists it in getParameters() only.
                owner = stages.get(root);
                uncast.add(named.array());
            }
            byStage.computeIfAbsent(owner, stage -> new LinkedHashMap<>())
                    .computeIfAbsent(Torch.scalarType(named.array()), t -> new ArrayList<>())
                    .add(named);
        }
        ToIntFunction<NDArray> copies = GradientNorm.copies(root, Parameter::getArray);
        byStage.forEach(
                (stage, byType) ->
                        byType.values()
                                .forEach(list -> stage.flats.add(flatten(stage, list, copies))));
        Stage before = null;
        for (Stage stage : stages.values()) {
            if (before != null && !stage.flats.isEmpty()) {
                before.next = stage;
            }
            before = stage.flats.isEmpty() ? before : stage;
        }
        uncast.clear();
        store.setUnits(this);
    }

    /** A parameter's first name in the model, and all parameters that have its array. */
    private record Named(String name, List<Parameter> parameters) {

        NDArray array() {
            return parameters.get(0).getArray();
        }
    }

    /**
     * Creates the stages of a block and its descendants. The owner of an array is the innermost
     * stage that contains all blocks with it.
     */
    private void collect(Block block, Stage outer, Map<NDArray, Stage> owners) {
        Stage stage = outer;
        if (block instanceof FullyShard wrapper) {
            stage = stages.computeIfAbsent(wrapper, key -> new Stage(wrapper, outer));
            if (outer != null) {
                outer.hasInner = true;
            }
        }
        Stage own = stage;
        for (Parameter parameter : block.getDirectParameters().values()) {
            owners.merge(parameter.getArray(), own, Stage::innermostCommon);
            if (!(block instanceof RankStore.Casting)) {
                uncast.add(parameter.getArray());
            }
        }
        block.getChildren().values().forEach(child -> collect(child, own, owners));
    }

    private Mesh mesh(int ranks) {
        if (ranks == group.worldSize()) {
            return new Mesh(group, null);
        }
        int[] shape = {group.worldSize() / ranks, ranks};
        DeviceMesh mesh = DeviceMesh.create(group, shape, "replicas", "shards");
        return new Mesh(mesh.group("shards"), mesh.group("replicas"));
    }

    /** Destroys the groups of hybrid sharding. */
    void destroyMeshes() {
        for (Mesh mesh : meshes.values()) {
            if (mesh.replicas != null) {
                mesh.replicas.destroy();
                mesh.shards.destroy();
            }
        }
    }

    private FlatParameter flatten(
            Stage stage, List<Named> parameters, ToIntFunction<NDArray> copies) {
        ProcessGroup ranks = stage.mesh.shards;
        long total = parameters.stream().mapToLong(own -> own.array().size()).sum();
        long size = (total + ranks.worldSize() - 1) / ranks.worldSize();
        DataType dataType = parameters.get(0).array().getDataType();
        NDManager owner = stage.policy.offloads() ? host : manager;
        FlatParameter flat = new FlatParameter(owner.zeros(new Shape(size), dataType));
        long begin = size * ranks.rank();
        long offset = 0;
        for (Named own : parameters) {
            NDArray whole = own.array();
            long first = Math.max(offset, begin);
            long last = Math.min(offset + whole.size(), begin + size);
            NDArray owned = null;
            if (first < last) {
                owned = Torch.narrow(flat.shard, 0, first - begin, last - first);
                copyPart(whole, first - offset, owned);
            }
            String id = replica.idOf(own.parameters.get(0));
            Shape shape = whole.getShape();
            long from = first - begin;
            int same = copies.applyAsInt(whole) * group.worldSize() / ranks.worldSize();
            boolean casts = !uncast.contains(whole);
            flat.parts.add(
                    new Part(
                            own.name, own.parameters, id, shape, offset, owned, from, casts, same));
            offset += whole.size();
        }
        return flat;
    }

    /** Returns an array of this type on a device: the given one, or a copy in {@code owner}. */
    private NDArray converted(NDManager owner, NDArray array, ScalarType type, Device to) {
        boolean isThere = array.getDevice().equals(to);
        if (isThere && Torch.scalarType(array) == type) {
            return array;
        }
        if (!isThere) {
            // A copy between host and GPU waits in the driver until the current stream is idle. The
            // stream may wait for a peer, and meanwhile the driver may block the peer's launches
            // on a GPU that the ranks share.
            CurrentStreams.await(device);
        }
        NDArray copy = Torch.empty(owner, array.getShape(), type);
        Torch.copy(copy, array);
        return copy;
    }

    private static void copyPart(NDArray whole, long from, NDArray owned) {
        NoGradient.run(
                () -> {
                    try (NDArray row = whole.reshape(-1);
                            NDArray part = Torch.narrow(row, 0, from, owned.size())) {
                        Torch.copy(owned, part);
                    }
                });
    }

    List<ParameterShard> shards() {
        List<ParameterShard> shards = new ArrayList<>();
        for (Stage stage : stages.values()) {
            for (FlatParameter flat : stage.flats) {
                for (Part part : flat.parts) {
                    if (part.owned != null) {
                        long first = flat.shard.size() * stage.mesh.shards.rank();
                        shards.add(
                                new ParameterShard(
                                        part.name,
                                        part.id,
                                        part.shape,
                                        first + part.from - part.offset,
                                        part.owned,
                                        true,
                                        stage.mesh.isFirstReplica()));
                    }
                }
            }
        }
        return shards;
    }

    void addSpecs(Map<String, TensorSpec> specs) {
        for (Stage stage : stages.values()) {
            for (FlatParameter flat : stage.flats) {
                ScalarType type = Torch.scalarType(flat.shard);
                for (Part part : flat.parts) {
                    specs.put(part.name, TensorSpec.of(part.name, type, part.shape));
                }
            }
        }
    }

    /** Computes the whole model; records it in the current gradient scope. */
    NDList forward(FullyShard root, NDList data, NDList labels, boolean training) {
        last = null;
        try {
            return training
                    ? ForwardPass.forward(root, store, data, labels)
                    : ForwardPass.evaluate(root, store, data);
        } finally {
            stages.values().forEach(Stage::freeUnused);
        }
    }

    /** Computes a stage; records it in the current gradient scope. */
    @Override
    public NDList forward(
            Block wrapper, RankStore own, NDList data, NDList labels, boolean training) {
        Stage stage = stages.get(wrapper);
        Block block = stage.block;
        stage.acquire();
        try {
            Stage before = last;
            boolean again = Recomputation.isRunning();
            if (own == store && !again) { // Other stores are of passes that only some ranks run.
                visit(stage);
            }
            GradientScope scope = training ? GradientScope.current().orElse(null) : null;
            if (scope == null || !JniUtils.isGradMode() || !Recomputation.isTrained(block, data)) {
                return NoGradient.get(
                        () -> Recomputation.compute(block, own, data, labels, training));
            }
            if (again
                    || stage.hasInner
                    || !stage.policy.reshardsAfterForward()
                    || stage.recomputation.mode(data, labels) == Mode.KEPT) {
                return computeOnce(stage, own, data, labels, scope);
            }
            Runnable begin =
                    () -> {
                        stage.acquire();
                        if (before != null) {
                            before.begin();
                        }
                    };
            return stage.recomputation.forward(data, labels, scope, begin, () -> reduce(stage));
        } finally {
            stage.release();
        }
    }

    /** Records the order of stages, and starts to gather the next one. */
    private void visit(Stage stage) {
        if (stage.flats.isEmpty()) {
            return;
        }
        if (last != null) {
            last.next = stage;
        }
        last = stage;
        if (stage.next != null) {
            stage.next.begin();
        }
    }

    /** Computes a stage whose graph and parameters are kept until the backward pass. */
    private NDList computeOnce(
            Stage stage, RankStore own, NDList data, NDList labels, GradientScope scope) {
        stage.acquire(); // reduce() releases it in the backward pass.
        List<NDArray> recorded = data.stream().filter(Torch::requiresGradient).toList();
        NDList inputs = ForwardPass.cut(scope, data, recorded, () -> reduce(stage));
        return ForwardPass.forward(stage.block, own, inputs, labels);
    }

    /** Starts to reduce the gradients of a stage, and releases its parameters. */
    private void reduce(Stage stage) {
        NDManager rows = manager.newSubManager();
        List<NDArray> inputs = new ArrayList<>();
        List<NDArray> results = new ArrayList<>();
        for (FlatParameter flat : stage.flats) {
            ScalarType type = stage.policy.reductionType(Torch.scalarType(flat.shard));
            NDArray zeros = rows.zeros(stage.whole(flat), flat.shard.getDataType());
            NDArray row = converted(rows, zeros, type, device);
            flat.parts.forEach(part -> fill(rows, row, part));
            inputs.add(row);
            results.add(Torch.empty(rows, flat.shard.getShape(), type));
        }
        stage.release();
        finishReduction();
        if (!inputs.isEmpty()) {
            Work work = limited(stage.mesh.shards.reduceScatterCoalesced(results, inputs, op));
            reduction = new Reduction(stage, rows, results, work);
        } else {
            rows.close();
        }
    }

    /**
     * Waits for the oldest operation if too many are running, as PyTorch's {@code
     * limit_all_gathers}. An operation keeps its arrays until the GPU has ended it, so a host that
     * is far ahead would keep all gathered parameters.
     */
    private Work limited(Work work) {
        running.add(work);
        if (running.size() > MAX_RUNNING) {
            running.remove().await(Duration.ofDays(1)); // Its own timeout is shorter.
        }
        return work;
    }

    private void fill(NDManager rows, NDArray row, Part part) {
        NDArray array = store.array(part.parameter());
        try (NDArray gradient = Recomputation.gradient(array, rows)) {
            if (gradient != null) {
                NDArray place = Torch.narrow(row, 0, part.offset, part.shape.size());
                Torch.copy(place.reshape(part.shape), gradient);
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
        ProcessGroup replicas = reduction.stage.mesh.replicas;
        if (replicas != null) {
            Replica.complete(device, replicas.allReduceCoalesced(reduction.results, op));
        }
        for (int i = 0; i < reduction.results.size(); i++) {
            FlatParameter flat = reduction.stage.flats.get(i);
            ScalarType type = Torch.scalarType(flat.shard);
            try (NDManager temporary = flat.shard.getManager().newSubManager()) {
                Device owner = flat.shard.getDevice();
                NDArray result = converted(temporary, reduction.results.get(i), type, owner);
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
    private PairList<Part, NDArray> reduced() {
        finishReduction();
        PairList<Part, NDArray> gradients = new PairList<>();
        for (Stage stage : stages.values()) {
            for (FlatParameter flat : stage.flats) {
                if (flat.gradient == null) {
                    flat.gradient = flat.shard.zerosLike();
                    flat.gradient.attach(gradientManager());
                }
                for (Part part : flat.parts) {
                    if (part.isTrained()) {
                        gradients.add(part, flat.gradient(part));
                    }
                }
            }
        }
        return gradients;
    }

    double norm() {
        PairList<Part, NDArray> reduced = reduced();
        return GradientNorm.of(
                replica, reduced.values(), i -> reduced.keyAt(i).copies, group, parallel);
    }

    /** Returns this rank's reduced gradients, which may be changed in place until the step. */
    Collection<NDArray> reducedGradients() {
        return reduced().values();
    }

    /** Passes each part of a parameter and its gradient to a visitor, then drops all gradients. */
    void step(ParameterStrategy.Update visitor) {
        for (Pair<Part, NDArray> reduced : reduced()) {
            Part part = reduced.getKey();
            visitor.apply(part.id, part.owned, reduced.getValue());
        }
        zeroGradients();
    }

    void zeroGradients() {
        finishReduction();
        if (gradientManager != null) {
            gradientManager.close();
            gradientManager = null;
            stages.values().forEach(stage -> stage.flats.forEach(flat -> flat.gradient = null));
        }
    }

    /** Frees all parameters that passes without a backward pass have left gathered. */
    void reset() {
        stages.values().forEach(Stage::free);
    }

    /**
     * Gathers all parameters, and keeps them until {@link #releaseAll}. Calls nest.
     *
     * @param inOwnType whether to ignore the policy's {@code optParameterType}
     */
    void acquireAll(boolean inOwnType) {
        this.inOwnType = inOwnType;
        try {
            stages.values().forEach(Stage::acquire);
        } finally {
            this.inOwnType = false;
        }
    }

    void releaseAll() {
        stages.values().forEach(Stage::release);
    }

    /** Closes the block's own arrays. Using them throws until {@link #restore}. */
    void closeOriginals() {
        parts().forEach(part -> part.parameter().getArray().close());
    }

    /** Gives the block whole arrays again, from gathered parameters. */
    void restore(NDManager owner) {
        for (Part part : parts()) {
            NDArray copy = NoGradient.get(() -> store.array(part.parameter()).duplicate());
            copy.attach(owner);
            for (Parameter parameter : part.parameters) {
                parameter.close(); // Otherwise DJL refuses another array.
                parameter.setShape(null);
                parameter.setArray(copy);
            }
        }
    }

    /** Removes the optimizer's state, which fits only these shards. */
    void removeState(OptimizerState state) {
        parts().forEach(part -> state.set(part.id, device, null, Map.of()));
    }

    private List<Part> parts() {
        return stages.values().stream().flatMap(stage -> stage.parts().stream()).toList();
    }
}
