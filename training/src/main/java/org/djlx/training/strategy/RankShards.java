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
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.util.Pair;
import ai.djl.util.PairList;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.EnumMap;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
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
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.djlx.training.internal.ForwardPass;
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.internal.OptimizerState;
import org.djlx.training.internal.RankStore;
import org.djlx.training.internal.Recomputation;
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

        /** Returns whether its gradients are reduced; the same on all ranks. */
        boolean isTrained() {
            return parts.stream().anyMatch(part -> part.parameter().requiresGradient());
        }

        NDArray gradient(Part part) {
            return Torch.narrow(gradient, 0, part.from, part.owned.size());
        }
    }

    /** Memory in which stages are gathered one after the other. */
    private static final class Slot {

        private final Map<ScalarType, Long> sizes = new EnumMap<>(ScalarType.class); // elements
        private final Map<ScalarType, NDArray> rows = new EnumMap<>(ScalarType.class);
        private Stage holder; // whose parameters it has or is receiving; null for none

        /** Makes room for a stage, before the memory is allocated. */
        void reserve(Map<ScalarType, Long> needed) {
            needed.forEach((type, size) -> sizes.merge(type, size, Math::max));
        }

        /** Returns the row of all elements of a type. */
        NDArray row(NDManager manager, ScalarType type) {
            return rows.computeIfAbsent(
                    type, key -> Torch.empty(manager, new Shape(sizes.get(key)), key));
        }

        /** Forgets what is in the memory, unless it is in use. */
        void evictIfUnused() {
            if (holder != null && holder.uses == 0) {
                holder.evict();
            }
        }
    }

    /** A stage's whole parameters in one memory. Blocks compute with its arrays. */
    private final class Whole {

        private final Stage stage;
        private final boolean inOwnType; // whether gathers ignore the policy's type
        private final NDManager owner = manager.newSubManager();
        private final List<NDArray> rows = new ArrayList<>(); // of the flat parameters
        private final List<NDArray> arrays = new ArrayList<>(); // of the stage's parts
        private NDManager temporary; // of the running gather
        private final List<NDArray> gathered = new ArrayList<>(); // outputs of the running gather
        private Work gathering; // running, or null

        /** Takes memory of a slot; of its own without one. */
        Whole(Stage stage, Optional<Slot> slot, boolean inOwnType) {
            this.stage = stage;
            this.inOwnType = inOwnType;
            NoGradient.run(() -> create(slot));
        }

        private void create(Optional<Slot> slot) {
            Map<ScalarType, Long> used = new EnumMap<>(ScalarType.class);
            for (FlatParameter flat : stage.flats) {
                ScalarType type = stage.heldType(flat, inOwnType);
                Shape shape = stage.whole(flat);
                NDArray row =
                        slot.map(
                                        own -> {
                                            long begin = used.getOrDefault(type, 0L);
                                            used.put(type, begin + shape.size());
                                            NDArray all = own.row(manager, type);
                                            return Torch.narrow(all, 0, begin, shape.size());
                                        })
                                .orElseGet(() -> Torch.empty(owner, shape, type));
                rows.add(row);
                row.attach(owner);
                for (Part part : flat.parts) {
                    try (NDArray elements = Torch.narrow(row, 0, part.offset, part.shape.size());
                            NDArray shaped = elements.reshape(part.shape)) {
                        arrays.add(Torch.data(owner, shaped));
                    }
                }
            }
        }

        void gather() {
            temporary = owner.newSubManager();
            gathered.clear();
            List<NDArray> shards = new ArrayList<>();
            for (int i = 0; i < rows.size(); i++) {
                FlatParameter flat = stage.flats.get(i);
                ScalarType type = stage.gatheredType(flat, inOwnType);
                boolean isHeld = type == Torch.scalarType(rows.get(i));
                gathered.add(
                        isHeld ? rows.get(i) : Torch.empty(temporary, stage.whole(flat), type));
                shards.add(converted(temporary, flat.shard, type, device));
            }
            gathering = limited(stage.mesh.shards.allGatherCoalesced(gathered, shards));
        }

        void await() {
            Work running = gathering;
            gathering = null; // Also if it fails: free() then does not wait for it again.
            if (running == null) {
                return;
            }
            try {
                Replica.complete(device, running);
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
            List<Part> parts = stage.parts();
            for (int i = 0; i < parts.size(); i++) {
                NDArray array = arrays.get(i);
                array.setRequiresGradient(parts.get(i).parameter().requiresGradient());
                NDArray alias = Torch.alias(use, array);
                for (Parameter parameter : parts.get(i).parameters) {
                    store.put(parameter, alias);
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

    /** A block that is gathered as a whole. */
    private final class Stage {

        private final Block block;
        private final FullyShardPolicy policy;
        private final Mesh mesh;
        private final Stage outer; // null for the whole model
        private final int depth; // number of stages around this one
        private final List<FlatParameter> flats = new ArrayList<>();
        private boolean hasInner; // whether the stage contains others
        private Stage next; // in the order of the last pass; before the first one, of the model
        private Slot slot; // null if the stage keeps its parameters until the backward pass
        private Whole inSlot; // null without a slot
        private Whole apart; // in memory of its own; null for none
        private int uses; // calls of acquire() without release()
        private NDManager published; // of the arrays that blocks find; null if unused

        Stage(FullyShard wrapper, Stage outer) {
            block = wrapper.block();
            policy = wrapper.policy();
            mesh =
                    meshes.computeIfAbsent(
                            policy.shardRanks(group.worldSize()), RankShards.this::mesh);
            this.outer = outer;
            depth = outer == null ? 0 : outer.depth + 1;
        }

        /** Returns whether the parameters are divided again after a forward pass. */
        boolean isDividedAfterForward() {
            return !flats.isEmpty() && !hasInner && policy.reshardsAfterForward();
        }

        ScalarType gatheredType(FlatParameter flat, boolean inOwnType) {
            ScalarType own = Torch.scalarType(flat.shard);
            return inOwnType ? own : policy.parameterType(own);
        }

        /** Returns the type of the arrays: the parameters' own, unless all layers cast them. */
        ScalarType heldType(FlatParameter flat, boolean inOwnType) {
            ScalarType gathered = gatheredType(flat, inOwnType);
            boolean layersCast =
                    gathered == store.computeType() && flat.parts.stream().allMatch(Part::casts);
            return layersCast ? gathered : Torch.scalarType(flat.shard);
        }

        /** Returns the number of elements of each type that the parameters take. */
        Map<ScalarType, Long> sizes() {
            Map<ScalarType, Long> sizes = new EnumMap<>(ScalarType.class);
            flats.forEach(f -> sizes.merge(heldType(f, false), whole(f).size(), Long::sum));
            return sizes;
        }

        /** Starts to gather the parameters, unless they are gathered or the slot is in use. */
        void begin() {
            if (flats.isEmpty() || apart != null) {
                return;
            }
            if (slot == null) {
                gatherApart();
            } else if (slot.holder != this) {
                slot.evictIfUnused();
                if (slot.holder == null) {
                    if (inSlot == null) {
                        inSlot = new Whole(this, Optional.of(slot), false);
                    }
                    NoGradient.run(inSlot::gather);
                    slot.holder = this; // Not if the gather could not be issued.
                }
            }
        }

        private void gatherApart() {
            Whole whole = new Whole(this, Optional.empty(), false);
            NoGradient.run(whole::gather);
            apart = whole;
        }

        /** Waits until the parameters are gathered, and keeps them until {@link #release}. */
        void acquire() {
            begin();
            if (!flats.isEmpty() && published == null) {
                Whole whole = apart == null ? inSlot : apart;
                if (whole == inSlot && slot.holder != this) {
                    throw new IllegalStateException(
                            "forward: a block of FullyShard is computed within another one that is"
                                    + " not its parent; let FullyShard.apply choose only one of"
                                    + " them");
                }
                try {
                    NoGradient.run(whole::await);
                } catch (RuntimeException | Error e) {
                    discard(); // What has not arrived is not to be used.
                    throw e;
                }
                published = whole.publish();
            }
            uses++;
        }

        /** As {@link #acquire}, in memory of its own. */
        void acquireApart() {
            if (apart == null && !flats.isEmpty()) {
                gatherApart();
            }
            acquire();
        }

        /** Unpublishes the parameters if this is the last use. */
        void release() {
            uses--;
            unpublishIfUnused();
        }

        void unpublishIfUnused() {
            if (uses == 0) {
                unpublish();
            }
        }

        /**
         * Blocks find the parameters no more. Frees memory outside of slots; a slot keeps them
         * until another stage needs it.
         */
        private void unpublish() {
            parts().forEach(part -> part.parameters.forEach(store::remove));
            if (published != null) {
                published.close();
                published = null;
            }
            if (apart != null) {
                NoGradient.run(apart::await);
                apart.close();
                apart = null;
            }
        }

        /** Gives up the slot. */
        void evict() {
            slot.holder = null;
            NoGradient.run(inSlot::await);
        }

        /** Frees the parameters, even if they are in use. */
        void discard() {
            uses = 0;
            unpublish();
            if (slot != null && slot.holder == this) {
                evict();
            }
            if (inSlot != null) {
                inSlot.clearGradients();
            }
        }

        Shape whole(FlatParameter flat) {
            return new Shape(flat.shard.size() * mesh.shards.worldSize());
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

    private record Reduction(
            Stage stage,
            List<FlatParameter> flats,
            NDManager manager,
            List<NDArray> results,
            Work work) {}

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
    private Stage last; // that the running forward pass visited last; null before the first one
    private Stage recorded; // of these the last one with a backward pass; null before the first one
    private int discarded; // how often passes were discarded
    private Reduction reduction; // running, or null
    private final Queue<Work> running = new ArrayDeque<>(); // oldest first
    private List<Slot> slots;
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
            if (!LocalParameter.isBuffer(named.getValue())) {
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
        assignSlots();
        uncast.clear();
        store.setUnits(this);
    }

    /**
     * Gives stages one of two slots, in turns: one is computed while the next one is gathered. The
     * graph of a pass refers to a slot's memory, so a stage has the same one each time.
     */
    private void assignSlots() {
        Slot[] slots = {new Slot(), new Slot()};
        int turn = 0;
        for (Stage stage : stages.values()) {
            if (stage.isDividedAfterForward()) {
                stage.slot = slots[turn++ % slots.length];
                stage.slot.reserve(stage.sizes());
            }
        }
        this.slots = List.of(slots);
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
        recorded = null;
        slots.forEach(Slot::evictIfUnused); // The shards may have changed.
        try {
            return training
                    ? ForwardPass.forward(root, store, data, labels)
                    : ForwardPass.evaluate(root, store, data);
        } finally {
            stages.values().forEach(Stage::unpublishIfUnused);
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
            // Not if the store is of a pass that only some ranks run, or that computes again.
            boolean isVisited = own == store && !Recomputation.isRunning();
            if (isVisited) {
                visit(stage);
            }
            GradientScope scope = training ? GradientScope.current().orElse(null) : null;
            boolean isRecorded =
                    scope != null && JniUtils.isGradMode() && Recomputation.isTrained(block, data);
            NDList outputs;
            if (isRecorded && !stage.flats.isEmpty()) {
                outputs = compute(new Recorded(stage, isVisited), own, data, labels, scope);
            } else if (isRecorded) {
                outputs = ForwardPass.forward(block, own, data, labels);
            } else {
                outputs =
                        NoGradient.get(
                                () -> Recomputation.compute(block, own, data, labels, training));
            }
            boolean isInSlot = stage.slot != null && stage.apart == null;
            return isInSlot ? stage.inSlot.withoutViews(outputs) : outputs;
        } finally {
            stage.release();
        }
    }

    /** The backward pass of a stage. */
    private final class Recorded {

        private final Stage stage;
        private final Stage before; // whose backward pass is next; null if not known
        private final boolean isInSlot;
        private final int time = discarded;
        private boolean isAcquired; // until the gradients are reduced

        Recorded(Stage stage, boolean isVisited) {
            this.stage = stage;
            isInSlot = stage.apart == null;
            before = isVisited ? recorded : null;
            if (isVisited) {
                recorded = stage;
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
            for (Part part : stage.parts()) {
                try (NDArray gradient =
                        JniUtils.getGradient((PtNDArray) store.array(part.parameter()))) {
                    if (gradient != null) {
                        throw new IllegalStateException(
                                "backward: the loss depends on a result of "
                                        + stage.block.getClass().getName()
                                        + " that the block did not return, so its gradient was"
                                        + " computed while the parameters were not gathered;"
                                        + " return it as an output, or choose this block with"
                                        + " optReshardAfterForward(false)");
                    }
                }
            }
            if (before != null) {
                before.begin();
            }
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
        NDList inputs = ForwardPass.cut(scope, data, recorded(data), pass::end);
        NDList outputs = ForwardPass.forward(pass.stage.block, own, inputs, labels);
        outputs.attach(data.head().getManager()); // A result of parameters is closed with them.
        return pass.isInSlot
                ? ForwardPass.cut(scope, outputs, recorded(outputs), pass::begin)
                : outputs;
    }

    private static List<NDArray> recorded(NDList arrays) {
        return arrays.stream().filter(Torch::requiresGradient).toList();
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

    /** Starts to reduce the gradients of a stage, and releases its parameters. */
    private void reduce(Stage stage) {
        NDManager temporary = manager.newSubManager();
        List<FlatParameter> trained =
                stage.flats.stream().filter(FlatParameter::isTrained).toList();
        List<NDArray> inputs = new ArrayList<>();
        List<NDArray> results = new ArrayList<>();
        for (FlatParameter flat : trained) {
            ScalarType type = stage.policy.reductionType(Torch.scalarType(flat.shard));
            NDArray row = Torch.empty(temporary, stage.whole(flat), type);
            flat.parts.forEach(part -> fill(temporary, row, part));
            Part end = flat.parts.get(flat.parts.size() - 1);
            long used = end.offset + end.shape.size();
            clear(temporary, Torch.narrow(row, 0, used, row.size() - used));
            inputs.add(row);
            results.add(Torch.empty(temporary, flat.shard.getShape(), type));
        }
        stage.release();
        finishReduction();
        if (!inputs.isEmpty()) {
            Work work = limited(stage.mesh.shards.reduceScatterCoalesced(results, inputs, op));
            reduction = new Reduction(stage, trained, temporary, results, work);
        } else {
            temporary.close();
        }
    }

    /**
     * Waits for the oldest operation if too many are running, as PyTorch's {@code
     * limit_all_gathers}. An operation keeps its arrays until the GPU has ended it, so a host that
     * is far ahead would keep the gradients of all stages.
     */
    private Work limited(Work work) {
        running.add(work);
        if (running.size() > MAX_RUNNING) {
            running.remove().await(Duration.ofDays(1)); // Its own timeout is shorter.
        }
        return work;
    }

    /** Writes a gradient to its place in a row, zeros if there is none, and clears it. */
    private void fill(NDManager rows, NDArray row, Part part) {
        NDArray array = store.array(part.parameter());
        NDArray place = Torch.narrow(row, 0, part.offset, part.shape.size()).reshape(part.shape);
        try (NDArray gradient = Recomputation.gradient(array, rows)) {
            if (gradient == null) {
                clear(rows, place);
            } else {
                Torch.copy(place, gradient);
            }
        }
        Torch.setGradient(array, null);
    }

    private static void clear(NDManager rows, NDArray array) {
        if (array.size() > 0) {
            Torch.copy(array, rows.zeros(array.getShape()));
        }
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
            FlatParameter flat = reduction.flats.get(i);
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
                if (flat.gradient == null && flat.isTrained()) {
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
        discarded++;
        stages.values().forEach(Stage::discard);
    }

    /** Gathers all parameters, and keeps them until {@link #releaseAll}. Calls nest. */
    void acquireAll() {
        stages.values().forEach(stage -> stage.acquireApart());
    }

    void releaseAll() {
        stages.values().forEach(Stage::release);
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
        for (Stage stage : stages.values()) {
            if (stage.flats.isEmpty()) {
                continue;
            }
            Whole whole = new Whole(stage, Optional.empty(), true);
            try {
                NoGradient.run(whole::gather);
                NoGradient.run(whole::await);
                owner.ifPresent(own -> restore(stage.parts(), whole.arrays, own));
            } finally {
                whole.close();
            }
        }
    }

    private static void restore(List<Part> parts, List<NDArray> arrays, NDManager owner) {
        for (int i = 0; i < parts.size(); i++) {
            NDArray copy = NoGradient.get(arrays.get(i)::duplicate);
            copy.attach(owner);
            for (Parameter parameter : parts.get(i).parameters) {
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
