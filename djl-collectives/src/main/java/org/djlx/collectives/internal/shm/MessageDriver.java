/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.shm;

import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Sees to it that one rank's messages go on: one thread at a time drives them, by itself one that
 * waits for a message. For those that nobody waits for there is a thread, which takes over at most
 * {@value #PATIENCE_NANOS} ns after a message was issued, sleeps while there is none, and is
 * started with the first.
 */
final class MessageDriver {

    /** What is driven. */
    interface Engine {

        /** Does what can be done without waiting; returns whether that was anything. */
        boolean pass();

        /** Ends what cannot go on any more; returns whether that was anything. */
        boolean check();

        /** Whether there are messages under way. */
        boolean hasPending();

        /** Sleeps until another rank has changed something, unless a pass succeeds. */
        void sleep();

        /**
         * Fails all messages, as one of the above went wrong in a way that leaves none in order.
         */
        void fail(Throwable cause);
    }

    private static final long PATIENCE_NANOS = 500_000;

    private final Engine engine;
    private final String name;
    private final int spins;
    private final ReentrantLock driving = new ReentrantLock();
    private Thread thread; // guarded by this
    private volatile boolean idle;
    private volatile boolean closing;

    MessageDriver(Engine engine, String name, int spins) {
        this.engine = engine;
        this.name = name;
        this.spins = spins;
    }

    /** To be called when there is something to drive that was not there before. */
    synchronized void wake() {
        if (thread == null && !closing) {
            thread = new Thread(this::run, name);
            thread.setDaemon(true);
            thread.start();
        } else if (idle) {
            LockSupport.unpark(thread);
        }
    }

    /** Makes the thread take over without waiting for its patience to end. */
    synchronized void expedite() {
        LockSupport.unpark(thread);
    }

    /**
     * Drives until a work has ended, unless another thread does or all is about to end.
     *
     * @return false if it has not driven
     */
    boolean driveUntil(PendingWork work) {
        if (closing || !driving.tryLock()) {
            return false;
        }
        try {
            int looks = 0;
            while (!work.isCompleted() && !closing && !Thread.currentThread().isInterrupted()) {
                looks = drive(looks);
            }
        } catch (RuntimeException | Error e) {
            fail(e);
        } finally {
            driving.unlock();
        }
        if (engine.hasPending()) {
            expedite();
        }
        return true;
    }

    private void run() {
        while (!closing) {
            try {
                look();
            } catch (RuntimeException | Error e) {
                fail(e);
            }
        }
    }

    private void fail(Throwable cause) {
        try {
            engine.fail(cause);
        } catch (RuntimeException | Error e) {
            LockSupport.parkNanos(this, PATIENCE_NANOS); // Then again, with what comes of a look.
        }
    }

    /** Drives what is pending as long as nobody else does, or sleeps. */
    private void look() {
        if (!engine.hasPending()) {
            park(false);
            LockSupport.parkNanos(this, PATIENCE_NANOS);
        } else if (driving.tryLock()) {
            try {
                int looks = 0;
                while (engine.hasPending() && !closing) {
                    looks = drive(looks);
                }
            } finally {
                driving.unlock();
            }
        } else {
            // Whoever drives wakes this thread when he stops, if anything is left then.
            park(true);
        }
    }

    private void park(boolean pending) {
        idle = true;
        // Whoever drove may have stopped, with nothing left, before this thread was idle: what was
        // issued since has woken nobody.
        boolean driven = driving.isLocked();
        if (engine.hasPending() == pending && (driven || !pending) && !closing) {
            LockSupport.park(this);
        }
        idle = false;
    }

    /** One look at the messages; the more in vain, the longer it sleeps. */
    private int drive(int looks) {
        if (engine.pass()) {
            return 0;
        }
        if (looks < spins) {
            Thread.onSpinWait();
            return looks + 1;
        }
        if (!engine.check()) {
            engine.sleep();
        }
        return looks;
    }

    /** Makes all threads stop driving and waits until they have; the caller wakes sleepers. */
    void close(Runnable wakeSleepers) {
        synchronized (this) {
            closing = true;
            LockSupport.unpark(thread);
        }
        wakeSleepers.run();
        driving.lock();
        driving.unlock();
    }
}
