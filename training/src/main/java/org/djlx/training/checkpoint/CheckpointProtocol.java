// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import org.djlx.collectives.Agreement;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.host.Deadline;
import org.djlx.training.DataParallelTrainer;

/**
 * Has all ranks save or restore the same step, or all fail: first every process writes its part,
 * then the first one the file that names the parts. Writes in the background if asked to.
 */
final class CheckpointProtocol {

    /** How long a file of another process may stay invisible: network file systems keep names. */
    static Duration patience = Duration.ofSeconds(90);

    /** Collects what this process writes. */
    interface Preparation {
        CheckpointSave prepare() throws IOException;
    }

    private final CheckpointDirectory directory;
    private final ProcessGroup group; // null to use the trainer's
    private final boolean async;
    private volatile Deadline partsDeadline; // set when all parts have been written
    private FutureTask<String> writing; // in the background; null if nothing is

    CheckpointProtocol(CheckpointDirectory directory, ProcessGroup group, boolean async) {
        this.directory = directory;
        this.group = group;
        this.async = async;
    }

    /** Returns the group of ranks that save and restore together; null if there is one rank. */
    ProcessGroup group(DataParallelTrainer trainer) {
        return group == null ? trainer.group() : group;
    }

    /** Saves on all ranks. Requires that no save is being written. */
    void save(DataParallelTrainer trainer, TrainingProgress progress, Preparation preparation)
            throws IOException {
        partsDeadline = null;
        CheckpointSave[] save = new CheckpointSave[1];
        try {
            Agreement.run(
                    group(trainer),
                    "save",
                    () -> {
                        save[0] = preparation.prepare();
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
            if (trainer.isSharded()) {
                exchange(trainer, () -> save[0].awaits() ? write(save[0]) : null);
            }
            deleteOld(trainer);
        }
        directory.setLast(progress.step());
    }

    private String write(CheckpointSave save) throws IOException {
        Object key = save.write(() -> partsDeadline, patience);
        if (key != null) {
            directory.setLastKey(key);
        }
        return null;
    }

    /** Waits on all ranks until the save in the background is complete. */
    void await(DataParallelTrainer trainer) throws IOException {
        FutureTask<String> running = writing;
        writing = null;
        if (running == null) {
            return;
        }
        try { // First all parts, then the file that names them.
            exchange(trainer, () -> trainer.process() > 0 ? get(running) : null);
        } catch (IOException | RuntimeException e) {
            running.cancel(true); // The first process waits for parts that will not come.
            throw e;
        }
        partsDeadline = Deadline.after(patience);
        exchange(trainer, () -> trainer.process() == 0 ? get(running) : null);
        deleteOld(trainer);
    }

    /** As {@link #await}, without the other ranks: as long as processes write their files. */
    void awaitAlone() throws IOException {
        if (writing != null) {
            partsDeadline = Deadline.after(patience);
            get(writing);
        }
    }

    boolean isWriting() {
        return writing != null;
    }

    private void exchange(DataParallelTrainer trainer, Agreement.Body body) throws IOException {
        Agreement.exchange(group(trainer), "save", body);
    }

    private String get(FutureTask<String> running) throws IOException {
        try {
            return running.get();
        } catch (ExecutionException e) {
            throw new IOException(
                    String.format(
                            "the checkpoint of step %d was not saved: %s",
                            directory.last(), e.getCause()),
                    e.getCause());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException("interrupted while the checkpoint was written", e);
        }
    }

    private void deleteOld(DataParallelTrainer trainer) {
        if (trainer.process() == 0) {
            directory.deleteOld();
        }
    }

    /** Returns the newest step that all parts of a model have; null if no part has a checkpoint. */
    Long newest(DataParallelTrainer trainer) throws IOException {
        List<Set<Long>> steps =
                Agreement.exchange(
                                group(trainer),
                                "restore",
                                () ->
                                        trainer.process() == 0
                                                ? new Gson().toJson(directory.steps())
                                                : null)
                        .stream()
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
}
