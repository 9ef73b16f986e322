/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.gpu;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaException;
import org.djlx.nativeops.cuda.CudaStream;

/**
 * A stream and its {@link Connection} to other ranks. Operations run on the stream one after the
 * other, in the order of the calls: those of the connection, and kernels.
 *
 * <p>Issuing does not wait for other ranks. Mostly the caller's own thread launches the operation.
 * Where a launch must wait for other ranks, a helper thread launches it, and all operations issued
 * meanwhile; it ends when no operation is left. The helper launches
 *
 * <ul>
 *   <li>the first operation, which connects;
 *   <li>operations for which the connection may have to set up more, see {@link
 *       Connection#isReady};
 *   <li>operations to be verified.
 * </ul>
 */
public final class StreamQueue implements Watchdog.Queue {

    private static final long QUIET_INTERVAL_NANOS = 200_000;
    private static final long POLL_MILLIS = 50; // between checks that the queue is not broken

    private final String name;
    private final GpuGroup group;
    private final GpuResources resources;
    private final CudaStream stream;
    private final Connection connection;
    private final AtomicReference<CollectiveException> broken = new AtomicReference<>();
    private volatile Thread helper; // changed under the lock

    // Guarded by this.
    private final Deque<List<QueuedWork>> waiting = new ArrayDeque<>(); // for the helper
    private Thread owner; // launches a batch on this queue, or makes a call of its connection
    private long launches; // changes with every launch

    /**
     * Creates a queue with a stream of its own.
     *
     * @param name the name in threads and messages
     * @param group handles failures
     * @param connection the connection to other ranks
     */
    StreamQueue(String name, GpuGroup group, Connection connection) {
        this.name = name;
        this.group = group;
        this.connection = connection;
        resources = group.resources();
        stream = resources.createStream();
    }

    GpuResources resources() {
        return resources;
    }

    Connection connection() {
        return connection;
    }

    /** Connects with the other ranks, and waits for them, unless this has happened before. */
    public void connect() {
        if (connection.connect() && broken.get() != null) {
            connection.abort(); // The abort may have come before there was a connection.
        }
    }

    /** Launches an operation, now or with its batch, or leaves that to the helper. */
    void issue(QueuedWork work) {
        checkUsable(work.operation());
        Batch batch = Batch.current();
        if (batch != null) {
            batch.add(this, work);
            return;
        }
        List<QueuedWork> unit = List.of(work);
        CollectiveException failure;
        synchronized (this) {
            if (!own(List.of(unit))) {
                return;
            }
            try {
                launch(unit);
                launched(unit);
                return;
            } catch (RuntimeException | Error e) {
                failure = GroupErrors.failed(name, e);
            } finally {
                release();
            }
        }
        // The other ranks launch this operation: later ones would not match theirs.
        group.fail(this, failure);
    }

    /**
     * Takes the queue to launch operations on it, or leaves them to the helper. All ranks must
     * launch the same operations as a unit because NCCL runs the operations of a unit in its own
     * order. It does not matter which thread launches them.
     *
     * @param units the operations; each unit is launched as a whole, one unit after the other
     * @return true if the calling thread must {@link #launch} the units and then {@link #release}
     *     the queue
     */
    synchronized boolean own(Collection<List<QueuedWork>> units) {
        boolean direct = waiting.isEmpty();
        for (List<QueuedWork> unit : units) {
            direct &= isReady(unit);
        }
        if (direct && helper == null && owner == null) {
            owner = Thread.currentThread();
            return true;
        }
        waiting.addAll(units);
        if (owner == null) {
            ensureHelper(); // With an owner, release() does so.
        }
        return false;
    }

    /** Tells whether operations can be launched without waiting for other ranks. */
    private boolean isReady(List<QueuedWork> unit) {
        if (!isConnected(unit)) {
            return true;
        }
        if (!connection.isReady(unit)) {
            return false;
        }
        for (QueuedWork work : unit) {
            if (isToBeVerified(work)) {
                return false;
            }
        }
        return true;
    }

    private static boolean isConnected(List<QueuedWork> unit) {
        for (QueuedWork work : unit) {
            if (work.call().isConnected()) {
                return true;
            }
        }
        return false;
    }

    /** Enqueues the operations of a unit. */
    void launch(List<QueuedWork> unit) {
        for (QueuedWork work : unit) {
            work.launch(stream);
        }
    }

    /** Records the ends of a unit's operations, once they are on the stream. */
    synchronized void launched(List<QueuedWork> unit) {
        launches++;
        if (broken.get() == null) {
            for (QueuedWork work : unit) {
                work.launched(stream);
            }
        }
    }

    /** Releases the queue; the helper launches the operations that were issued meanwhile. */
    synchronized void release() {
        owner = null;
        notifyAll();
        if (broken.get() == null && !waiting.isEmpty()) {
            ensureHelper();
        }
    }

