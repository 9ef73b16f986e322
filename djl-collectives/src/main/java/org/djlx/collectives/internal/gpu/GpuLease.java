// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import ai.djl.engine.EngineException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.NoSuchFileException;
import java.nio.file.OpenOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermissions;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.djlx.collectives.launch.LaunchEnvironment;
import org.djlx.nativeops.host.Deadline;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Reserves a GPU for the P2P groups of one job. Kernels of two processes that wait for peers can
 * block each other, and {@link GpuTurns} orders those of one process only.
 *
 * <pre>
 *   file djlx-gpu-UUID.lock in the temporary folder    job \n pid of the process that wrote it
 *   lock of byte 0                                    exclusive, while a process acquires
 *   lock of byte 1                                    shared, as long as a process has the lease
 * </pre>
 *
 * <p>Invariants:
 *
 * <ol>
 *   <li>Only a process that could lock byte 1 exclusively, and so is alone, writes the job.
 *   <li>Processes of the same job share the lease. The operating system frees the locks of a
 *       process that ends in any way.
 *   <li>A process has one channel to a file: closing a second one would free its locks.
 *   <li>The file stays, with a few bytes. Another process may be about to lock it.
 * </ol>
 *
 * <p>If the file cannot be used, there is no check, and the log warns. If another process keeps
 * byte 0 locked for 10 s, the GPU is refused. Thread-safe.
 */
public final class GpuLease implements AutoCloseable {

    private static final Logger logger = LoggerFactory.getLogger(GpuLease.class);

    /** Identifies the job of this process: the same in all processes of a launcher. */
    public static final String JOB = job(LaunchEnvironment.current().variables());

    private static final Path FOLDER = Path.of(System.getProperty("java.io.tmpdir"));
    private static final Duration PATIENCE = Duration.ofSeconds(10);
    private static final long MUTEX = 0;
    private static final long LEASE = 1;
    private static final int MAX_CONTENT = 1024;

    private static final Map<Path, Held> HELD = new HashMap<>(); // guarded by itself

    private final Path file;
    private boolean closed; // guarded by HELD

    /** The lease of this process, locked while a thread acquires it from other processes. */
    private static final class Held {
        FileChannel channel; // null without access to the file
        boolean acquired; // guarded by this
        int leases; // and threads that acquire one; guarded by HELD
    }

    private GpuLease(Path file) {
        this.file = file;
    }

    static String job(Map<String, String> environment) {
        String port = environment.get("MASTER_PORT");
        return port == null
                ? UUID.randomUUID().toString()
                : environment.get("MASTER_ADDR") + ":" + port;
    }

    /**
     * Acquires a GPU for a group.
     *
     * @param gpu the UUID of the GPU
     * @param jobs the jobs of the group's processes, {@link #JOB} of each
     * @throws EngineException if a process of another job has the GPU, or keeps the file locked
     */
    public static GpuLease acquire(String gpu, Set<String> jobs) {
        return acquire(FOLDER, gpu, JOB, jobs, PATIENCE);
    }

    static GpuLease acquire(
            Path folder, String gpu, String job, Set<String> jobs, Duration patience) {
        GpuLease lease = new GpuLease(folder.resolve("djlx-gpu-" + gpu + ".lock"));
        Held held;
        synchronized (HELD) {
            held = HELD.computeIfAbsent(lease.file, file -> new Held());
            held.leases++;
        }
        try {
            synchronized (held) {
                if (!held.acquired) {
                    held.channel = lock(lease.file, gpu, job, jobs, patience);
                    held.acquired = true;
                }
            }
            return lease;
        } catch (Throwable e) {
            lease.close();
            throw e;
        }
    }

    /** Returns the channel with the lock; null without access to the file. */
    private static FileChannel lock(
            Path file, String gpu, String job, Set<String> jobs, Duration patience) {
        FileChannel channel = null;
        boolean done = false;
        try {
            channel = open(file);
            FileLock mutex = exclude(channel, file, gpu, patience);
            try {
                FileLock alone = channel.tryLock(LEASE, 1, false);
                if (alone == null) {
                    checkHolder(channel, gpu, jobs);
                } else {
                    write(channel, job + "\n" + ProcessHandle.current().pid());
                    alone.release();
                }
                // Succeeds: only the holder of the mutex locks this byte exclusively.
                done = channel.tryLock(LEASE, 1, true) != null;
            } finally {
                mutex.release();
            }
        } catch (IOException e) {
            logger.warn("cannot check whether another job uses GPU {}: {}", gpu, e.toString());
        } finally {
            if (!done) {
                close(channel);
            }
        }
        return done ? channel : null;
    }

    private static FileChannel open(Path file) throws IOException {
        Set<OpenOption> known =
                Set.of(
                        StandardOpenOption.READ,
                        StandardOpenOption.WRITE,
                        LinkOption.NOFOLLOW_LINKS);
        try {
            return FileChannel.open(file, known);
        } catch (NoSuchFileException e) {
            try {
                Files.createFile(file);
                // For other users; the umask does not apply here.
                Files.setPosixFilePermissions(file, PosixFilePermissions.fromString("rw-rw-rw-"));
            } catch (FileAlreadyExistsException another) {
                logger.debug("another process has created {}", file);
            }
            return FileChannel.open(file, known);
        }
    }

    private static FileLock exclude(FileChannel channel, Path file, String gpu, Duration patience)
            throws IOException {
        Deadline deadline = Deadline.after(patience);
        while (true) {
            FileLock mutex = channel.tryLock(MUTEX, 1, false);
            if (mutex != null) {
                return mutex;
            }
            if (deadline.isOver()) {
                throw new EngineException(
                        String.format(
                                "cannot find out whether another job uses GPU %s: a process keeps"
                                        + " %s locked for more than %d s. End that process (lslocks"
                                        + " shows it), or use backend 'nccl'",
                                gpu, file, patience.toSeconds()));
            }
            try {
                Thread.sleep(1);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new EngineException("interrupted while " + file + " was locked", e);
            }
        }
    }

    private static void checkHolder(FileChannel channel, String gpu, Set<String> jobs)
            throws IOException {
        ByteBuffer content = ByteBuffer.allocate(MAX_CONTENT);
        channel.read(content, 0);
        String text = new String(content.array(), 0, content.position(), StandardCharsets.UTF_8);
        List<String> lines = text.lines().toList();
        if (lines.size() != 2 || !jobs.contains(lines.get(0))) {
            throw new EngineException(
                    String.format(
                            "GPU %s is used by a P2P group of another job (process %s): kernels of"
                                + " two processes that wait for their peers can block each other on"
                                + " a GPU. Use backend 'nccl' for this group, create both groups in"
                                + " one process, or wait for the end of the other job",
                            gpu, lines.size() == 2 ? lines.get(1) : "unknown"));
        }
    }

    private static void write(FileChannel channel, String content) throws IOException {
        channel.truncate(0);
        channel.write(ByteBuffer.wrap(content.getBytes(StandardCharsets.UTF_8)), 0);
    }

    private static void close(FileChannel channel) {
        if (channel != null) {
            try {
                channel.close();
            } catch (IOException e) {
                logger.debug("cannot close a lock file", e);
            }
        }
    }

    /** Releases the lease; the process keeps the GPU as long as it has another one. */
    @Override
    public void close() {
        synchronized (HELD) {
            Held held = HELD.get(file);
            if (!closed && --held.leases == 0) {
                HELD.remove(file);
                close(held.channel);
            }
            closed = true;
        }
    }
}
