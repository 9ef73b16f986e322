// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import ai.djl.ndarray.NDManager;
import ai.djl.training.Trainer;
import ai.djl.training.listener.TrainingListenerAdapter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import org.djlx.collectives.Agreement;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.engine.P2pEngine;
import org.djlx.nativeops.host.Required;
import org.djlx.training.DataParallelTrainer;
import org.djlx.training.data.DistributedSampler;
import org.djlx.training.data.JoinListener;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Saves and restores the state of a training job: parameters, optimizer state, progress, position
 * in the dataset, random state and the scale of a {@link org.djlx.training.precision.GradScaler}.
 * On CPUs with the same number of ranks, a resumed job computes the same losses, bit for bit, as an
 * uninterrupted one.
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
 *   <li>All processes call save and restore. If one fails, all fail.
 *   <li>Rank 0 writes the checkpoint. With a {@linkplain
 *       org.djlx.training.strategy.ShardingStrategy sharded} trainer each process writes its part.
 *   <li>All processes read the checkpoint, so the directory is shared.
 * </ul>
 *
 * <p>What is saved, and how to resume with another number of ranks: docs/training.md, Checkpoints.
 *
 * <p>Not thread-safe.
 */
public final class CheckpointManager extends TrainingListenerAdapter implements JoinListener {

    private static final Logger LOG = LoggerFactory.getLogger(CheckpointManager.class);

    private final CheckpointDirectory directory;
    private final CheckpointProtocol protocol;
    private final long every;
    private final DistributedSampler sampler; // null if it is not given
    private final boolean async;
    private final boolean onSigterm;
    private final RandomSeed seed = new RandomSeed();
    private final EpochSums sums = new EpochSums();
    private TrainingProgress progress = TrainingProgress.START;
    private TrainingProgress restored = TrainingProgress.START;
    private long restoredItems; // items of the restored epoch that earlier jobs have trained on

    private CheckpointManager(Builder builder) {
        directory = new CheckpointDirectory(builder.directory, builder.keep);
        protocol = new CheckpointProtocol(directory, builder.group, builder.async);
        every = builder.every;
        sampler = builder.sampler;
        async = builder.async;
        onSigterm = builder.onSigterm;
    }

    /**
     * Saves the state of a job. Call it between steps, on all ranks, with the same progress.
     *
     * @throws IOException on all ranks if the file cannot be written, if the directory has a
     *     checkpoint of a later step (a restore would choose that one), or if another job has
     *     written there since this manager saved or restored
     * @throws IllegalArgumentException if the trainer is of another engine
     * @throws IllegalStateException if the model is not initialised, or the optimizer has state
     *     that cannot be saved
     */
    public void save(Trainer trainer, TrainingProgress progress) throws IOException {
        Required.argument("save: progress", progress);
        saveAll(trainer, progress, progress.batch() > 0 ? EpochSums.toJson(trainer) : "{}");
        seed.draw(own(trainer, "save"), progress.step());
    }

    /** Saves without seeding the random numbers. */
    private void saveAll(Trainer trainer, TrainingProgress progress, String sums)
            throws IOException {
        DataParallelTrainer own = own(trainer, "save");
        protocol.await(own);
        String number = Long.toHexString(UUID.randomUUID().getMostSignificantBits());
        JobState.Contribution mine = new JobState.Contribution(seed.of(own), number, sums);
        List<JobState.Contribution> all =
                Agreement.exchange(own.group(), "save", mine::toString).stream()
                        .map(JobState.Contribution::parse)
                        .toList();
        protocol.save(own, progress, () -> prepare(own, progress, all));
        this.progress = progress;
    }

