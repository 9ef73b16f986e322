// SPDX-License-Identifier: Apache-2.0
package org.djlx.mpi;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.Deadline;
import org.djlx.nativeops.mpi.MpiCommunicator;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * This process in MPI: initialises it for the first group, frees the communicators of groups that
 * all ranks have left, and finalizes MPI when the JVM ends.
 */
final class MpiProcess {

    private static final Logger logger = LoggerFactory.getLogger(MpiProcess.class);

    // How long the end of the process waits for ranks that have not left a group.
    private static final Duration PATIENCE = Duration.ofSeconds(5);
    private static final long POLL_NANOS = 100_000;

    private static final Set<MpiGroup> OPEN = ConcurrentHashMap.newKeySet();
    private static final List<MpiGroup> LEFT = new ArrayList<>(); // guarded by itself
    private static boolean hooked; // guarded by the class
    private static volatile boolean grouped; // whether there was a group

    private static final AtomicInteger TAGS = new AtomicInteger();

    private MpiProcess() {}

    /**
     * Returns a tag for the creation of a group whose rank 0 this process is. Groups that are
     * created at the same time have different ones, up to MAX_TAG / world size of each process.
     */
    static int newTag(MpiCommunicator world) {
        long tag = (long) TAGS.getAndIncrement() * world.size() + world.rank();
        return (int) (tag & MpiCommunicator.MAX_TAG);
    }

    /** Returns the communicator of all processes; throws if MPI is not available. */
    static synchronized MpiCommunicator world() {
        NativeLibrary.MPI.ensureAvailability();
        MpiCommunicator world = MpiCommunicator.world();
        if (!hooked) {
            hooked = true;
            logger.debug(
                    "{}: rank {} of {}", MpiCommunicator.version(), world.rank(), world.size());
            Runtime.getRuntime().addShutdownHook(new Thread(MpiProcess::end, "mpi-finalize"));
        }
        return world;
    }

    static void opened(MpiGroup group) {
        grouped = true;
        OPEN.add(group);
        releaseLeft();
    }

    /** Frees a group once all ranks have left it. */
    static void closed(MpiGroup group) {
        OPEN.remove(group);
        synchronized (LEFT) {
            LEFT.add(group);
        }
        releaseLeft();
    }

    /** Returns whether all groups that this rank has left are freed. */
    private static boolean releaseLeft() {
        synchronized (LEFT) {
            for (Iterator<MpiGroup> groups = LEFT.iterator(); groups.hasNext(); ) {
                if (groups.next().release()) {
                    groups.remove();
                }
            }
            return LEFT.isEmpty();
        }
    }

    /**
     * Leaves all groups, and finalizes MPI, which waits for the other processes. After a failure,
     * also to create the first group, they may never finalize MPI: then this process ends all the
     * same, and mpirun ends the job.
     */
    private static void end() {
        for (MpiGroup group : OPEN) {
            group.close();
            group.leave();
            closed(group);
        }
        Deadline deadline = Deadline.after(PATIENCE);
        while (!releaseLeft() && !deadline.isOver()) {
            LockSupport.parkNanos(POLL_NANOS);
        }
        boolean failed;
        synchronized (LEFT) {
            failed = !grouped || LEFT.stream().anyMatch(MpiGroup::isBroken);
            LEFT.forEach(MpiGroup::silence);
        }
        Thread finalizer = new Thread(MpiCommunicator::finish, "mpi-finalizer");
        finalizer.setDaemon(true);
        finalizer.start();
        try {
            finalizer.join(failed ? PATIENCE.toMillis() : 0);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
