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
import ai.djl.util.Pair;
import ai.djl.util.PairList;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.collectives.gradient.GradientScope;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.nativeops.torch.TorchInPlace;
import org.djlx.training.internal.ForwardPass;
import org.djlx.training.internal.LocalParameter;
import org.djlx.training.internal.OptimizerState;
import org.djlx.training.internal.ParameterShard;
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
final class RankShards {

    /**
     * A parameter in a unit, and this rank's part of the parameter.
     *
     * @param offset where the parameter begins in the row of the unit's parameters
     * @param owned the rank's part, a view of the shard; null if the rank has no part
     * @param from where the rank's part begins in the shard
     */
    private record Part(
            String name,
            Parameter parameter,
            String id,
            Shape shape,
            long offset,
            NDArray owned,
            long from) {}

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

    /** A child of a SequentialBlock, or the whole block if it is no SequentialBlock. */
    private final class Stage {

        private final Block block;
        private final List<Unit> units = new ArrayList<>();
        private final Recomputation recomputation;
        private NDManager gathered; // of the whole parameters; null while they are divided
        private Work gathering; // running, or null
        private int uses; // calls of acquire() without release()

        Stage(Block block) {
            this.block = block;
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
            List<NDArray> wholes = new ArrayList<>();
            List<NDArray> shards = new ArrayList<>();
            for (Unit unit : units) {
                ScalarType type = Torch.scalarType(unit.shard);
                NDArray whole = Torch.empty(gathered, whole(unit), type);
                for (Part part : unit.parts) {
                    NDArray array = Torch.narrow(whole, 0, part.offset, part.shape.size());
                    array = array.reshape(part.shape);
                    array.setRequiresGradient(part.parameter.requiresGradient());
                    store.put(part.parameter, array);
                }
                wholes.add(whole);
                shards.add(unit.shard);
            }
            gathering = running(group.allGatherCoalesced(wholes, shards));
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
            }
        }

        /** Frees the parameters if this is the last use. */
        void release() {
            uses--;
            if (uses == 0) {
                free();
            }
        }

        /** Frees the parameters, whatever their uses. */
        void free() {
            uses = 0;
            if (gathered != null) {
                await();
                parts().forEach(part -> store.remove(part.parameter));
                gathered.close();
                gathered = null;
            }
        }