    private CheckpointSave prepare(
            DataParallelTrainer trainer, TrainingProgress progress, List<JobState.Contribution> all)
            throws IOException {
        int process = trainer.process();
        List<Path> parts = new ArrayList<>();
        for (int i = 1; trainer.isSharded() && i < all.size(); i++) {
            parts.add(directory.part(progress.step(), i, all.get(0).number()));
        }
        if (process > 0 && parts.isEmpty()) {
            return CheckpointSave.NOTHING;
        }
        directory.create();
        if (process > 0) {
            Path part = parts.get(process - 1);
            return CheckpointSave.of(trainer, part, new LinkedHashMap<>(), List.of(), async);
        }
        directory.prepare(progress.step());
        long items = sampler == null ? 0 : items(progress);
        Map<String, String> metadata =
                JobState.metadata(trainer, progress, sampler, items, all, parts);
        Path file = directory.file(progress.step());
        return CheckpointSave.of(trainer, file, metadata, parts, async);
    }

    private long items(TrainingProgress progress) {
        boolean resumed =
                progress.epoch() == restored.epoch() && progress.batch() >= restored.batch();
        return resumed
                ? restoredItems + (progress.batch() - restored.batch()) * sampler.itemsPerBatch()
                : progress.batch() * sampler.itemsPerBatch();
    }

    /**
     * Waits until the checkpoint that is written in the background is complete. Call it on all
     * ranks after training, with {@link Builder#optAsync}; the listener does.
     *
     * @throws IOException on all ranks if the checkpoint could not be written on one of them
     */
    public void await(Trainer trainer) throws IOException {
        if (protocol.isWriting()) {
            protocol.await(own(trainer, "await"));
        }
    }

