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
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.function.ToIntFunction;
import org.djlx.collectives.DeviceMesh;
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
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.internal.OptimizerState;
import org.djlx.training.internal.RankStore;
import org.djlx.training.internal.Recomputation;
import org.djlx.training.internal.Recomputation.Mode;
import org.djlx.training.internal.Replica;

/**
 * One rank's shards of a block's parameters (ZeRO stage 3, Rajbhandari et al., 2020, <a
 * href="https://arxiv.org/abs/1910.02054">arXiv:1910.02054</a>; PyTorch's FSDP). Stages, gathers
 * and reductions: docs/design/data-parallel-step.md, Fully sharded. The optimizer updates views of
 * the shard, one a parameter, under the id of the parameter.
 */
final class RankShards implements RankStore.Units {

    /**
     * A parameter in a unit, and this rank's part of the parameter.
     *
     * @param parameters the parameter, and others that have the same array
     * @param offset where the parameter begins in the row of the unit's parameters
     * @param owned the rank's part, a view of the shard; null if the rank has no part
     * @param from where the rank's part begins in the shard
     * @param casts whether all layers with the parameter cast it themselves
     * @param copies how many ranks, also of tensor parallelism, have the same part
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

    /** A stage's parameters of one element type, in a row, and this rank's shard of the row. */
    private static final class Unit {

        private final List<Part> parts = new ArrayList<>();
        private final NDArray shard;
        private NDArray gradient; // of the shard; null for zeros

