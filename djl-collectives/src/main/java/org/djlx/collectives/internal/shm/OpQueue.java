/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

import ai.djl.ndarray.NDArray;
import java.util.ArrayDeque;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.spi.Operation;

/**
 * Runs the operations of one rank's group, one after the other, in the order in which they were
 * issued.
 *
 * <p>Whoever waits for an operation runs it himself, and those before it: a call followed by {@code
 * await} costs no change of thread. What nobody waits for is run by a thread of the queue, which
 * looks at the queue some time after an operation was issued, or after somebody stopped running
 * them, and sleeps while none is pending or somebody runs them.
 */
final class OpQueue {

    // How long what was issued waits for somebody to wait for it, for each rank that shares a core:
    // a look at the queue takes the core from a rank that works.
    private static final long PATIENCE_NANOS = 500_000;

    private final Rendezvous rendezvous;
    private final Queue<OpWork> pending = new ArrayDeque<>();
    private final ReentrantLock runner = new ReentrantLock();
    private final Thread progress;
    private final long patienceNanos;
    private long submitted; // guarded by pending
    private long seen; // by the queue's thread, of submitted
    private boolean idle; // guarded by pending
    private volatile boolean awaitsStop; // the queue's thread, of whoever runs operations
    private volatile boolean closed;
    private OpWork running; // or null; guarded by runner

    /**
     * Creates a queue, and its thread.
     *
     * @param name the thread's name
     * @param rendezvous knows why operations cannot run any more
     * @param ranksPerCore the ranks that share a core
     */
    OpQueue(String name, Rendezvous rendezvous, int ranksPerCore) {
        this.rendezvous = rendezvous;
        patienceNanos = PATIENCE_NANOS * ranksPerCore;
        progress = new Thread(this::progress, name);
        progress.setDaemon(true);
        progress.start();
    }

    OpWork submit(Operation operation, Runnable body, Runnable cleanup, List<NDArray> result) {
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
     * Runs operations until one has ended, if no other thread is running any. If that stops before
     * this operation, the queue's thread goes on.
     *
     * @return false if another thread is
     * @throws IllegalStateException if this thread is running an operation, which would wait for
     *     itself or for a later one
     */
    boolean runUntil(OpWork work) {
        if (runner.isHeldByCurrentThread() && running != null && !running.isCompleted()) {
            throw new IllegalStateException(
                    running.operation()
                            + " cannot wait for "
                            + work.operation()
                            + ", which does not run before it has ended");
        }
        if (!runner.tryLock()) {
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

    /** Makes the queue's thread run what is pending, without waiting for its patience to end. */
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
            CollectiveException obstacle = rendezvous.obstacle(next.operation());
            if (obstacle != null) {
                next.fail(obstacle);
            } else {
                running = next;
                next.run();
            }
        } catch (RuntimeException | Error e) {
            // Something went wrong in ending it: it ends all the same, and the group with it.
            CollectiveException reason = GroupErrors.failed(next.operation(), e);
            rendezvous.fail(reason);
            next.complete(reason);
        } finally {
            running = null; // What it ran may refer to the group.
        }
        return true;
    }

    private void progress() {
        while (!closed) {
            try {
                look();
            } catch (RuntimeException | Error e) {
                // What is pending fails with that; this thread is there for what comes.
                rendezvous.fail(GroupErrors.failed(progress.getName(), e));
            }
        }
    }

    /** Runs what has been pending for some time, or sleeps. */
    private void look() {
        Thread.interrupted(); // Otherwise it would not sleep.
        boolean empty;
        boolean quiet;
        synchronized (pending) {
            empty = pending.isEmpty();
            quiet = seen == submitted;
            seen = submitted;
            idle = empty && quiet; // Then whoever submits next wakes this thread.
        }
        if (empty && quiet) {
            if (!closed) {
                LockSupport.park(this);
            }
        } else if (runner.isLocked()) {
            // A look now and then would take a core from a rank that works. What he leaves behind
            // may have somebody to wait for it, too.
            awaitStop();
        } else if (!empty) {
            runPending();
            return;
        }
        LockSupport.parkNanos(this, patienceNanos);
    }

    private void runPending() {
        if (!runner.tryLock()) {
            return;
        }
        try {
            while (runNext()) {
                // Until nothing is pending. An interrupt is the operation's own affair, and would
                // end the waits of the next one.
                Thread.interrupted();
            }
        } finally {
            runner.unlock();
        }
    }

    /** Sleeps until whoever runs operations has stopped. */
    private void awaitStop() {
        awaitsStop = true;
        // He may have stopped before that, and woken nobody.
        if (runner.isLocked() && !closed) {
            LockSupport.park(this);
        }
        awaitsStop = false;
    }

    /**
     * Fails what is pending and waits until nothing runs any more; to be called when the rendezvous
     * is closed, which ends what runs.
     */
    void close() {
        closed = true;
        LockSupport.unpark(progress);
        runner.lock();
        try {
            while (runNext()) {
                // Each fails as the rendezvous is closed.
            }
        } finally {
            runner.unlock();
        }
    }
}
