/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListenerAdapter;
import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.collectives.train.Agreement;
import org.djlx.collectives.train.DataParallelTrainer;
import org.djlx.collectives.train.OptimizerState;
import org.djlx.collectives.train.Replica;
import org.djlx.nativeops.torch.Torch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Saves the state of a job, so that one that was ended goes on from there: parameters, what the
 * optimizer keeps, and how far the job has come. On CPUs and with the same number of ranks it then
 * has the same losses, to the bit, as one that was never ended.
 *
 * <pre>{@code
 * DistributedSampler sampler = DistributedSampler.builder().setBatchSize(32).build();
 * CheckpointManager checkpoints =
 *         CheckpointManager.builder().setDirectory(directory).optEvery(1000).build();
 * config.addTrainingListeners(checkpoints);
 * try (Trainer trainer = model.newTrainer(config)) {
 *     trainer.initialize(shape);
 *     TrainingProgress done = checkpoints.restore(trainer);
 *     sampler.setEpoch(done.epoch(), done.batch());
 *     EasyTrain.fit(trainer, epochs - (int) done.epoch(), dataset, null);
 * }
 * }</pre>
 *
 * <p>As a listener it counts the batches of {@code EasyTrain} and saves after each so many; a loop
 * of one's own calls {@link #save}. The trainer is one of the engine {@code PyTorch-P2P}. If its
 * ranks are processes all of them save and restore alike: rank 0 writes, all read, from a directory
 * that they share, and if one fails, all do. Trainers of different parts of a model, as with tensor
 * parallelism, have a directory each and name the group of all ranks ({@link Builder#optGroup}), so
 * that all go on from one step.
 *
 * <p>A checkpoint is a file {@code checkpoint-STEP.safetensors}, with parameters as {@code
 * model.NAME}, the optimizer's arrays as {@code optimizer.KIND.NAME}, and a checksum. It has its
 * name when it is complete and on disk; only the newest are kept.
 *
 * <p>Not saved: random numbers, so that dropout draws others than it would have; learning-rate
 * trackers, of which DJL's follow from the number of updates; and statistics, such as those of
 * batch normalisation, of other ranks than the first. Not thread-safe.
 */
public final class CheckpointManager extends TrainingListenerAdapter {

    private static final Logger LOG = LoggerFactory.getLogger(CheckpointManager.class);

    private static final Pattern NAME = Pattern.compile("checkpoint-(\\d{1,18})\\.safetensors");
    private static final String FORMAT = "djlx-checkpoint-1";
    private static final String MODEL = "model.";
    private static final String OPTIMIZER = "optimizer.";
    private static final int KEPT = 3;

    private final Path directory;
    private final int keep;
    private final long every;
    private final ProcessGroup group; // null for that of the trainer
    private TrainingProgress progress = TrainingProgress.START;
    private long saved = -1; // the step

    private CheckpointManager(Builder builder) {
        directory = builder.directory.toAbsolutePath();
        keep = builder.keep;
        every = builder.every;
        group = builder.group;
    }

    /**
     * Saves a job's state, between steps.
     *
     * @param trainer the trainer
     * @param progress how far the job has come; the same on all ranks
     * @throws IOException on all ranks if it cannot be written, or the directory has a checkpoint
     *     of a later step, which would be taken for the newest
     * @throws IllegalArgumentException if the trainer is of another engine
     * @throws IllegalStateException if its model is not initialised, or its optimizer, one that is
     *     not DJL's, keeps what cannot be saved
     */
    public void save(Trainer trainer, TrainingProgress progress) throws IOException {
        if (progress == null) {
            throw new IllegalArgumentException("save: progress is null");
        }
        DataParallelTrainer own = own(trainer, "save");
        Agreement.run(
                group(own),
                "save",
                () -> {
                    if (own.process() == 0) {
                        write(own, progress);
                    }
                    return progress.toString();
                });
        if (own.process() == 0) {
            deleteOld(); // Not before all parts of the model have the new one.
        }
        this.progress = progress;
        saved = progress.step();
    }

    /**
     * Gives a trainer the newest state that was saved, if there is one. Where parts of a model have
     * checkpoints of later steps, those are deleted: not all parts have them.
     *
     * @param trainer the trainer, after {@code initialize}
     * @return how far the job had come; {@link TrainingProgress#START} if nothing was saved, and
     *     the trainer is left as it is
     * @throws IOException on all ranks if the file cannot be read, is damaged or is none of this
     *     class, the model or the optimizer is another, or parts of a model have checkpoints of
     *     different steps alone; the trainer is then left as it is
     * @throws IllegalArgumentException if the trainer is of another engine
     * @throws IllegalStateException if its model is not initialised, or its optimizer, one that is
     *     not DJL's, keeps what cannot be saved
     */
    public TrainingProgress restore(Trainer trainer) throws IOException {
        DataParallelTrainer own = own(trainer, "restore");
        Long newest = newestOfAll(own);
        if (newest == null) {
            return TrainingProgress.START;
        }
        Path path = directory.resolve(name(newest));
        CheckpointFile[] opened = new CheckpointFile[1];
        try {
            Agreement.exchange(
                    group(own),
                    "restore",
                    () -> {
                        opened[0] = CheckpointFile.open(path);
                        checkFits(opened[0], path, own);
                        return null;
                    });
            Agreement.run(
                    own.group(),
                    "restore",
                    () -> path.getFileName() + " with checksum " + opened[0].checksum());
            own.zeroGradients(); // What a pass has left belongs to other parameters.
            apply(opened[0], own);
            if (own.process() == 0) {
                deleteAfter(newest);
            }
            progress = progress(opened[0].metadata());
            saved = progress.step();
            return progress;
        } finally {
            if (opened[0] != null) {
                opened[0].close();
            }
        }
    }

    private static DataParallelTrainer own(Trainer trainer, String call) {
        if (trainer instanceof DataParallelTrainer own) {
            own.prepare(call);
            return own;
        }
        throw new IllegalArgumentException(
                String.format(
                        "%s: the trainer must be one of a model of the engine %s, not %s",
                        call, P2pEngine.NAME, trainer));
    }

    /** Returns the ranks that save and restore together; null for one alone. */
    private ProcessGroup group(DataParallelTrainer trainer) {
        return group == null ? trainer.group() : group;
    }

    /** Returns the newest step of which all parts have a checkpoint; null if none has any. */
    private Long newestOfAll(DataParallelTrainer trainer) throws IOException {
        List<String> said =
                Agreement.exchange(
                        group(trainer),
                        "restore",
                        () -> trainer.process() == 0 ? new Gson().toJson(steps()) : null);
        List<Set<Long>> steps =
                said.stream()
                        .filter(Objects::nonNull)
                        .map(list -> new Gson().fromJson(list, new TypeToken<Set<Long>>() {}))
                        .toList();
        Set<Long> ofAll = new TreeSet<>(steps.get(0));
        steps.forEach(ofAll::retainAll);
        if (ofAll.isEmpty() && steps.stream().anyMatch(some -> !some.isEmpty())) {
            throw new IOException(
                    String.format(
                            "restore: there is no step of which all parts of the model have a"
                                    + " checkpoint; %s is the directory of one; they have the steps"
                                    + " %s",
                            directory, steps));
        }
        return ofAll.stream().max(Long::compare).orElse(null);
    }

    private static String name(long step) {
        return "checkpoint-" + step + ".safetensors";
    }

    /** Returns the steps of which there are checkpoints, in their order. */
    private List<Long> steps() throws IOException {
        if (!Files.isDirectory(directory)) {
            return List.of();
        }
        try (Stream<Path> files = Files.list(directory)) {
            return files.map(file -> NAME.matcher(file.getFileName().toString()))
                    .filter(Matcher::matches)
                    .map(matcher -> Long.valueOf(matcher.group(1)))
                    .sorted()
                    .toList();
        }
    }

    private Long newest() throws IOException {
        List<Long> steps = steps();
        return steps.get(steps.size() - 1);
    }

    private void write(DataParallelTrainer trainer, TrainingProgress progress) throws IOException {
        Files.createDirectories(directory);
        if (!steps().isEmpty() && newest() > progress.step()) {
            throw new IOException(
                    String.format(
                            "%s has a checkpoint of step %d already, and step %d is to be saved;"
                                    + " restore from it, delete it, or take another directory",
                            directory, newest(), progress.step()));
        }
        Replica first = trainer.replicas().get(0);
        OptimizerState state = new OptimizerState(trainer.optimizer());
        Map<String, NDArray> arrays = new LinkedHashMap<>();
        Map<String, Integer> counts = new LinkedHashMap<>();
        for (Replica.Own own : first.parameters()) {
            arrays.put(MODEL + own.name(), own.array());
            if (state.count(own.id()) != null) {
                counts.put(own.name(), state.count(own.id()));
            }
        }
        for (Replica.Own own : first.parameters()) {
            state.arrays(own.id(), first.device())
                    .forEach(
                            (slot, array) ->
                                    arrays.put(OPTIMIZER + slot + "." + own.name(), array));
        }
        Map<String, String> metadata = new LinkedHashMap<>();
        metadata.put("format", FORMAT);
        metadata.put("step", Long.toString(progress.step()));
        metadata.put("epoch", Long.toString(progress.epoch()));
        metadata.put("batch", Long.toString(progress.batch()));
        metadata.put("optimizer", trainer.optimizer().getClass().getName());
        metadata.put("updates", Integer.toString(state.updates()));
        metadata.put("counts", new Gson().toJson(counts));
        CheckpointFile.write(
                directory.resolve(name(progress.step())), metadata, arrays, trainer.getManager());
    }

    /** Deletes those of steps that are going to come again, as not all parts have them. */
    private void deleteAfter(long step) throws IOException {
        for (Long other : steps()) {
            if (other > step) {
                Files.deleteIfExists(directory.resolve(name(other)));
            }
        }
    }

    private void deleteOld() {
        try (Stream<Path> files = Files.list(directory)) {
            List<Long> steps = steps();
            for (Long step : steps.subList(0, Math.max(0, steps.size() - keep))) {
                Files.deleteIfExists(directory.resolve(name(step)));
            }
            // Of a process that was ended while it wrote.
            for (Path file : files.filter(CheckpointManager::isIncomplete).toList()) {
                Files.deleteIfExists(file);
            }
        } catch (IOException e) {
            LOG.warn("Old checkpoints in {} cannot be deleted.", directory, e);
        }
    }

    private static boolean isIncomplete(Path file) {
        String name = file.getFileName().toString();
        return name.startsWith(".checkpoint-") && name.endsWith(CheckpointFile.TEMPORARY);
    }

    private static void checkFits(CheckpointFile file, Path path, DataParallelTrainer trainer)
            throws IOException {
        Map<String, String> metadata = file.metadata();
        if (!FORMAT.equals(metadata.get("format"))) {
            throw new IOException(path + " has the format " + metadata.get("format"));
        }
        OptimizerState state = new OptimizerState(trainer.optimizer());
        String optimizer = trainer.optimizer().getClass().getName();
        if (!optimizer.equals(metadata.get("optimizer"))) {
            throw new IOException(
                    String.format(
                            "%s was written with the optimizer %s, and the trainer has %s",
                            path, metadata.get("optimizer"), optimizer));
        }
        Map<String, String> saved = new LinkedHashMap<>();
        file.tensors()
                .forEach(
                        (name, stored) -> {
                            if (name.startsWith(MODEL)) {
                                saved.put(name.substring(MODEL.length()), text(stored.spec()));
                            }
                        });
        for (Replica.Own own : trainer.replicas().get(0).parameters()) {
            String expected = text(CheckpointFile.describe(own.name(), own.array()));
            String found = saved.remove(own.name());
            if (!expected.equals(found)) {
                throw new IOException(
                        String.format(
                                "%s does not fit the model, whose parameter '%s' is %s: there it"
                                        + " is %s",
                                path, own.name(), expected, found == null ? "missing" : found));
            }
        }
        if (!saved.isEmpty()) {
            throw new IOException(
                    path + " does not fit the model, which has no parameters " + saved.keySet());
        }
        for (String name : file.tensors().keySet()) {
            if (name.startsWith(OPTIMIZER) && !state.hasSlot(slot(name))) {
                throw new IOException(
                        path + " has '" + name + "', which " + optimizer + " does not keep");
            }
        }
    }

    private static String text(TensorSpec spec) {
        return spec.dtype() + " of shape " + spec.shape();
    }

    /** Returns which of an optimizer's kinds of arrays one is of. */
    private static String slot(String name) {
        return name.substring(OPTIMIZER.length()).split("\\.", 2)[0];
    }

    private static TrainingProgress progress(Map<String, String> metadata) {
        return new TrainingProgress(
                Long.parseLong(metadata.get("step")),
                Long.parseLong(metadata.get("epoch")),
                Long.parseLong(metadata.get("batch")));
    }

    private static void apply(CheckpointFile file, DataParallelTrainer trainer) throws IOException {
        OptimizerState state = new OptimizerState(trainer.optimizer());
        Map<String, Integer> counts =
                new Gson()
                        .fromJson(
                                file.metadata().get("counts"),
                                new TypeToken<HashMap<String, Integer>>() {});
        for (Replica replica : trainer.replicas()) {
            for (Replica.Own own : replica.parameters()) {
                file.read(MODEL + own.name(), own.array());
                Map<String, NDArray> arrays = new HashMap<>();
                for (String name : file.tensors().keySet()) {
                    if (name.startsWith(OPTIMIZER)
                            && name.equals(OPTIMIZER + slot(name) + "." + own.name())) {
                        arrays.put(slot(name), read(file, name, replica.manager()));
                    }
                }
                state.set(own.id(), replica.device(), counts.get(own.name()), arrays);
            }
        }
        state.setUpdates(Integer.parseInt(file.metadata().get("updates")));
    }

    private static NDArray read(CheckpointFile file, String name, NDManager manager)
            throws IOException {
        TensorSpec spec = file.tensors().get(name).spec();
        NDArray array = Torch.empty(manager, spec.shape(), spec.type());
        file.read(name, array);
        array.detach(); // The optimizer's own belong to nobody either.
        return array;
    }

    /** Saves, if it is time, what the batches before this one, whose step follows, have made. */
    @Override
    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
        saveIfDue(trainer);
        progress =
                new TrainingProgress(progress.step() + 1, progress.epoch(), progress.batch() + 1);
    }

    /** Saves, if it is time, at the end of an epoch. */
    @Override
    public void onEpoch(Trainer trainer) {
        progress = new TrainingProgress(progress.step(), progress.epoch() + 1, 0);
        saveIfDue(trainer);
    }

    private void saveIfDue(Trainer trainer) {
        long step = progress.step();
        if (every == 0 || step == 0 || step % every != 0 || step == saved) {
            return;
        }
        try {
            save(trainer, progress);
        } catch (IOException e) {
            throw new UncheckedIOException("the checkpoint of step " + step + " is not saved", e);
        }
    }

    /**
     * Creates a builder.
     *
     * @return the builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** Builds a {@link CheckpointManager}. */
    public static final class Builder {

        private Path directory;
        private int keep = KEPT;
        private long every;
        private ProcessGroup group;

        private Builder() {}

        /**
         * Sets where checkpoints are.
         *
         * @param directory the directory of one job, the same on all ranks; made when it is needed
         * @return this builder
         */
        public Builder setDirectory(Path directory) {
            this.directory = directory;
            return this;
        }

        /**
         * Sets how many checkpoints are kept.
         *
         * @param count the number, 1 or more; 3 unless set. Older ones are deleted when a new one
         *     is there
         * @return this builder
         */
        public Builder optKeep(int count) {
            keep = count;
            return this;
        }

        /**
         * Sets how often a listener saves.
         *
         * @param steps after each so many steps of all; 0, which it is unless set, for never
         * @return this builder
         */
        public Builder optEvery(long steps) {
            every = steps;
            return this;
        }

        /**
         * Sets who saves and restores together, where that is more than the group of the trainer:
         * the ranks of all parts of a model, each of which has a directory of its own. They go on
         * from the newest step of which all parts have a checkpoint.
         *
         * @param group this rank's handle, which stays the caller's
         * @return this builder
         */
        public Builder optGroup(ProcessGroup group) {
            this.group = group;
            return this;
        }

        /**
         * Builds the manager.
         *
         * @return the manager
         * @throws IllegalArgumentException if there is no directory, or a number is wrong
         */
        public CheckpointManager build() {
            if (directory == null) {
                throw new IllegalArgumentException(
                        "CheckpointManager: the directory is not set; call setDirectory");
            }
            if (keep < 1 || every < 0) {
                throw new IllegalArgumentException(
                        String.format(
                                "CheckpointManager: %d checkpoints are to be kept, and one is to be"
                                        + " saved after each %d steps",
                                keep, every));
            }
            return new CheckpointManager(this);
        }
    }
}