    /**
     * Restores the newest checkpoint, if there is one. Call it on all ranks, after {@code
     * initialize}. If only some parts of a divided model have checkpoints of later steps, these are
     * deleted.
     *
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
        protocol.await(own);
        Long newest = protocol.newest(own);
        if (newest == null) {
            return TrainingProgress.START;
        }
        Path path = directory.file(newest);
        CheckpointParts[] opened = new CheckpointParts[1];
        JobState[] state = new JobState[1];
        try {
            Agreement.exchange(
                    protocol.group(own),
                    "restore",
                    () -> {
                        opened[0] = CheckpointParts.open(path);
                        state[0] = JobState.read(opened[0], newest, sampler);
                        TrainerArrays.requireFit(opened[0], own);
                        return null;
                    });
            Agreement.run(
                    own.group(),
                    "restore",
                    () -> path.getFileName() + " with checksum " + opened[0].checksum());
            own.zeroGradients(); // Gradients of an earlier pass belong to the former parameters.
            TrainerArrays.restore(opened[0], state[0], own);
            directory.setLast(newest);
            directory.setLastKey(opened[0].key());
            if (own.process() == 0) {
                directory.deleteAfter(newest);
            }
        } finally {
            if (opened[0] != null) {
                opened[0].close();
            }
        }
        restoreJob(state[0], own, path);
        return progress;
    }

    private void restoreJob(JobState state, DataParallelTrainer trainer, Path path) {
        progress = state.progress();
        restored = progress;
        if (trainer.gradScaler() != null && !Double.isNaN(state.scale())) {
            trainer.gradScaler().restore(state.scale(), state.goodSteps());
        }
        int processes = trainer.group() == null ? 1 : trainer.group().worldSize();
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
        seed.restore(state.seeds(), trainer, progress.step());
        sums.restore(trainer, state.sums(), trainer.process(), processes, progress.batch());
        EpochSums.setEpochs(trainer, (int) progress.epoch());
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

    @Override
    public void onTrainingBegin(Trainer trainer) {
        if (onSigterm) {
            Termination.watch();
        }
    }

    /**
     * Saves if due. DJL calls this before the optimizer step of the batch, so the checkpoint
     * excludes that step, and a resumed job computes the batch again. Random numbers are therefore
     * seeded before this batch, at the end of the previous batch's call.
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

    @Override
    public void onEpoch(Trainer trainer) {
        progress = new TrainingProgress(progress.step(), progress.epoch() + 1, 0);
        sums.onEpoch();
        saveIfDue(trainer);
        seedIfDue(trainer);
    }

    /**
     * Waits until this process has written its file of the last checkpoint, with {@link
     * Builder#optAsync}. DJL calls this after the trainer has closed its group, so the processes do
     * not agree on the outcome.
     */
    @Override
    public void onTrainingEnd(Trainer trainer) {
        try {
            protocol.awaitAlone();
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
        try (NDManager manager = own.getManager().newSubManager(own.getDevices()[0])) {
            if (!Agreement.any(protocol.group(own), manager, Termination.isRequested())) {
                return;
            }
        }
        LOG.info("SIGTERM: saving step {} into {}, then exiting", progress.step(), directory);
        saveIfNew(trainer);
        try {
            await(trainer);
        } catch (IOException e) {
            throw notSaved(e);
        }
        System.exit(Termination.EXIT_CODE);
    }

    private boolean isDue() {
        return every > 0 && progress.step() > 0 && progress.step() % every == 0;
    }

    /** Seeds the random numbers as a job would that resumes from this step. */
    private void seedIfDue(Trainer trainer) {
        if (isDue()) {
            seed.draw(own(trainer, "save"), progress.step());
        }
    }

    private void saveIfDue(Trainer trainer) {
        if (isDue()) {
            saveIfNew(trainer);
        }
    }

    private void saveIfNew(Trainer trainer) {
        if (progress.step() == directory.last()) {
            return;
        }
        try {
            saveAll(trainer, progress, sums.toJson());
        } catch (IOException e) {
            throw notSaved(e);
        }
    }

    private UncheckedIOException notSaved(IOException e) {
        return new UncheckedIOException(
                "the checkpoint of step " + progress.step() + " was not saved", e);
    }

    public static Builder builder() {
        return new Builder();
    }

    public static final class Builder {

        private Path directory;
        private int keep = 3;
        private long every;
        private ProcessGroup group;
        private DistributedSampler sampler;
        private boolean async;
        private boolean onSigterm;

        private Builder() {}

        /** Sets one job's directory, the same on all ranks; created when needed. */
        public Builder setDirectory(Path directory) {
            this.directory = directory;
            return this;
        }

        /**
         * Sets how many checkpoints are kept, 1 or more; default 3. Older ones are deleted after a
         * new one is written.
         */
        public Builder optKeep(int count) {
            keep = count;
            return this;
        }

        /** Sets after how many steps the training listener saves; 0, the default, for never. */
        public Builder optEvery(long steps) {
            every = steps;
            return this;
        }

        /**
         * Sets this rank's handle, owned by the caller, on the group of ranks that save and restore
         * together, if it is larger than the trainer's: all parts of a divided model, each with its
         * own directory. They resume from the newest step that every part has.
         */
        public Builder optGroup(ProcessGroup group) {
            this.group = group;
            return this;
        }

        /**
         * Sets the dataset's sampler, whose order and position are saved. {@link
         * CheckpointManager#restore} sets the position, and fails if its seed, shuffling or padding
         * differs.
         */
        public Builder optSampler(DistributedSampler sampler) {
            this.sampler = sampler;
            return this;
        }

        /**
         * Sets whether files are written in the background, as PyTorch's {@code async_save};
         * default false. {@code save} then returns when the arrays are copied to CPU memory; the
         * next save, or {@link CheckpointManager#await}, waits until the checkpoint is complete and
         * throws if it is not.
         */
        public Builder optAsync(boolean async) {
            this.async = async;
            return this;
        }

        /**
         * Sets whether all ranks save and exit with code 143 after one of them got SIGTERM; default
         * false. The training listener saves before the next step. The same on all ranks. Costs a
         * small all-reduce each step. The launcher restarts the ranks if restarts are left, unless
         * it was stopped itself. The resumed job draws other random numbers than an uninterrupted
         * one. A second SIGTERM ends the process at once.
         */
        public Builder optSaveOnSigterm(boolean save) {
            onSigterm = save;
            return this;
        }

        /**
         * Throws an {@link IllegalArgumentException} if there is no directory, or a number is
         * wrong.
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
