// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import ai.djl.ndarray.NDArray;
import java.util.ArrayDeque;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;

/**
 * Runs the operations of one rank, in the order in which they were issued.
 *
 * <p>A thread that waits for an operation runs it and all earlier operations, so a call followed by
 * {@code await} needs no thread switch. The queue's thread runs operations without a waiting
 * thread. It checks the queue some time after an operation was issued, or after another thread has
 * stopped running operations. It sleeps while the queue is empty or another thread runs operations.
 */
final class OpQueue implements AutoCloseable {

    // How long an operation waits for a caller to run it, per rank that shares a core. Checking the
    // queue takes the core from a working rank.
    private static final long TAKEOVER_NANOS = 500_000;

    // The wait doubles up to this factor while callers run all operations. A check costs two thread
    // switches, as much as a small operation.
    private static final int MAX_WAITS = 8;

    private final PeerStates peers;
    private final Queue<OpWork> pending = new ArrayDeque<>();
    private final ReentrantLock runner = new ReentrantLock();
    private final Thread progress;
    private final long takeoverNanos;
    private long wait; // until the next check, in ns; confined to the queue's thread
    private long submitted; // number of operations; guarded by pending
    private long seen; // value of submitted at the last check; confined to the queue's thread
    private boolean idle; // guarded by pending
    private volatile boolean awaitsStop; // whether the queue's thread waits for the runner to stop
    private volatile boolean closed;
    private OpWork running; // or null; guarded by runner

    /** Creates a queue, and its thread. The peers know whether operations can still run. */
    OpQueue(String name, PeerStates peers, int ranksPerCore) {
        this.peers = peers;
        takeoverNanos = TAKEOVER_NANOS * ranksPerCore;
        wait = takeoverNanos;
        progress = new Thread(this::progress, name);
        progress.setDaemon(true);
        progress.start();
    }

    /** Adds an operation; {@code cleanup} runs after it, even if it does not run. */
    PendingWork submit(Operation operation, Runnable body, Runnable cleanup, List<NDArray> result) {
        OpWork work = new OpWork(this, operation, body, cleanup, result);
        boolean wake;
        synchronized (pending) {
            pending.add(work);
            submitted++;
            wake = idle;
            idle = false;
        }
        if (wake) {
            LockSupport.unpark(progress);
        }
        return work;
    }

    /**
     * Runs operations until {@code work} has ended; returns false if another thread is running
     * operations. If that thread stops before this operation, the queue's thread continues.
     *
     * @throws IllegalStateException if this thread is running an operation, which would wait for
     *     itself or a later operation
     */
    boolean runUntil(OpWork work) {
        if (runner.isHeldByCurrentThread() && running != null && !running.isCompleted()) {
            throw new IllegalStateException(
                    ("%s cannot wait for %s, which starts only after the first has ended; do not"
                                    + " wait within an operation")
                            .formatted(running.operation(), work.operation()));
        }
        if (!runner.tryLock()) {
            expedite(); // Once the other thread stops.
            return false;
        }
        try {
            while (!work.isCompleted()) {
                runNext();
            }
        } finally {
            runner.unlock();
            if (awaitsStop) {
                awaitsStop = false;
                LockSupport.unpark(progress);
            }
        }
        return true;
    }

    /** Makes the queue's thread run pending operations immediately. */
    void expedite() {
        LockSupport.unpark(progress);
    }

    private boolean runNext() {
        OpWork next;
        synchronized (pending) {
            next = pending.poll();
        }
        if (next == null) {
            return false;
        }
        try {
            CollectiveException obstacle = peers.obstacle(next.operation());
            if (obstacle != null) {
                next.end(obstacle);
            } else {
                running = next;
                next.run();
            }
        } catch (RuntimeException | Error e) {
            // Ending the operation failed: complete it anyway, and break the group.
            CollectiveException reason = GroupErrors.failed(next.operation(), e);
            peers.fail(reason);
            next.complete(reason);
        } finally {
            running = null; // The operation may refer to the group.
        }
        return true;
    }

    private void progress() {
        while (!closed) {
            try {
                runOrSleep();
            } catch (RuntimeException | Error e) {
                // Pending operations fail; this thread stays for later operations.
                peers.fail(GroupErrors.failed(progress.getName(), e));
            }
        }
    }

    /** Runs operations that have been pending for some time, or sleeps. */
    private void runOrSleep() {
        Thread.interrupted(); // Otherwise park() would return immediately.
        boolean empty;
        boolean quiet;
        synchronized (pending) {
            empty = pending.isEmpty();
            quiet = seen == submitted;
            seen = submitted;
            idle = empty && quiet; // The next submit() wakes this thread.
        }
        if (empty && quiet) {
            if (!closed) {
                LockSupport.park(this);
            }
        } else if (runner.isLocked() && (quiet || !empty)) {
            // Periodic checks would take the core from a working rank, and the remaining operations
            // may have waiting threads as well.
            awaitStop();
            wait = takeoverNanos;
        } else if (!empty && !runner.isLocked()) {
            runPending();
            wait = takeoverNanos;
            return;
        }
        LockSupport.parkNanos(this, wait);
        wait = Math.min(2 * wait, MAX_WAITS * takeoverNanos);
    }

    private void runPending() {
        if (!runner.tryLock()) {
            return;
        }
        try {
            while (runNext()) {
                // Run until nothing is pending. Clear an operation's interrupt, which must not end
                // the waits of the next operation.
                Thread.interrupted();
            }
        } finally {
            runner.unlock();
        }
    }

    /** Sleeps until the thread that runs operations has stopped. */
    private void awaitStop() {
        awaitsStop = true;
        // The runner may have stopped before awaitsStop was set, without waking this thread.
        if (runner.isLocked() && !closed) {
            LockSupport.park(this);
        }
        awaitsStop = false;
    }

    /**
     * Fails pending operations and waits for the running one. Called after the peers' states are
     * closed, which ends the running operation.
     */
    @Override
    public void close() {
        closed = true;
        LockSupport.unpark(progress);
        runner.lock();
        try {
            while (runNext()) {
                // Each fails because the group is being destroyed.
            }
        } finally {
            runner.unlock();
        }
    }
}