        List<Part> parts() {
            return units.stream().flatMap(unit -> unit.parts.stream()).toList();
        }
    }

    private record Reduction(Stage stage, NDManager manager, List<NDArray> results, Work work) {}

    private static final int MOST_RUNNING = 3; // a gather, a reduction, and one that has just ended

    private final Replica replica;
    private final ProcessGroup group;
    private final Device device;
    private final NDManager manager;
    private final RankStore store;
    private final ReduceOp op;
    private final List<Stage> stages = new ArrayList<>();
    private Reduction reduction; // running, or null
    private final Queue<Work> running = new ArrayDeque<>(); // the last operations
    private NDManager ofGradients; // owns the units' gradients and views of them; null if none

    /** Copies this rank's shards of an initialised block; its arrays are not needed afterwards. */
    RankShards(Replica replica, Block root, ReduceOp op) {
        this.replica = replica;
        this.op = op;
        group = replica.group();
        device = replica.device();
        manager = replica.manager();
        store = replica.store();
        List<Block> blocks = new ArrayList<>();
        ForwardPass.collect(root, blocks);
        Map<Parameter, String> names = new IdentityHashMap<>();
        root.getParameters().forEach(named -> names.put(named.getValue(), named.getKey()));
        Set<NDArray> seen = Collections.newSetFromMap(new IdentityHashMap<>());
        for (Block block : blocks) {
            Stage stage = new Stage(block);
            Map<ScalarType, List<Parameter>> byType = new LinkedHashMap<>();
            for (Parameter parameter : block.getParameters().values()) {
                if (LocalParameter.isStatistic(parameter)) {
                    continue;
                }
                if (!seen.add(parameter.getArray())) {
                    throw new IllegalArgumentException(
                            String.format(
                                    "initialize: FULL_SHARD does not support the parameter '%s',"
                                            + " which the block uses twice; use SHARD_OPTIMIZER",
                                    parameter.getName()));
                }
                byType.computeIfAbsent(
                                Torch.scalarType(parameter.getArray()), t -> new ArrayList<>())
                        .add(parameter);
            }
            byType.values().forEach(list -> stage.units.add(unit(list, names)));
            stages.add(stage);
        }
    }

    private Unit unit(List<Parameter> parameters, Map<Parameter, String> names) {
        long total = parameters.stream().mapToLong(p -> p.getArray().size()).sum();
        long size = (total + group.worldSize() - 1) / group.worldSize();
        DataType dataType = parameters.get(0).getArray().getDataType();
        Unit unit = new Unit(manager.zeros(new Shape(size), dataType));
        long begin = size * group.rank();
        long offset = 0;
        for (Parameter parameter : parameters) {
            NDArray whole = parameter.getArray();
            long first = Math.max(offset, begin);
            long last = Math.min(offset + whole.size(), begin + size);
            NDArray owned = null;
            if (first < last) {
                owned = Torch.narrow(unit.shard, 0, first - begin, last - first);
                copyPart(whole, first - offset, owned);
            }
            String id = replica.idOf(parameter);
            Shape shape = whole.getShape();
            String name = names.get(parameter);
            unit.parts.add(new Part(name, parameter, id, shape, offset, owned, first - begin));
            offset += whole.size();
        }
        return unit;
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
        for (Stage stage : stages) {
            for (Unit unit : stage.units) {
                for (Part part : unit.parts) {
                    if (part.owned != null) {
                        long begin = unit.shard.size() * group.rank() + part.from - part.offset;
                        shards.add(
                                new ParameterShard(
                                        part.name, part.id, part.shape, begin, part.owned, true));
                    }
                }
            }
        }
        return shards;
    }

    void addSpecs(Map<String, TensorSpec> specs) {
        for (Stage stage : stages) {
            for (Unit unit : stage.units) {
                ScalarType type = Torch.scalarType(unit.shard);
                for (Part part : unit.parts) {
                    specs.put(part.name, TensorSpec.of(part.name, type, part.shape));
                }
            }
        }
    }

    private Shape whole(Unit unit) {
        return new Shape(unit.shard.size() * group.worldSize());
    }

    /** Computes all stages; records them in the current gradient scope. */
    NDList forward(NDList data, NDList labels, boolean training) {
        GradientScope scope = training ? GradientScope.current().orElse(null) : null;
        NDList current = data;
        Stage before = null;
        for (int i = 0; i < stages.size(); i++) {
            Stage stage = stages.get(i);
            stage.acquire();
            try {
                stages.subList(i + 1, stages.size()).stream()
                        .filter(next -> !next.units.isEmpty())
                        .findFirst()
                        .ifPresent(Stage::begin);
                boolean records = scope != null && isTrained(stage, current);
                boolean twice = records && stage.recomputation.mode(current, labels) != Mode.KEPT;
                if (!records) {
                    NDList inputs = current;
                    current =
                            NoGradient.get(
                                    () -> stage.recomputation.compute(inputs, labels, training));
                } else if (twice) {
                    current = computeTwice(stage, before, current, labels, scope);
                } else {
                    current = computeOnce(stage, current, labels, scope);
                }
                if (!stage.units.isEmpty()) {
                    before = twice ? stage : null;
                }
            } finally {
                stage.release();
            }
        }
        return current;
    }

    private static boolean isTrained(Stage stage, NDList inputs) {
        return stage.parts().stream().anyMatch(part -> part.parameter.requiresGradient())
                || inputs.stream().anyMatch(Torch::requiresGradient);
    }

    /** Computes a stage without a graph; the backward pass computes it again with one. */
    private NDList computeTwice(
            Stage stage, Stage before, NDList data, NDList labels, GradientScope scope) {
        Runnable begin =
                () -> {
                    stage.acquire();
                    if (before != null) {
                        before.begin();
                    }
                };
        return stage.recomputation.forward(data, labels, scope, begin, () -> reduce(stage));
    }

    /** Computes a stage that cannot be computed again: keeps its graph and its parameters. */
    private NDList computeOnce(Stage stage, NDList data, NDList labels, GradientScope scope) {
        stage.acquire(); // until the backward pass has reached its inputs
        List<NDArray> recorded = data.stream().filter(Torch::requiresGradient).toList();
        NDList inputs = ForwardPass.cut(scope, data, recorded, () -> reduce(stage));
        return ForwardPass.forward(stage.block, store, inputs, labels);
    }

    /** Starts to reduce the gradients of a stage, and releases its parameters. */
    private void reduce(Stage stage) {
        NDManager rows = manager.newSubManager();
        List<NDArray> inputs = new ArrayList<>();
        List<NDArray> results = new ArrayList<>();
        for (Unit unit : stage.units) {
            NDArray row = rows.zeros(whole(unit), unit.shard.getDataType());
            unit.parts.forEach(part -> fill(rows, row, part));
            inputs.add(row);
            results.add(Torch.empty(rows, unit.shard.getShape(), Torch.scalarType(unit.shard)));
        }
        stage.release();
        finishReduction();
        if (!inputs.isEmpty()) {
            Work work = running(group.reduceScatterCoalesced(results, inputs, op));
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
        NDArray array = store.array(part.parameter);
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
        for (int i = 0; i < reduction.results.size(); i++) {
            Unit unit = reduction.stage.units.get(i);
            NDArray result = reduction.results.get(i);
            if (unit.gradient == null) {
                unit.gradient = result;
                result.attach(gradients());
            } else {
                TorchInPlace.add(unit.gradient, result);
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
        for (Stage stage : stages) {
            for (Unit unit : stage.units) {
                if (unit.gradient == null) {
                    unit.gradient = unit.shard.zerosLike();
                    unit.gradient.attach(gradients());
                }
                for (Part part : unit.parts) {
                    if (part.owned != null && part.parameter.requiresGradient()) {
                        gradients.add(part, unit.gradient(part));
                    }
                }
            }
        }
        return gradients;
    }

    double norm() {
        return GradientNorm.of(replica, reducedGradients(), i -> 1, group);
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
            stages.forEach(stage -> stage.units.forEach(unit -> unit.gradient = null));
        }
    }

    /** Frees all parameters that passes without a backward pass have left gathered. */
    void reset() {
        stages.forEach(Stage::free);
    }

    /** Gathers all parameters, until as many calls of {@link #releaseAll}. */
    void acquireAll() {
        stages.forEach(Stage::acquire);
    }

    void releaseAll() {
        stages.forEach(Stage::release);
    }

    /** Closes the block's own arrays. Using them throws until {@link #restore}. */
    void closeOriginals() {
        parts().forEach(part -> part.parameter.getArray().close());
    }

    /** Gives the block whole arrays again, from gathered parameters. */
    void restore(NDManager owner) {
        for (Part part : parts()) {
            NDArray copy = NoGradient.get(() -> store.array(part.parameter).duplicate());
            copy.attach(owner);
            part.parameter.close(); // Otherwise DJL refuses another array.
            part.parameter.setShape(null);
            part.parameter.setArray(copy);
        }
    }

    /** Removes the optimizer's state, which fits only these shards. */
    void removeState(OptimizerState state) {
        parts().forEach(part -> state.set(part.id, device, null, Map.of()));
    }

    private List<Part> parts() {
        return stages.stream().flatMap(stage -> stage.parts().stream()).toList();
    }
}
