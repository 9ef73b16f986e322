// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Decides which thread makes progress on one rank's messages; one thread at a time drives them. A
 * thread that waits for a message drives the messages itself. A background thread drives messages
 * that no thread waits for. It starts with the first message, takes over at most {@value
 * #TAKEOVER_NANOS} ns after a message was issued, and sleeps while there are no messages.
 */
final class MessageDriver {

    interface Engine {

        /** Makes progress without blocking; returns whether there was any. */
        boolean pass();

        /** Fails messages that cannot complete; returns whether anything changed. */
        boolean check();

        boolean hasPending();

        /** Sleeps until another rank has changed something, unless a pass makes progress. */
        void sleep();

        /**
         * Fails all messages, because one of the methods above threw and left them inconsistent.
         */
        void fail(Throwable cause);
    }

    private static final long TAKEOVER_NANOS = 500_000;

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

    /** Called after a new message was submitted. */
    synchronized void wake() {
        if (thread == null && !closing) {
            thread = new Thread(this::run, name);
            thread.setDaemon(true);
            thread.start();
        } else if (idle) {
            LockSupport.unpark(thread);
        }
    }

    /** Makes the background thread take over immediately. */
    synchronized void expedite() {
        LockSupport.unpark(thread);
    }

    /**
     * Drives messages until a work has ended; returns false if another thread drives them or the
     * queue is closing.
     */
    boolean driveUntil(PendingWork work) {
        if (closing || !driving.tryLock()) {
            return false;
        }
        try {
            int spun = 0;
            while (!work.isCompleted() && !closing && !Thread.currentThread().isInterrupted()) {
                spun = drive(spun);
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
                driveOrSleep();
            } catch (RuntimeException | Error e) {
                fail(e);
            }
        }
    }

    private void fail(Throwable cause) {
        try {
            engine.fail(cause);
        } catch (RuntimeException | Error e) {
            LockSupport.parkNanos(this, TAKEOVER_NANOS); // The next failure tries again.
        }
    }

    /** Drives messages if no other thread does, or sleeps. */
    private void driveOrSleep() {
        if (!engine.hasPending()) {
            park(false);
            LockSupport.parkNanos(this, TAKEOVER_NANOS);
        } else if (driving.tryLock()) {
            try {
                int spun = 0;
                while (engine.hasPending() && !closing) {
                    spun = drive(spun);
                }
            } finally {
                driving.unlock();
            }
        } else {
            // The driving thread wakes this one when it stops, if messages are left.
            park(true);
        }
    }

    private void park(boolean pending) {
        idle = true;
        // If the driving thread stopped without messages before `idle` was set, nothing wakes this
        // thread for a message submitted in between. So do not park then.
        boolean driven = driving.isLocked();
        if (engine.hasPending() == pending && (driven || !pending) && !closing) {
            LockSupport.park(this);
        }
        idle = false;
    }

    /** Makes one pass; spins a few times without progress, then sleeps. */
    private int drive(int spun) {
        if (engine.pass()) {
            return 0;
        }
        if (spun < spins) {
            Thread.onSpinWait();
            return spun + 1;
        }
        if (!engine.check()) {
            engine.sleep();
        }
        return spun;
    }

    /** Makes all threads stop driving, and waits for them. */
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