    /**
     * Waits until all issued operations are on the stream, or the queue is broken. The helper that
     * launches them may itself wait for other ranks. The operations of a batch are issued when it
     * ends.
     *
     * @return a number that changes with every launch
     */
    public synchronized long awaitLaunched() {
        try {
            while ((helper != null || owner != null) && broken.get() == null) {
                wait(POLL_MILLIS);
            }
        } catch (InterruptedException e) {
            throw GroupErrors.interrupted(name, e);
        }
        return launches;
    }

    /**
     * Tells whether all issued operations are on the stream.
     *
     * @return whether {@link #awaitLaunched} would return at once
     */
    public synchronized boolean isLaunched() {
        return helper == null && owner == null;
    }

    /**
     * Returns the stream.
     *
     * @return the stream, not to be closed
     */
    public CudaStream stream() {
        return stream;
    }

    CollectiveException failureOf(Operation operation) {
        return group.failureOf(operation);
    }

    /** Throws if the queue is broken. */
    void checkUsable(Object call) {
        CollectiveException reason = broken.get();
        if (reason != null) {
            throw GroupErrors.broken(call, name, reason);
        }
    }

    void fail(CollectiveException reason) {
        group.fail(this, reason);
    }

    private void ensureHelper() {
        if (helper == null) {
            helper = LongCalls.start("nccl-helper-" + name, this::help);
        }
    }

    private void help() {
        try {
            for (List<QueuedWork> unit = next(); unit != null; unit = next()) {
                if (isConnected(unit)) {
                    connect(); // All ranks do so for the first such unit.
                }
                List<QueuedWork> verified = unit.stream().filter(this::isVerified).toList();
                if (verified.size() == 1) {
                    launch(verified);
                } else {
                    connection.launchTogether(() -> launch(verified));
                }
                verified.forEach(work -> work.launched(stream));
            }
        } catch (RuntimeException | Error e) {
            endHelper();
            group.fail(this, GroupErrors.failed(name, e));
        }
    }

    /** Returns the next unit to launch; null if there is none, which ends the helper. */
    private synchronized List<QueuedWork> next() {
        launches++; // for the previous unit
        List<QueuedWork> unit = waiting.poll();
        if (unit == null) {
            endHelper();
        }
        return unit;
    }

    private synchronized void endHelper() {
        helper = null;
        notifyAll();
    }

    private boolean isToBeVerified(QueuedWork work) {
        return work.call().isConnected() && connection.isToBeVerified(work);
    }

    private boolean isVerified(QueuedWork work) {
        if (!isToBeVerified(work)) {
            return true;
        }
        try {
            work.beginVerification();
            connection.verify(work);
            work.endVerification();
            return true;
        } catch (CollectiveMismatchException e) {
            group.refuse(work, e);
            return false;
        }
    }

    /**
     * Makes a call of the connection that needs an idle stream, after all operations issued before.
     * All ranks make the same call. Operations issued meanwhile wait.
     *
     * @param <T> the type of the result
     * @param call the call, such as "a split"
     * @param name the call in progress, such as "splitting"
     * @param timeout how long to wait for the other ranks
     * @param obstacle returns why the other ranks will not come, if known
     * @param body makes the call
     * @return its result
     * @throws CollectiveException if the call fails, which breaks the group
     */
    public <T> T callAlone(
            String call,
            String name,
            Duration timeout,
            Supplier<Optional<String>> obstacle,
            Supplier<T> body) {
        synchronized (this) {
            awaitLaunched();
            checkUsable(call);
            owner = Thread.currentThread();
        }
        try {
            return BoundedCall.run(
                    name + " " + this.name,
                    timeout,
                    obstacle,
                    () -> {
                        // A split of NCCL may never end while operations are under way.
                        awaitQuiet();
                        checkUsable(call);
                        return body.get();
                    });
        } catch (CollectiveException e) {
            group.fail(this, e); // The abort ends a call that still waits.
            throw e;
        } finally {
            release();
        }
    }

    @Override
    public Optional<String> error() {
        Optional<String> ofKernels = group.kernelError(this);
        return ofKernels.isPresent() ? ofKernels : connection.error();
    }

    @Override
    public List<Integer> missing() {
        return group.missing(this);
    }

    @Override
    public String hint() {
        return connection.hint();
    }

    @Override
    public boolean breakWith(CollectiveException reason) {
        return broken.compareAndSet(null, reason);
    }

    /** Aborts the connection, and waits until the stream is idle. */
    @Override
    public void abort() {
        connection.aborting(broken.get());
        Thread thread = helper;
        if (thread != null) {
            thread.interrupt();
        }
        connection.abort();
        awaitQuiet();
    }

    private void awaitQuiet() {
        while (!isQuiet()) {
            LockSupport.parkNanos(QUIET_INTERVAL_NANOS);
        }
    }

    private boolean isQuiet() {
        try {
            return stream.query();
        } catch (CudaException | IllegalStateException e) {
            return true; // The context is lost or the stream closed: nothing runs any more.
        }
    }

    /** Closes the connection, and the stream once it is idle. */
    void close() {
        boolean failed = !broken.compareAndSet(null, GroupErrors.destroyed(name));
        if (failed) {
            connection.abort(); // The thread that broke the queue may not have done so yet.
        } else {
            connection.close();
        }
        awaitQuiet();
        stream.close();
    }
}