        Unit(NDArray shard) {
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
        private final int depth; // of outer stages
        private final List<Unit> units = new ArrayList<>();
        private final Recomputation recomputation;
        private boolean hasInner; // stages
        private Stage next; // that the last pass computed after this one; at first, in the model
        private NDManager gathered; // of the whole parameters; null while they are divided
        private List<NDArray> wholes; // what a running gather writes: a row of each unit
        private Work gathering; // running, or null
        private int uses; // calls of acquire() without release()

        Stage(FullyShard unit, Stage outer) {
            block = unit.block();
            policy = unit.policy();
            mesh = meshes.computeIfAbsent(policy.shardRanks(group.worldSize()), own -> mesh(own));
            this.outer = outer;
            depth = outer == null ? 0 : outer.depth + 1;
            recomputation = new Recomputation(block, store);
        }

        /** Starts to gather the parameters, unless they are gathered. */
        void begin() {
            if (gathered == null && !units.isEmpty()) {
                gathered = manager.newSubManager();
                NoGradient.run(this::gather);
            }
        }

        private void gather() {
            List<NDArray> shards = new ArrayList<>();
            wholes = new ArrayList<>();
            for (Unit unit : units) {
                ScalarType own = Torch.scalarType(unit.shard);
                ScalarType type = exact ? own : policy.parameterType(own);
                wholes.add(Torch.empty(gathered, whole(unit), type));
                shards.add(converted(gathered, unit.shard, type, device));
            }
            gathering = running(mesh.shards.allGatherCoalesced(wholes, shards));
        }

        /** Gives blocks the gathered parameters. */
        private void publish() {
            for (int i = 0; i < units.size(); i++) {
                ScalarType type = Torch.scalarType(units.get(i).shard);
                for (Part part : units.get(i).parts) {
                    NDArray row = Torch.narrow(wholes.get(i), 0, part.offset, part.shape.size());
                    boolean low = part.casts && Torch.scalarType(row) == store.computeType();
                    NDArray array = low ? row : converted(gathered, row, type, device);
                    array = array.reshape(part.shape);
                    array.setRequiresGradient(part.parameter().requiresGradient());
                    for (Parameter parameter : part.parameters) {
                        store.put(parameter, array);
                    }
                }
            }
            wholes.forEach(NDArray::close); // Arrays of parameters are views, or casts.
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

        Shape whole(Unit unit) {
            return new Shape(unit.shard.size() * mesh.shards.worldSize());
        }

        void freeUnused() {
            if (uses == 0) {
                free();
            }
        }

        /** Frees the parameters, whatever their uses. */
        void free() {
            uses = 0;
            if (gathered != null) {
                await();
                parts().forEach(part -> part.parameters.forEach(store::remove));
                gathered.close();
                gathered = null;
            }
        }

        /** Returns the innermost stage that contains two. */
        Stage common(Stage other) {
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
            return units.stream().flatMap(unit -> unit.parts.stream()).toList();
        }
    }

    /**
     * Ranks that divide a stage, and ranks with the same part of it.
     *
     * @param replicas null if all ranks divide it
     */
    private record Mesh(ProcessGroup shards, ProcessGroup replicas) {

        boolean isFirstReplica() {
            return replicas == null || replicas.rank() == 0;
        }
    }

    private record Reduction(Stage stage, NDManager manager, List<NDArray> results, Work work) {}

    private static final int MOST_RUNNING = 3; // a gather, a reduction, and one that has just ended

    private final Replica replica;
    private final ProcessGroup group;
    private final ProcessGroup parallel; // of tensor parallelism; null for none
    private final Device device;
    private final NDManager manager;
    private final NDManager host; // of offloaded shards
    private final RankStore store;
    private final ReduceOp op;
    // Arrays in layers that do not cast them; empty after the constructor.
    private final Map<NDArray, Block> uncast = new IdentityHashMap<>();
    private final Map<Integer, Mesh> meshes = new HashMap<>(); // by ranks that divide a stage
    private final Map<Block, Stage> stages = new LinkedHashMap<>(); // by FullyShard, in the model
    private boolean exact; // whether gathers are in the parameters' own type
    private Stage last; // that the running forward pass has begun; null at its begin
    private Reduction reduction; // running, or null
    private final Queue<Work> running = new ArrayDeque<>(); // the last operations
    private NDManager ofGradients; // owns the units' gradients and views of them; null if none

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
        Map<Stage, Map<ScalarType, List<Named>>> units = new IdentityHashMap<>();
        for (Named named : parameters) {
            Stage owner = owners.get(named.array());
            if (owner == null) { // Its block returns it with all parameters only.
                owner = stages.get(root);
                uncast.put(named.array(), root);
            }
            units.computeIfAbsent(owner, stage -> new LinkedHashMap<>())
                    .computeIfAbsent(Torch.scalarType(named.array()), t -> new ArrayList<>())
                    .add(named);
        }
        ToIntFunction<NDArray> copies = GradientNorm.copies(root, Parameter::getArray);
        units.forEach(
                (stage, byType) ->
                        byType.values()
                                .forEach(list -> stage.units.add(unit(stage, list, copies))));
        Stage before = null;
        for (Stage stage : stages.values()) {
            if (before != null && !stage.units.isEmpty()) {
                before.next = stage;
            }
            before = stage.units.isEmpty() ? before : stage;
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
        if (block instanceof FullyShard unit) {
            stage = stages.computeIfAbsent(unit, own -> new Stage(unit, outer));
            if (outer != null) {
                outer.hasInner = true;
            }
        }
        Stage own = stage;
        for (Parameter parameter : block.getDirectParameters().values()) {
            owners.merge(parameter.getArray(), own, Stage::common);
            if (!(block instanceof RankStore.Casting)) {
                uncast.put(parameter.getArray(), block);
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

    /** Destroys the groups that this has created. */
    void destroyMeshes() {
        for (Mesh mesh : meshes.values()) {
            if (mesh.replicas != null) {
                mesh.replicas.destroy();
                mesh.shards.destroy();
            }
        }
    }

    private Unit unit(Stage stage, List<Named> parameters, ToIntFunction<NDArray> copies) {
        ProcessGroup ranks = stage.mesh.shards;
        long total = parameters.stream().mapToLong(own -> own.array().size()).sum();
        long size = (total + ranks.worldSize() - 1) / ranks.worldSize();
        DataType dataType = parameters.get(0).array().getDataType();
        NDManager owner = stage.policy.offloads() ? host : manager;
        Unit unit = new Unit(owner.zeros(new Shape(size), dataType));
        long begin = size * ranks.rank();
        long offset = 0;
        for (Named own : parameters) {
            NDArray whole = own.array();
            long first = Math.max(offset, begin);
            long last = Math.min(offset + whole.size(), begin + size);
            NDArray owned = null;
            if (first < last) {
                owned = Torch.narrow(unit.shard, 0, first - begin, last - first);
                copyPart(whole, first - offset, owned);
            }
            String id = replica.idOf(own.parameters.get(0));
            Shape shape = whole.getShape();
            long from = first - begin;
            int same = copies.applyAsInt(whole) * group.worldSize() / ranks.worldSize();
            boolean casts = !uncast.containsKey(whole);
            unit.parts.add(
                    new Part(
                            own.name, own.parameters, id, shape, offset, owned, from, casts, same));
            offset += whole.size();
        }
        return unit;
    }

    /** Returns an array in a type and on a device: itself, or a copy in a manager of the device. */
    private static NDArray converted(
            NDManager owner, NDArray array, ScalarType type, Device device) {
        if (Torch.scalarType(array) == type && array.getDevice().equals(device)) {
            return array;
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
            for (Unit unit : stage.units) {
                for (Part part : unit.parts) {
                    if (part.owned != null) {
                        long first = unit.shard.size() * stage.mesh.shards.rank();
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
            for (Unit unit : stage.units) {
                ScalarType type = Torch.scalarType(unit.shard);
                for (Part part : unit.parts) {
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
    public NDList forward(Block unit, RankStore own, NDList data, NDList labels, boolean training) {
        Stage stage = stages.get(unit);
        Block block = ((FullyShard) unit).block();
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

    /** Starts to gather the stage that the last pass computed after this one. */
    private void visit(Stage stage) {
        if (stage.units.isEmpty()) {
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
        stage.acquire(); // until the backward pass has reached its inputs
        List<NDArray> recorded = data.stream().filter(Torch::requiresGradient).toList();
        NDList inputs = ForwardPass.cut(scope, data, recorded, () -> reduce(stage));
        return ForwardPass.forward(stage.block, own, inputs, labels);
    }

    /** Starts to reduce the gradients of a stage, and releases its parameters. */
    private void reduce(Stage stage) {
        NDManager rows = manager.newSubManager();
        List<NDArray> inputs = new ArrayList<>();
        List<NDArray> results = new ArrayList<>();
        for (Unit unit : stage.units) {
            ScalarType type = stage.policy.reductionType(Torch.scalarType(unit.shard));
            NDArray zeros = rows.zeros(stage.whole(unit), unit.shard.getDataType());
            NDArray row = converted(rows, zeros, type, device);
            unit.parts.forEach(part -> fill(rows, row, part));
            inputs.add(row);
            results.add(Torch.empty(rows, unit.shard.getShape(), type));
        }
        stage.release();
        finishReduction();
        if (!inputs.isEmpty()) {
            Work work = running(stage.mesh.shards.reduceScatterCoalesced(results, inputs, op));
            reduction = new Reduction(stage, rows, results, work);
        } else {
            rows.close();
        }
    }

    /**
     * Limits how far the host is ahead, as PyTorch's {@code limit_all_gathers}: an operation keeps
     * its arrays until the GPU has ended it, so a host that is far ahead would keep all gathered
     * parameters.
     */
    private Work running(Work work) {
        running.add(work);
        if (running.size() > MOST_RUNNING) {
            running.remove().await(Duration.ofDays(1)); // Its own timeout ends it before.
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
            Unit unit = reduction.stage.units.get(i);
            ScalarType type = Torch.scalarType(unit.shard);
            try (NDManager temporary = unit.shard.getManager().newSubManager()) {
                Device owner = unit.shard.getDevice();
                NDArray result = converted(temporary, reduction.results.get(i), type, owner);
                if (unit.gradient == null) {
                    unit.gradient = result;
                    result.attach(gradients());
                } else {
                    TorchInPlace.add(unit.gradient, result);
                }
            }
        }
        reduction.manager.close();
        reduction = null;
    }

    private NDManager gradients() {
        if (ofGradients == null) {
            ofGradients = manager.newSubManager();
        }
        return ofGradients;
    }

    /** Returns the reduced gradients of this rank's parts of trained parameters. */
    private PairList<Part, NDArray> reduced() {
        finishReduction();
        PairList<Part, NDArray> gradients = new PairList<>();
        for (Stage stage : stages.values()) {
            for (Unit unit : stage.units) {
                if (unit.gradient == null) {
                    unit.gradient = unit.shard.zerosLike();
                    unit.gradient.attach(gradients());
                }
                for (Part part : unit.parts) {
                    if (part.isTrained()) {
                        gradients.add(part, unit.gradient(part));
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
        if (ofGradients != null) {
            ofGradients.close();
            ofGradients = null;
            stages.values().forEach(stage -> stage.units.forEach(unit -> unit.gradient = null));
        }
    }

    /** Frees all parameters that passes without a backward pass have left gathered. */
    void reset() {
        stages.values().forEach(Stage::free);
    }

    /**
     * Gathers all parameters, until as many calls of {@link #releaseAll}; {@code inOwnType} not in
     * the type of the policy.
     */
    void acquireAll(boolean inOwnType) {
        exact = inOwnType;
        try {
            stages.values().forEach(Stage::acquire);
        } finally {
            exact = false;
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
