// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.checkpoint;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import org.djlx.nativeops.host.AtomicFile;
import org.djlx.nativeops.host.Deadline;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.DataParallelTrainer;

/**
 * The part of a checkpoint that one process writes: one file of arrays. The file that names the
 * parts of other processes is written after those parts. {@link CheckpointParts} reads them.
 *
 * @param manager the manager of the arrays
 * @param copies owns copies of the arrays; null if the trainer owns the arrays
 * @param awaited the files of other processes that must be complete before this file is written
 */
record CheckpointSave(
        Path path,
        Map<String, String> metadata,
        Map<String, NDArray> arrays,
        NDManager manager,
        NDManager copies,
        List<Path> awaited)
        implements AutoCloseable {

    static final CheckpointSave NOTHING =
            new CheckpointSave(null, Map.of(), Map.of(), null, null, List.of());
    private static final long POLL_MILLIS = 20;

    /**
     * Collects the parameters and optimizer state that the ranks of this process own. {@code
     * metadata} receives the optimizer's update counts. {@code copied}: to CPU memory, so that
     * training can continue during the write.
     */
    static CheckpointSave of(
            DataParallelTrainer trainer,
            Path path,
            Map<String, String> metadata,
            List<Path> awaited,
            boolean copied) {
        Map<String, NDArray> arrays = TrainerArrays.collect(trainer, metadata);
        NDManager copies = copied ? NDManager.newBaseManager(Device.cpu(), "PyTorch") : null;
        if (copied) {
            try {
                NoGradient.run(() -> arrays.replaceAll((name, array) -> copy(array, copies)));
            } catch (RuntimeException | Error e) {
                copies.close();
                throw e;
            }
        }
        NDManager manager = copied ? copies : trainer.getManager();
        return new CheckpointSave(path, metadata, arrays, manager, copies, awaited);
    }

    private static NDArray copy(NDArray array, NDManager manager) {
        NDArray copy = Torch.empty(manager, array.getShape(), Torch.scalarType(array));
        Torch.copy(copy, array);
        return copy;
    }

    boolean awaits() {
        return !awaited.isEmpty();
    }

    /**
     * Writes the file after the files that it names, then closes the copies. Returns the file's key
     * if it names others, otherwise null.
     *
     * @param written returns the deadline for the other processes' files; null while it is not
     *     known
     * @param patience how long to wait after the deadline for a file that no process is writing:
     *     network file systems cache directory entries
     */
    Object write(Supplier<Deadline> written, Duration patience) throws IOException {
        if (path == null) {
            return null;
        }
        try (this) {
            for (Path part : awaited) {
                awaitPart(part, written, patience);
            }
            CheckpointFile.write(path, metadata, arrays, manager);
            return metadata.containsKey("format") ? CheckpointFile.key(path) : null;
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IOException(path + ": interrupted while parts were awaited", e);
        }
    }

    /**
     * Waits for a file of another process. After the deadline, waits on only while a process is
     * writing the file, and for {@code patience} after that.
     */
    private static void awaitPart(Path part, Supplier<Deadline> written, Duration patience)
            throws IOException, InterruptedException {
        Deadline absent = Deadline.after(patience);
        while (!Files.exists(part)) {
            Deadline deadline = written.get();
            boolean late = deadline != null && deadline.isOver();
            if (late && AtomicFile.isBeingWritten(part)) {
                absent = Deadline.after(patience);
            } else if (late && absent.isOver()) {
                throw new IOException(
                        part
                                + " of another process is not here, and is not being written: the"
                                + " process has ended, or does not save into this directory; all"
                                + " processes must save into a shared directory");
            }
            Thread.sleep(POLL_MILLIS);
        }
    }

    @Override
    public void close() {
        if (copies != null) {
            copies.close();
        }
    }
}
