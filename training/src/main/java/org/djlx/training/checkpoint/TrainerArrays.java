// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import com.google.gson.Gson;
import java.io.IOException;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.DataParallelTrainer;
import org.djlx.training.internal.OptimizerState;
import org.djlx.training.strategy.ParameterShard;

/** A trainer's parameters and optimizer state, as a checkpoint names them. */
final class TrainerArrays {

    private TrainerArrays() {}

    /**
     * Returns the arrays that the ranks of this process own, by name. {@code metadata} receives the
     * optimizer's update counts.
     */
    static Map<String, NDArray> collect(DataParallelTrainer trainer, Map<String, String> metadata) {
        OptimizerState state = new OptimizerState(trainer.optimizer());
        Map<String, NDArray> arrays = new LinkedHashMap<>();
        Map<String, NDArray> states = new LinkedHashMap<>();
        Map<String, Integer> counts = new LinkedHashMap<>();
        for (ParameterShard shard : trainer.shards()) {
            String name = shard.name() + (shard.isWhole() ? "" : "@" + shard.from());
            if (!shard.isSaved() || arrays.containsKey(CheckpointParts.MODEL + name)) {
                continue; // Another rank has the same.
            }
            arrays.put(CheckpointParts.MODEL + name, shard.array());
            String suffix = "." + name;
            state.arrays(shard.id(), shard.array().getDevice())
                    .forEach(
                            (slot, array) ->
                                    states.put(CheckpointParts.OPTIMIZER + slot + suffix, array));
            if (state.count(shard.id()) != null) {
                counts.put(shard.name(), state.count(shard.id()));
            }
        }
        arrays.putAll(states);
        metadata.put("updates", Integer.toString(state.updates()));
        metadata.put("counts", new Gson().toJson(counts));
        return arrays;
    }

    /** Throws if a checkpoint belongs to another model or optimizer. */
    static void requireFit(CheckpointParts file, DataParallelTrainer trainer) throws IOException {
        Object path = file.first().path();
        Map<String, String> metadata = file.metadata();
        OptimizerState state = new OptimizerState(trainer.optimizer());
        String optimizer = trainer.optimizer().getClass().getName();
        if (!optimizer.equals(metadata.get("optimizer"))) {
            throw new IOException(
                    String.format(
                            "%s was written with the optimizer %s, but the trainer has %s",
                            path, metadata.get("optimizer"), optimizer));
        }
        Map<String, String> saved = new LinkedHashMap<>();
        file.tensors()
                .forEach(
                        (name, spec) -> {
                            if (name.startsWith(CheckpointParts.MODEL)) {
                                saved.put(CheckpointParts.parameter(name), text(spec));
                            }
                        });
        for (Map.Entry<String, TensorSpec> own : trainer.specs().entrySet()) {
            String expected = text(own.getValue());
            String found = saved.remove(own.getKey());
            if (!expected.equals(found)) {
                throw new IOException(
                        String.format(
                                "%s does not fit the model: the parameter '%s' is %s in the model"
                                        + " but %s in the file",
                                path, own.getKey(), expected, found == null ? "missing" : found));
            }
        }
        if (!saved.isEmpty()) {
            throw new IOException(
                    path + " does not fit the model: it has no parameters " + saved.keySet());
        }
        for (TensorSpec spec : file.tensors().values()) {
            String name = spec.name();
            if (!name.startsWith(CheckpointParts.OPTIMIZER)) {
                continue;
            }
            if (!state.hasSlot(CheckpointParts.slot(name))) {
                throw new IOException(
                        path + " has '" + name + "', for which " + optimizer + " has no field");
            }
            for (ParameterShard shard : trainer.shards()) {
                if (shard.name().equals(CheckpointParts.parameter(name))
                        && !shard.isWhole()
                        && !shard.shape().equals(spec.shape())) {
                    throw new IOException(
                            String.format(
                                    "%s has '%s' of shape %s, but the parameter's shape is %s",
                                    path, name, spec.shape(), shard.shape()));
                }
            }
        }
    }

    private static String text(TensorSpec spec) {
        return spec.dtype() + " of shape " + spec.shape();
    }

    static void restore(CheckpointParts file, JobState saved, DataParallelTrainer trainer)
            throws IOException {
        OptimizerState state = new OptimizerState(trainer.optimizer());
        for (ParameterShard shard : trainer.shards()) {
            NDArray target = shard.array();
            file.read(CheckpointParts.MODEL + shard.name(), shard.from(), target);
            Map<String, NDArray> arrays = new HashMap<>();
            for (String name : file.tensors().keySet()) {
                if (shard.isOwner()
                        && name.startsWith(CheckpointParts.OPTIMIZER)
                        && CheckpointParts.parameter(name).equals(shard.name())) {
                    arrays.put(CheckpointParts.slot(name), read(file, name, shard));
                }
            }
            Integer count = shard.isOwner() ? saved.counts().get(shard.name()) : null;
            state.set(shard.id(), target.getDevice(), count, arrays);
        }
        state.setUpdates(saved.updates());
    }

    private static NDArray read(CheckpointParts file, String name, ParameterShard shard)
            throws IOException {
        TensorSpec spec = file.tensors().get(name);
        Shape shape = shard.isWhole() ? spec.shape() : shard.array().getShape();
        NDManager manager = shard.array().getManager();
        NDArray array = Torch.empty(manager, shape, spec.type());
        file.read(name, shard.from(), array);
        array.detach(); // The optimizer owns its state.
        return array;
    }
}
