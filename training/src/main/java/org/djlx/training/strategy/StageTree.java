// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.strategy;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.nn.Block;
import ai.djl.nn.Parameter;
import ai.djl.util.Pair;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.ToIntFunction;
import org.djlx.collectives.DeviceMesh;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.internal.RankStore;
import org.djlx.training.internal.Replica;

/** The stages of a model, with this rank's shards of its parameters. */
final class StageTree {

    private final Replica replica;
    private final ProcessGroup group;
    private final StageContext context;
    private final NDManager host; // of offloaded shards
    // Arrays that a layer uses without casting them; empty after the constructor.
    private final Set<NDArray> uncast = Collections.newSetFromMap(new IdentityHashMap<>());
    private final Map<Integer, ShardedStage.Mesh> meshes = new HashMap<>(); // by ranks that divide
    private final Map<Block, ShardedStage> stages = new LinkedHashMap<>();
    private final List<ParameterSlot> slots;

    /** Copies the shards of an initialised block; its arrays are not needed afterwards. */
    StageTree(Replica replica, StageContext context, FullyShard root) {
        this.replica = replica;
        this.context = context;
        group = replica.group();
        host = context.manager().newSubManager(Device.cpu());
        Map<NDArray, ShardedStage> owners = new IdentityHashMap<>();
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
        Map<ShardedStage, Map<ScalarType, List<Named>>> byStage = new IdentityHashMap<>();
        for (Named named : parameters) {
            ShardedStage owner = owners.get(named.array());
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
                                .forEach(list -> stage.flats().add(flatten(stage, list, copies))));
        ShardedStage before = null;
        for (ShardedStage stage : stages.values()) {
            if (before != null && !stage.flats().isEmpty()) {
                before.setNext(stage);
            }
            before = stage.flats().isEmpty() ? before : stage;
        }
        slots = assignSlots();
        uncast.clear();
    }

    /** {@return the stages by their block, in the model's order} */
    Map<Block, ShardedStage> stages() {
        return stages;
    }

    List<ParameterSlot> slots() {
        return slots;
    }

    /**
     * Gives stages one of two slots, in turns: one is computed while the next one is gathered. The
     * graph of a pass refers to a slot's memory, so a stage has the same one each time.
     */
    private List<ParameterSlot> assignSlots() {
        ParameterSlot[] slots = {new ParameterSlot(), new ParameterSlot()};
        List<ShardedStage> divided =
                stages.values().stream().filter(ShardedStage::reshardsAfterForward).toList();
        for (int i = 0; i < divided.size(); i++) {
            slots[i % slots.length].reserve(divided.get(i));
        }
        for (int i = 0; i < divided.size(); i++) {
            divided.get(i).setSlot(slots[i % slots.length]);
        }
        return List.of(slots);
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
    private void collect(Block block, ShardedStage outer, Map<NDArray, ShardedStage> owners) {
        ShardedStage stage = outer;
        if (block instanceof FullyShard wrapper) {
            stage = stages.computeIfAbsent(wrapper, key -> stage(wrapper, outer));
        }
        ShardedStage own = stage;
        for (Parameter parameter : block.getDirectParameters().values()) {
            owners.merge(parameter.getArray(), own, ShardedStage::innermostCommon);
            if (!(block instanceof RankStore.Casting)) {
                uncast.add(parameter.getArray());
            }
        }
        block.getChildren().values().forEach(child -> collect(child, own, owners));
    }

    private ShardedStage stage(FullyShard wrapper, ShardedStage outer) {
        int ranks = wrapper.policy().shardRanks(group.worldSize());
        ShardedStage.Mesh mesh = meshes.computeIfAbsent(ranks, this::mesh);
        return new ShardedStage(context, wrapper, mesh, outer);
    }

    private ShardedStage.Mesh mesh(int ranks) {
        if (ranks == group.worldSize()) {
            return new ShardedStage.Mesh(group.withCopyEngines(), Optional.empty());
        }
        int[] shape = {group.worldSize() / ranks, ranks};
        DeviceMesh mesh = DeviceMesh.create(group, shape, "replicas", "shards");
        ProcessGroup shards = mesh.group("shards").withCopyEngines();
        return new ShardedStage.Mesh(shards, Optional.of(mesh.group("replicas")));
    }

    /** Destroys the groups of hybrid sharding. */
    void destroyMeshes() {
        for (ShardedStage.Mesh mesh : meshes.values()) {
            mesh.replicas()
                    .ifPresent(
                            replicas -> {
                                replicas.destroy();
                                mesh.shards().destroy();
                            });
        }
    }

    private FlatParameter flatten(
            ShardedStage stage, List<Named> parameters, ToIntFunction<NDArray> copies) {
        ProcessGroup ranks = stage.mesh().shards();
        long total = parameters.stream().mapToLong(own -> own.array().size()).sum();
        long size = (total + ranks.worldSize() - 1) / ranks.worldSize();
        ScalarType type = Torch.scalarType(parameters.get(0).array());
        NDManager owner = stage.policy().offloads() ? host : context.manager();
        FlatParameter flat = new FlatParameter(Torch.zeros(owner, new Shape(size), type));
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
                    new FlatParameter.Part(
                            own.name, own.parameters, id, shape, offset, owned, from, casts, same));
            offset += whole.size();
        }
        return flat;
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
}
