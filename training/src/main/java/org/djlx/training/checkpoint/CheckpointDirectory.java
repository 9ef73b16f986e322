// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Objects;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.djlx.nativeops.host.AtomicFile;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The files of a job's checkpoints: their names, which are kept, and whether another job writes.
 */
final class CheckpointDirectory {

    private static final Logger LOG = LoggerFactory.getLogger(CheckpointDirectory.class);

    private static final Pattern NAME = Pattern.compile("checkpoint-(\\d{1,18})\\.safetensors");
    // Of a process other than the first: step, process, and a random number of the save.
    static final Pattern PART =
            Pattern.compile("checkpoint-(\\d{1,18})\\.part-(\\d+)-[0-9a-f]+\\.safetensors");

    private final Path directory;
    private final int keep;
    private long last = -1; // the step of this job's last checkpoint
    private volatile Object lastKey; // of its file; the thread that writes sets it

    CheckpointDirectory(Path directory, int keep) {
        this.directory = directory.toAbsolutePath();
        this.keep = keep;
    }

    Path file(long step) {
        return directory.resolve("checkpoint-" + step + ".safetensors");
    }

    Path part(long step, int process, String number) {
        String name = "checkpoint-%d.part-%d-%s.safetensors";
        return directory.resolve(name.formatted(step, process, number));
    }

    /** Returns the steps of all checkpoints, in ascending order. */
    List<Long> steps() throws IOException {
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

    /** Returns the step of this job's last checkpoint; negative before the first. */
    long last() {
        return last;
    }

    void setLast(long step) {
        last = step;
    }

    void setLastKey(Object key) {
        lastKey = key;
    }

    void create() throws IOException {
        Files.createDirectories(directory);
    }

    /**
     * Removes incomplete files. Throws if there is a later checkpoint, or another job has saved
     * here since this one's last save or restore.
     */
    void prepare(long step) throws IOException {
        AtomicFile.sweep(directory, NAME.pattern());
        List<Long> steps = steps();
        for (long other : last < 0 ? List.<Long>of() : steps) {
            boolean replaced =
                    other == last && !Objects.equals(lastKey, CheckpointFile.key(file(other)));
            if (replaced || other > last && other <= step) {
                throw new IOException(
                        String.format(
                                "another job has saved %s into %s, since this one saved or restored"
                                        + " step %d; give each job a directory of its own",
                                file(other).getFileName(), directory, last));
            }
        }
        if (!steps.isEmpty() && steps.get(steps.size() - 1) > step) {
            throw new IOException(
                    String.format(
                            "%s already has a checkpoint of step %d, which is later than step %d;"
                                    + " restore it, delete it, or choose another directory",
                            directory, steps.get(steps.size() - 1), step));
        }
    }

    /** Deletes checkpoints of later steps, which the resumed job will write again. */
    void deleteAfter(long step) throws IOException {
        for (Long other : steps()) {
            if (other > step) {
                Files.deleteIfExists(file(other));
            }
        }
        deleteParts();
    }

    /** Deletes all but the newest checkpoints, after all ranks have written the new one. */
    void deleteOld() {
        try {
            List<Long> steps = steps();
            for (Long step : steps.subList(0, Math.max(0, steps.size() - keep))) {
                Files.deleteIfExists(file(step));
            }
            deleteParts();
        } catch (IOException e) {
            LOG.warn("Old checkpoints in {} cannot be deleted.", directory, e);
        }
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

    @Override
    public String toString() {
        return directory.toString();
    }
}
