// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.jni.JniUtils;
import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListener;
import ai.djl.training.listener.TrainingListenerAdapter;
import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.djlx.collectives.Agreement;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.nativeops.host.AtomicFile;
import org.djlx.nativeops.host.Deadline;
import org.djlx.nativeops.host.Required;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.DataParallelTrainer;
import org.djlx.training.DistributedSampler;
import org.djlx.training.JoinListener;
import org.djlx.training.OptimizerState;
import org.djlx.training.Replica;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Saves and restores the state of a training job: parameters, optimizer state, progress, position
 * in the dataset, random state and the scale of a {@link org.djlx.training.GradScaler}. On CPUs
 * with the same number of ranks, a resumed job has the same losses, to the bit, as one that was not
 * interrupted.
 *
 * <pre>{@code
 * DistributedSampler sampler = DistributedSampler.builder().setBatchSize(32).build();
 * CheckpointManager checkpoints =
 *         CheckpointManager.builder()
 *                 .setDirectory(directory)
 *                 .optEvery(1000)
 *                 .optSampler(sampler)
 *                 .build();
 * config.addTrainingListeners(checkpoints);
 * try (Trainer trainer = model.newTrainer(config)) {
 *     trainer.initialize(shape);
 *     TrainingProgress done = checkpoints.restore(trainer);
 *     EasyTrain.fit(trainer, epochs - (int) done.epoch(), dataset, null);
 * }
 * }</pre>
 *
 * <p>As a training listener it counts the batches of {@code EasyTrain} and saves every {@link
 * Builder#optEvery} steps; a training loop of your own calls {@link #save}. The trainer must belong
 * to the engine {@code PyTorch-P2P}.
 *
 * <ul>
 *   <li><b>Processes</b>: all of them call save and restore. Rank 0 writes, all read from a shared
 *       directory, and if one fails, all fail.
 *   <li><b>Tensor parallelism</b>: each part of the model has its own directory, and all parts name
 *       the group of all ranks ({@link Builder#optGroup}). They resume from the newest step that
 *       every part has.
 *   <li><b>Files</b>: {@code checkpoint-STEP.safetensors}, with parameters as {@code model.NAME},
 *       optimizer arrays as {@code optimizer.FIELD.NAME}, and a checksum. A file gets its name when
 *       it is complete and on disk. Only the newest are kept.
 *   <li><b>Epochs</b>: DJL's listeners go on from the restored epoch, so {@code TrainingResult} and
 *       the files of {@code SaveModelTrainingListener} have the numbers of an uninterrupted job.
 *   <li><b>Other numbers of ranks</b>: with {@link Builder#optSampler} the job goes on with the
 *       items of the epoch that are left, whatever the number of processes and the size of batches.
 *       Ranks of one JVM share a batch, so their number does not matter. Without a sampler, the log
 *       warns if the number of processes differs.
 *   <li><b>Random numbers</b>: save and restore seed libtorch's generators of each process by its
 *       seed and the step. The listener seeds them after each {@link Builder#optEvery} steps,
 *       before the next batch; a resumed job draws the same numbers only with the same {@code
 *       optEvery}. A process's seed is the engine's ({@code setRandomSeed}), or else its rank;
 *       checkpoints keep the seeds of all processes. Ranks of one JVM share a generator, which they
 *       use in no fixed order.
 *   <li><b>Batch normalisation</b>: {@code EasyTrain} calls the listener between a batch's backward
 *       pass and its step. So running statistics in a checkpoint within an epoch include the batch
 *       that the resumed job computes again.
 *   <li><b>Loss and evaluators</b>: their sums of the epoch are saved, so that at its end they are
 *       those of the whole epoch. Evaluators with accumulators of their own ({@link
 *       org.djlx.training.EvaluatorSums}) cover only the rest, and the log says so.
 *   <li><b>Not saved</b>: learning-rate trackers (DJL's follow from the number of updates).
 *   <li><b>Sharded trainers</b> ({@link org.djlx.training.ShardingStrategy}): each process writes
 *       what its ranks own. Processes other than 0 write {@code
 *       checkpoint-STEP.part-PROCESS-RANDOM.safetensors}; process 0 writes its part and the names
 *       of the others. Another number of ranks, or another strategy, can restore: each rank reads
 *       its elements.
 * </ul>
 *
 * <p>Not thread-safe.
 */
public final class CheckpointManager extends TrainingListenerAdapter implements JoinListener {

    private static final Logger LOG = LoggerFactory.getLogger(CheckpointManager.class);

    private static final Pattern NAME = Pattern.compile("checkpoint-(\\d{1,18})\\.safetensors");
    // Of a process other than the first: step, process, and a random number of the save.
    static final Pattern PART =
            Pattern.compile("checkpoint-(\\d{1,18})\\.part-(\\d+)-[0-9a-f]+\\.safetensors");

    /** How long a file of another process may stay invisible: network file systems keep names. */
    static Duration patience = Duration.ofSeconds(90);

    private static final String FORMAT = "djlx-checkpoint-2";
    private static final int KEPT = 3;
    // Fields of EpochTrainingListener, LoggingTrainingListener and SaveModelTrainingListener.
    private static final Set<String> EPOCHS = Set.of("numEpochs", "epoch");

    private final Path directory;
    private final int keep;
    private final long every;
    private final ProcessGroup group; // null to use the trainer's
    private final DistributedSampler sampler; // null if it is not given
    private final boolean async;
    private final boolean onSigterm;
    private volatile Deadline partsDeadline; // set when all parts have been written
    private FutureTask<String> writing; // in the background; null if nothing is
    private TrainingProgress progress = TrainingProgress.START;
    private long saved = -1; // the step of the last checkpoint
    private Object savedFile; // the key of its file
    private Integer seed; // of this process's random numbers; null before it is known
    private final EpochSums sums = new EpochSums();
    private TrainingProgress restored = TrainingProgress.START;
    private long restoredItems; // of the restored epoch, trained on before

    private CheckpointManager(Builder builder) {
        directory = builder.directory.toAbsolutePath();
        keep = builder.keep;
        every = builder.every;
        group = builder.group;
        sampler = builder.sampler;
        async = builder.async;
        onSigterm = builder.onSigterm;
    }

    /**
     * Saves the state of a job. Call it between steps, on all ranks.
     *
     * @param trainer the trainer
     * @param progress the job's progress; the same on all ranks
     * @throws IOException on all ranks if the file cannot be written, if the directory has a
     *     checkpoint of a later step (a restore would choose that one), or if another job saves
     *     into the directory, too: it is writing, or has written since this manager saved or
     *     restored
     * @throws IllegalArgumentException if the trainer is of another engine
     * @throws IllegalStateException if the model is not initialised, or the optimizer has state
     *     that cannot be saved
     */
    public void save(Trainer trainer, TrainingProgress progress) throws IOException {
        Required.argument("save: progress", progress);
        saveAll(trainer, progress, progress.batch() > 0 ? EpochSums.toJson(trainer) : "{}");
        setRandomState(own(trainer, "save"), saved);
    }

    /** Saves without seeding the random numbers. */
    private void saveAll(Trainer trainer, TrainingProgress progress, String sums)
            throws IOException {
        DataParallelTrainer own = own(trainer, "save");
        await(own);
        seed = seed(own);
        String number = Long.toHexString(UUID.randomUUID().getMostSignificantBits());
        List<String[]> answers =
                Agreement.exchange(own.group(), "save", () -> seed + " " + number + " " + sums)
                        .stream()
                        .map(answer -> answer.split(" ", 3))
                        .toList();
        partsDeadline = null;
        CheckpointSave[] save = new CheckpointSave[1];
        try {
            Agreement.run(
                    group(own),
                    "save",
                    () -> {
                        save[0] = prepare(own, progress, answers);
                        if (!async && !save[0].awaits()) {
                            write(save[0]);
                        }
                        return progress.toString();
                    });
        } catch (IOException | RuntimeException e) {
            if (save[0] != null) {
                save[0].close(); // Another rank has failed.
            }
            throw e;
        }
        if (async) {
            writing = new FutureTask<>(() -> write(save[0]));
            Thread thread = new Thread(writing, "checkpoint-writer");
            thread.setDaemon(true);
            thread.start();
        } else {
            partsDeadline = Deadline.after(patience);
            if (own.isSharded()) {
                Agreement.exchange(
                        group(own), "save", () -> save[0].awaits() ? write(save[0]) : null);
            }
            deleteOld(own);
        }
        this.progress = progress;
        saved = progress.step();
    }

    /**
     * Waits until the checkpoint that is written in the background is complete. Call it on all
     * ranks after training, with {@link Builder#optAsync}; the listener does.
     *
     * @param trainer the trainer of the last save
     * @throws IOException on all ranks if the checkpoint could not be written on one of them
     */
    public void await(Trainer trainer) throws IOException {
        if (writing != null) {
            await(own(trainer, "await"));
        }
    }

    private void await(DataParallelTrainer trainer) throws IOException {
        FutureTask<String> running = writing;
        writing = null;
        if (running == null) {
            return;
        }
        try { // First all parts, then the file that names them.
            awaitIf(trainer.process() > 0, running, trainer);
        } catch (IOException | RuntimeException e) {
            running.cancel(true); // The first process waits for parts in vain.
            throw e;
        }
        partsDeadline = Deadline.after(patience);
        awaitIf(trainer.process() == 0, running, trainer);
        deleteOld(trainer);
    }

    private void awaitIf(boolean waits, FutureTask<String> running, DataParallelTrainer trainer)
            throws IOException {
        Agreement.exchange(
                group(trainer),
                "save",
                () -> {
                    if (waits) {
                        get(running);
                    }
                    return null;
                });
    }

    private void get(FutureTask<String> running) throws IOException {
        try {
            running.get();
        } catch (ExecutionException e) {
            throw new IOException(
                    "the checkpoint of step " + saved + " was not saved: " + e.getCause(),
                    e.getCause());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted while the checkpoint was written", e);
        }
    }

    /** Returns this process's seed: the restored one, the engine's, or else the rank. */
    private int seed(DataParallelTrainer trainer) {
        Integer set = trainer.getManager().getEngine().getSeed();
        return seed != null ? seed : set != null ? set : trainer.process();
    }

    /** Seeds libtorch's generators; not the engine, whose seed is the program's. */
    private void setRandomState(DataParallelTrainer trainer, long step) {
        seed = seed(trainer);
        JniUtils.setSeed(31L * seed + step);
    }

    /** Returns how many items of the epoch all processes together have trained on. */
    private long items(TrainingProgress progress) {
        boolean same = progress.epoch() == restored.epoch() && progress.batch() >= restored.batch();
        return same
                ? restoredItems + (progress.batch() - restored.batch()) * sampler.itemsPerBatch()
                : progress.batch() * sampler.itemsPerBatch();
    }

    /**
     * Restores the newest checkpoint, if there is one. Call it on all ranks. If only some parts of
     * a divided model have checkpoints of later steps, these are deleted.
     *
     * @param trainer the trainer, after {@code initialize}
     * @return the saved progress; {@link TrainingProgress#START} if there is no checkpoint, in
     *     which case the trainer is unchanged
     * @throws IOException on all ranks, with the trainer unchanged, if the file cannot be read, is
     *     damaged, was not written by this class, belongs to another model or optimizer, or the
     *     parts of a divided model have no step in common. Files are read twice, first to check all
     *     of them; if only the second read fails, the trainer is partly restored
     * @throws IllegalArgumentException if the trainer is of another engine
     * @throws IllegalStateException if the model is not initialised, or the optimizer has state
     *     that cannot be restored
     */
    public TrainingProgress restore(Trainer trainer) throws IOException {
        DataParallelTrainer own = own(trainer, "restore");
        await(own);
        Long newest = newestOfAll(own);
        if (newest == null) {
            return TrainingProgress.START;
        }
        Path path = directory.resolve(name(newest));
        CheckpointParts[] opened = new CheckpointParts[1];
        SavedState[] state = new SavedState[1];
        try {
            Agreement.exchange(
                    group(own),
                    "restore",
                    () -> {
                        opened[0] = CheckpointParts.open(path);
                        checkFits(opened[0], path, own);
                        state[0] = SavedState.read(opened[0], newest, sampler != null);
                        return null;
                    });
            Agreement.run(
                    own.group(),
                    "restore",
                    () -> path.getFileName() + " with checksum " + opened[0].checksum());
            own.zeroGradients(); // Gradients of an earlier pass belong to the former parameters.
            apply(opened[0], state[0], own);
            if (own.process() == 0) {
                deleteAfter(newest);
            }
            progress = state[0].progress();
            if (own.gradScaler() != null && state[0].hasScale()) {
                own.gradScaler().restore(state[0].scale(), state[0].goodSteps());
            }
            saved = progress.step();
            savedFile = opened[0].key();
            restoreOrder(state[0], own, path);
            sums.restore(trainer, state[0].sums(), own.process(), processes(own), progress.batch());
            int epochs = (int) progress.epoch();
            trainer.notifyListeners(listener -> setEpochs(listener, epochs));
            return progress;
        } finally {
            if (opened[0] != null) {
                opened[0].close();
            }
        }
    }

    /** Restores the position in the dataset, and the random state. */
    private void restoreOrder(SavedState state, DataParallelTrainer trainer, Path path) {
        restored = progress;
        int processes = processes(trainer);
        if (sampler != null) {
            restoredItems = state.items();
            sampler.setPosition(progress.epoch(), restoredItems);
        } else if (processes != state.processes()) {
            LOG.warn(
                    "{} was saved by {} processes, and {} go on. Their batches differ, unless"
                            + " optSampler names the sampler.",
                    path,
                    state.processes(),
                    processes);
        }
        int[] seeds = state.seeds();
        int rank = trainer.process();
        seed = seeds[rank % seeds.length] + rank / seeds.length * seeds.length;
        setRandomState(trainer, saved);
    }

    private static int processes(DataParallelTrainer trainer) {
        return trainer.group() == null ? 1 : trainer.group().worldSize();
    }

    /**
     * Sets the number of finished epochs in DJL's listeners, which count from 0 and name files by
     * it. Their fields have no setters.
     */
    private static void setEpochs(TrainingListener listener, int epochs) {
        for (Class<?> type = listener.getClass();
                type != null && TrainingListener.class.isAssignableFrom(type);
                type = type.getSuperclass()) {
            if (!type.getName().startsWith("ai.djl.")) {
                continue;
            }
            for (Field field : type.getDeclaredFields()) {
                if (field.getType() == int.class && EPOCHS.contains(field.getName())) {
                    try {
                        field.setAccessible(true);
                        field.setInt(listener, epochs);
                    } catch (IllegalAccessException e) {
                        throw new IllegalStateException("restore: " + field + " cannot be set", e);
                    }
                }
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
                        "%s: the trainer must belong to a model of the engine %s, but is %s",
                        call, P2pEngine.NAME, trainer));
    }

    /** Returns the group of ranks that save and restore together; null if there is one rank. */
    private ProcessGroup group(DataParallelTrainer trainer) {
        return group == null ? trainer.group() : group;
    }

    /** Returns the newest step that all parts have; null if no part has a checkpoint. */
    private Long newestOfAll(DataParallelTrainer trainer) throws IOException {
        List<String> lists =
                Agreement.exchange(
                        group(trainer),
                        "restore",
                        () -> trainer.process() == 0 ? new Gson().toJson(steps()) : null);
        List<Set<Long>> steps =
                lists.stream()
                        .filter(Objects::nonNull)
                        .map(list -> new Gson().fromJson(list, new TypeToken<Set<Long>>() {}))
                        .toList();
        Set<Long> ofAll = new TreeSet<>(steps.get(0));
        steps.forEach(ofAll::retainAll);
        if (ofAll.isEmpty() && steps.stream().anyMatch(some -> !some.isEmpty())) {
            throw new IOException(
                    String.format(
                            "restore: the parts of the model have no checkpoint of the same step;"
                                    + " this part's directory is %s; the parts' steps are %s",
                            directory, steps));
        }
        return ofAll.stream().max(Long::compare).orElse(null);
    }

    private static String name(long step) {
        return "checkpoint-" + step + ".safetensors";
    }

    /** Returns the steps of all checkpoints in the directory, in ascending order. */
    private List<Long> steps() throws IOException {
        return list().stream()
                .map(file -> NAME.matcher(file.getFileName().toString()))
                .filter(Matcher::matches)
                .map(matcher -> Long.valueOf(matcher.group(1)))
                .sorted()
                .toList();
    }

    private List<Path> list() throws IOException {
        if (!Files.isDirectory(directory)) {
            return List.of();
        }
        try (Stream<Path> files = Files.list(directory)) {
            return files.toList();
        }
    }

    private Long newest() throws IOException {
        List<Long> steps = steps();
        return steps.get(steps.size() - 1);
    }

    /**
     * Collects what this process writes.
     *
     * @param answers each process's seed, random number and sums of the epoch
     */
    private CheckpointSave prepare(
            DataParallelTrainer trainer, TrainingProgress progress, List<String[]> answers)
            throws IOException {
        int process = trainer.process();
        List<Path> parts = new ArrayList<>();
        for (int i = 1; trainer.isSharded() && i < processes(trainer); i++) {
            String name = "checkpoint-%d.part-%d-%s.safetensors";
            parts.add(directory.resolve(name.formatted(progress.step(), i, answers.get(0)[1])));
        }
        if (process > 0 && parts.isEmpty()) {
            return CheckpointSave.NOTHING;
        }
        Files.createDirectories(directory);
        if (process == 0) {
            AtomicFile.sweep(directory, NAME.pattern());
            checkAlone(progress.step());
            if (!steps().isEmpty() && newest() > progress.step()) {
                throw new IOException(
                        String.format(
                                "%s already has a checkpoint of step %d, which is later than step"
                                        + " %d; restore it, delete it, or choose another directory",
                                directory, newest(), progress.step()));
            }
        }
        Map<String, String> metadata =
                process == 0 ? metadata(trainer, progress, answers, parts) : new LinkedHashMap<>();
        Path path =
                process == 0 ? directory.resolve(name(progress.step())) : parts.get(process - 1);
        List<Path> awaited = process == 0 ? parts : List.of();
        return CheckpointSave.of(trainer, path, metadata, awaited, async);
    }

    /** Returns the metadata of the file that names all parts. */
    private Map<String, String> metadata(
            DataParallelTrainer trainer,
            TrainingProgress progress,
            List<String[]> answers,
            List<Path> parts) {
        Map<String, String> metadata = new LinkedHashMap<>();
        metadata.put("format", FORMAT);
        metadata.put("step", Long.toString(progress.step()));
        metadata.put("epoch", Long.toString(progress.epoch()));
        metadata.put("batch", Long.toString(progress.batch()));
        metadata.put("processes", Integer.toString(processes(trainer)));
        metadata.put("ranks", Integer.toString(processes(trainer) * trainer.replicas().size()));
        metadata.put("random", joined(answers, 0));
        metadata.put("evaluators", "[" + joined(answers, 2) + "]");
        if (sampler != null) {
            metadata.put("order", sampler.order());
            metadata.put("items", Long.toString(items(progress)));
        }
        if (trainer.gradScaler() != null) {
            metadata.put("scale", Double.toString(trainer.gradScaler().scale()));
            metadata.put("goodSteps", Integer.toString(trainer.gradScaler().goodSteps()));
        }
        if (trainer.isSharded()) {
            Map<String, long[]> shapes = new LinkedHashMap<>();
            trainer.replicas()
                    .get(0)
                    .specs()
                    .forEach((name, spec) -> shapes.put(name, spec.shape().getShape()));
            metadata.put("shapes", new Gson().toJson(shapes));
            List<String> names = parts.stream().map(part -> part.getFileName().toString()).toList();
            metadata.put("parts", new Gson().toJson(names));
        }
        metadata.put("optimizer", trainer.optimizer().getClass().getName());
        return metadata;
    }

    private static String joined(List<String[]> answers, int index) {
        return String.join(",", answers.stream().map(answer -> answer[index]).toList());
    }

    private String write(CheckpointSave save) throws IOException {
        Object key = save.write(() -> partsDeadline, patience);
        savedFile = key == null ? savedFile : key;
        return null;
    }

    /** Throws if another job has saved into the directory since the last save or restore. */
    private void checkAlone(long step) throws IOException {
        if (saved < 0) {
            return;
        }
        for (long other : steps()) {
            boolean replaced =
                    other == saved
                            && !Objects.equals(
                                    savedFile, CheckpointFile.key(directory.resolve(name(other))));
            if (replaced || other > saved && other <= step) {
                throw new IOException(
                        String.format(
                                "another job has saved %s into %s, since this one saved or restored"
                                        + " step %d; give each job a directory of its own",
                                name(other), directory, saved));
            }
        }
    }

    /** Deletes checkpoints of later steps, which the resumed job will write again. */
    private void deleteAfter(long step) throws IOException {
        for (Long other : steps()) {
            if (other > step) {
                Files.deleteIfExists(directory.resolve(name(other)));
            }
        }
        deleteParts();
    }

    /** Deletes parts that a killed job has left: incomplete, or without their checkpoint. */
    private void deleteParts() throws IOException {
        AtomicFile.sweep(directory, PART.pattern());
        List<Long> steps = steps();
        for (Path file : list()) {
            Matcher part = PART.matcher(file.getFileName().toString());
            if (part.matches() && !steps.contains(Long.valueOf(part.group(1)))) {
                Files.deleteIfExists(file);
            }
        }
    }

    /** Deletes old checkpoints, after all ranks have written the new one. */
    private void deleteOld(DataParallelTrainer trainer) {
        if (trainer.process() > 0) {
            return;
        }
        try {
            List<Long> steps = steps();
            for (Long step : steps.subList(0, Math.max(0, steps.size() - keep))) {
                Files.deleteIfExists(directory.resolve(name(step)));
            }
            deleteParts();
        } catch (IOException e) {
            LOG.warn("Old checkpoints in {} cannot be deleted.", directory, e);
        }
    }

    private void checkFits(CheckpointParts file, Path path, DataParallelTrainer trainer)
            throws IOException {
        Map<String, String> metadata = file.metadata();
        if (!FORMAT.equals(metadata.get("format"))) {
            throw new IOException(
                    path + " has format " + metadata.get("format") + "; supported is " + FORMAT);
        }
        if (sampler != null && !sampler.order().equals(metadata.get("order"))) {
            throw new IOException(
                    String.format(
                            "%s was written with a sampler of order '%s', but this one has '%s', so"
                                    + " the items that are left differ; set its seed, shuffling and"
                                    + " padding as before, or leave optSampler out",
                            path, metadata.get("order"), sampler.order()));
        }
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
        for (Map.Entry<String, TensorSpec> own : trainer.replicas().get(0).specs().entrySet()) {
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
            for (Replica replica : trainer.replicas()) {
                for (Replica.Piece piece : replica.pieces()) {
                    if (piece.name().equals(CheckpointParts.parameter(name))
                            && !piece.isWhole()
                            && !piece.shape().equals(spec.shape())) {
                        throw new IOException(
                                String.format(
                                        "%s has '%s' of shape %s, but the parameter's shape is %s",
                                        path, name, spec.shape(), piece.shape()));
                    }
                }
            }
        }
    }

    private static String text(TensorSpec spec) {
        return spec.dtype() + " of shape " + spec.shape();
    }

    /** All of a checkpoint but its arrays, checked before anything is restored. */
    private record SavedState(
            TrainingProgress progress,
            double scale, // of gradients; NaN without one
            int goodSteps,
            long items,
            int processes,
            int[] seeds,
            int updates,
            Map<String, Integer> counts,
            List<Map<String, double[]>> sums) {

        static SavedState read(CheckpointParts parts, long step, boolean hasSampler)
                throws IOException {
            CheckpointFile file = parts.first();
            boolean hasScale = parts.metadata().containsKey("scale");
            return new SavedState(
                    new TrainingProgress(
                            file.number("step", step, step), // as the file's name says
                            file.number("epoch", 0, Integer.MAX_VALUE),
                            file.number("batch", 0, Long.MAX_VALUE)),
                    hasScale
                            ? file.fraction("scale", Float.MIN_NORMAL, Float.MAX_VALUE)
                            : Double.NaN,
                    hasScale ? (int) file.number("goodSteps", 0, Integer.MAX_VALUE) : 0,
                    hasSampler ? file.number("items", 0, Long.MAX_VALUE) : 0,
                    (int) file.number("processes", 1, Integer.MAX_VALUE),
                    file.integers("random"),
                    parts.greatest("updates"),
                    parts.counts(),
                    EpochSums.parse(parts.metadata().get("evaluators")));
        }

        boolean hasScale() {
            return !Double.isNaN(scale);
        }
    }

    private static void apply(CheckpointParts file, SavedState saved, DataParallelTrainer trainer)
            throws IOException {
        OptimizerState state = new OptimizerState(trainer.optimizer());
        Map<String, Integer> counts = saved.counts();
        for (Replica replica : trainer.replicas()) {
            for (Replica.Piece piece : replica.pieces()) {
                file.read(CheckpointParts.MODEL + piece.name(), piece.from(), piece.array());
                Map<String, NDArray> arrays = new HashMap<>();
                for (String name : file.tensors().keySet()) {
                    if (piece.isOwner()
                            && name.startsWith(CheckpointParts.OPTIMIZER)
                            && CheckpointParts.parameter(name).equals(piece.name())) {
                        arrays.put(CheckpointParts.slot(name), read(file, name, piece, replica));
                    }
                }
                Integer count = piece.isOwner() ? counts.get(piece.name()) : null;
                state.set(piece.id(), replica.device(), count, arrays);
            }
        }
        state.setUpdates(saved.updates());
    }

    private static NDArray read(
            CheckpointParts file, String name, Replica.Piece piece, Replica replica)
            throws IOException {
        TensorSpec spec = file.tensors().get(name);
        Shape shape = piece.isWhole() ? spec.shape() : piece.array().getShape();
        NDArray array = Torch.empty(replica.manager(), shape, spec.type());
        file.read(name, piece.from(), array);
        array.detach(); // The optimizer owns its state.
        return array;
    }

    @Override
    public void onTrainingBegin(Trainer trainer) {
        if (onSigterm) {
            Termination.watch();
        }
    }

    /**
     * Saves if due. DJL calls this before the optimizer step of the batch, so the checkpoint
     * excludes that step, and a resumed job computes the batch again. Random numbers are therefore
     * seeded before this batch, at the end of the call for the batch before.
     */
    @Override
    public void onTrainingBatch(Trainer trainer, BatchData batchData) {
        if (trainer instanceof DataParallelTrainer own) {
            own.callInJoin(this);
        }
        onJoinedBatch(trainer);
    }

    @Override
    public void onJoinedBatch(Trainer trainer) {
        sums.onBatch(trainer, this);
        saveIfDue(trainer);
        exitIfTold(trainer);
        progress =
                new TrainingProgress(progress.step() + 1, progress.epoch(), progress.batch() + 1);
        seedIfDue(trainer);
    }

    /** Saves if due, at the end of an epoch. */
    @Override
    public void onEpoch(Trainer trainer) {
        progress = new TrainingProgress(progress.step(), progress.epoch() + 1, 0);
        sums.onEpoch();
        saveIfDue(trainer);
        seedIfDue(trainer);
    }

    /**
     * Waits for the last checkpoint, with {@link Builder#optAsync}. DJL calls this when the trainer
     * is closed, so ranks wait without an agreement: as long as processes write their files.
     */
    @Override
    public void onTrainingEnd(Trainer trainer) {
        try {
            if (writing != null) {
                partsDeadline = Deadline.after(patience);
                get(writing);
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } finally {
            if (onSigterm) {
                Termination.unwatch();
            }
        }
    }

    /** Saves on all ranks if one of them was sent SIGTERM, and ends this process. */
    private void exitIfTold(Trainer trainer) {
        if (!onSigterm) {
            return;
        }
        DataParallelTrainer own = own(trainer, "save");
        NDManager manager = own.replicas().get(0).manager();
        if (!Agreement.any(group(own), manager, Termination.isRequested())) {
            return;
        }
        LOG.info("SIGTERM: saving step {} into {}, then exiting", progress.step(), directory);
        try {
            if (progress.step() != saved) {
                saveAll(trainer, progress, sums.toJson());
            }
            await(trainer);
        } catch (IOException e) {
            throw new UncheckedIOException(
                    "the checkpoint of step " + progress.step() + " was not saved", e);
        }
        System.exit(Termination.EXIT_CODE);
    }

    /** Returns whether a checkpoint of the current step is due. */
    private boolean isDue() {
        return every > 0 && progress.step() > 0 && progress.step() % every == 0;
    }

    /** Seeds the random numbers if a job that is resumed from this step would seed them. */
    private void seedIfDue(Trainer trainer) {
        if (isDue()) {
            setRandomState(own(trainer, "save"), progress.step());
        }
    }

    private void saveIfDue(Trainer trainer) {
        long step = progress.step();
        if (!isDue() || step == saved) {
            return;
        }
        try {
            saveAll(trainer, progress, sums.toJson());
        } catch (IOException e) {
            throw new UncheckedIOException("the checkpoint of step " + step + " was not saved", e);
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
        private DistributedSampler sampler;
        private boolean async;
        private boolean onSigterm;

        private Builder() {}

        /**
         * Sets the directory of the checkpoints.
         *
         * @param directory one job's directory, the same on all ranks; created when needed
         * @return this builder
         */
        public Builder setDirectory(Path directory) {
            this.directory = directory;
            return this;
        }

        /**
         * Sets how many checkpoints are kept. Older ones are deleted after a new one is written.
         *
         * @param count the number, 1 or more; the default is 3
         * @return this builder
         */
        public Builder optKeep(int count) {
            keep = count;
            return this;
        }

        /**
         * Sets how often the training listener saves.
         *
         * @param steps the number of steps between checkpoints; 0, the default, for never
         * @return this builder
         */
        public Builder optEvery(long steps) {
            every = steps;
            return this;
        }

        /**
         * Sets the group of ranks that save and restore together, if it is larger than the
         * trainer's: the ranks of all parts of a divided model, where each part has its own
         * directory. They resume from the newest step that every part has.
         *
         * @param group this rank's handle; the caller keeps owning it
         * @return this builder
         */
        public Builder optGroup(ProcessGroup group) {
            this.group = group;
            return this;
        }

        /**
         * Sets the sampler of the dataset. Its order and position are saved; {@link
         * CheckpointManager#restore} sets the position.
         *
         * @param sampler the sampler; restore fails if its seed, shuffling or padding differs
         * @return this builder
         */
        public Builder optSampler(DistributedSampler sampler) {
            this.sampler = sampler;
            return this;
        }

        /**
         * Sets whether files are written in the background, as PyTorch's {@code async_save}. {@code
         * save} then returns when the arrays are copied to CPU memory; the next save, or {@link
         * CheckpointManager#await}, waits until the checkpoint is complete and throws if it is not.
         *
         * @param async true to write in the background; the default is false
         * @return this builder
         */
        public Builder optAsync(boolean async) {
            this.async = async;
            return this;
        }

        /**
         * Sets whether SIGTERM has the training listener save. Before each step the ranks agree, by
         * a small all-reduce, whether one of them was sent SIGTERM. Then all save and exit with
         * code 143; the launcher starts them again if restarts are left, unless it was stopped
         * itself. The resumed job draws other random numbers than an uninterrupted one. A second
         * SIGTERM ends the process at once. A SIGTERM after the last batch has no effect; once the
         * trainer is closed, SIGTERM ends the process. All ranks must set the same value.
         *
         * @param save true to save; the default is false: SIGTERM ends the process
         * @return this builder
         */
        public Builder optSaveOnSigterm(boolean save) {
            onSigterm = save;
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
                                "CheckpointManager: optKeep %d or optEvery %d is out of range:"
                                        + " optKeep is 1 or more, optEvery 0 or more",
                                keep, every));
            }
            return new CheckpointManager(this);
        }
    }
}
