/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.nccl;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Deque;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.internal.gpu.LongCalls;
import org.djlx.collectives.internal.gpu.Watchdog;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaException;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.nccl.NcclCommunicator;
import org.djlx.nativeops.nccl.NcclConfig;
import org.djlx.nativeops.nccl.NcclGroup;

/**
 * A communicator and its stream: operations run there one after the other, in the order of the
 * calls; also those that are done by a kernel, without NCCL.
 *
 * <p>Issuing does not wait for other ranks. Mostly the caller's own thread launches the operation.
 * Where other ranks must be waited for, a helper thread does so, and launches all that is issued
 * meanwhile; it ends when nothing waits any more. That is where the communicator must be created,
 * calls compared, or NCCL may have to set up connections: when an operation is the first of its
 * kind, root and size, in powers of two, on which NCCL's choice of an algorithm depends.
 */
final class NcclQueue implements Watchdog.Queue {

    /** Checks with the other ranks that an operation fits. */
    interface Verifier {

        /** Tells whether an operation is to be verified. */
        default boolean concerns(NcclWork work) {
            return true;
        }

        /**
         * Waits for the other ranks and compares.
         *
         * @throws CollectiveMismatchException if what they called does not fit, on all of them
         */
        void verify(NcclWork work);
    }

    /** The backend, which is told of failures, and asked for what NCCL does not know. */
    interface Listener {

        /** Something failed, and the queue with it. */
        void failed(NcclQueue queue, CollectiveException reason);

        /** What is under way has failed, and is about to be aborted. */
        void aborting(NcclQueue queue, CollectiveException reason);

        /** An operation does not fit those of other ranks; the queue goes on. */
        void refused(NcclWork work, CollectiveException reason);

        /** What is wrong with the kernels on the queue, if anything. */
        Optional<String> error(NcclQueue queue);

        /** Who has not called what the first operation waits for, as far as that is known. */
        List<Integer> missing(NcclQueue queue);

        /** Why an operation failed that a kernel has done; null if it did not. */
        CollectiveException failureOf(Operation operation);
    }

    private static final int ROOT_WORD = 4; // of a signature
    private static final long QUIET_INTERVAL_NANOS = 200_000;
    private static final long LOOK_MILLIS = 50; // whether what others are to launch has failed

    private final String name;
    private final GpuResources resources;
    private final CudaStream stream;
    private final Supplier<NcclCommunicator> connector;
    private final Verifier verifier; // null: nothing is compared
    private final Listener listener;

    private final AtomicReference<CollectiveException> broken = new AtomicReference<>();
    private volatile NcclCommunicator communicator;

    private volatile Thread helper; // changed under the lock

    // Guarded by this.
    private final Deque<List<NcclWork>> waiting = new ArrayDeque<>(); // for the helper
    private final Set<Long> connected = new HashSet<>(); // the operations that had their first
    private Thread owner; // who launches a batch on this queue, or splits it
    private long launches; // counts on when something was launched

    /**
     * Creates a queue.
     *
     * @param name for threads and messages
     * @param resources what it uses
     * @param connector creates the communicator, waiting for other ranks; runs once
     * @param verifier compares operations before they are launched, or null
     * @param listener is told of failures
     */
    NcclQueue(
            String name,
            GpuResources resources,
            Supplier<NcclCommunicator> connector,
            Verifier verifier,
            Listener listener) {
        this.name = name;
        this.resources = resources;
        this.connector = connector;
        this.verifier = verifier;
        this.listener = listener;
        stream = resources.createStream();
    }

    GpuResources resources() {
        return resources;
    }

    /** Takes a communicator that exists already, instead of creating one. */
    void adopt(NcclCommunicator nccl) {
        communicator = nccl;
    }

    /** Creates the communicator if it does not exist, waiting for the other ranks. */
    void connect() {
        if (communicator == null) {
            NcclCommunicator nccl = connector.get();
            communicator = nccl;
            if (broken.get() != null) {
                nccl.abort(); // Whoever broke the queue may not have seen it.
            }
        }
    }

    /** Launches an operation, now or with its batch, or leaves that to the helper. */
    void issue(NcclWork work) {
        checkUsable(work.operation());
        Batch batch = Batch.current();
        if (batch != null) {
            batch.add(this, work);
            return;
        }
        List<NcclWork> unit = List.of(work);
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
        // The other ranks launch theirs: from now on operations would not be matched.
        listener.failed(this, failure);
    }

    /**
     * Takes the queue for launching operations, or leaves them to the helper. All ranks must launch
     * the same operations in one group of NCCL, which runs them in an order of its own; who
     * launches them makes no difference.
     *
     * @param units the operations: each unit is to be launched as a whole, one after the other
     * @return whether the calling thread is to {@link #launch} the units and then {@link #release}
     *     the queue
     */
    synchronized boolean own(Collection<List<NcclWork>> units) {
        boolean direct = waiting.isEmpty();
        for (List<NcclWork> unit : units) {
            direct &= waitsForNobody(unit);
        }
        if (direct && helper == null && owner == null) {
            owner = Thread.currentThread();
            return true;
        }
        waiting.addAll(units);
        if (owner == null) {
            ensureHelper(); // Otherwise when the owner is done.
        }
        return false;
    }

    /** Tells whether operations can be launched without waiting for other ranks. */
    private boolean waitsForNobody(List<NcclWork> unit) {
        if (!isByNccl(unit)) {
            return true;
        }
        boolean first = connected.add(kind(unit));
        if (first || communicator == null) {
            return false;
        }
        for (NcclWork work : unit) {
            if (isToBeVerified(work)) {
                return false;
            }
        }
        return true;
    }

    private static boolean isByNccl(List<NcclWork> unit) {
        for (NcclWork work : unit) {
            if (work.call().byNccl()) {
                return true;
            }
        }
        return false;
    }

    /** Calls NCCL for operations, or launches their kernels. */
    void launch(List<NcclWork> unit) {
        for (NcclWork work : unit) {
            work.launch(communicator, stream);
        }
    }

    /** Marks the operations' ends, when NCCL has them in the stream. */
    synchronized void launched(List<NcclWork> unit) {
        launches++;
        if (broken.get() == null) {
            for (NcclWork work : unit) {
                work.launched(stream);
            }
        }
    }

    /** Gives up the queue. */
    synchronized void release() {
        owner = null;
        notifyAll();
        if (broken.get() == null && !waiting.isEmpty()) {
            ensureHelper();
        }
    }

    /**
     * Waits until all that was issued is on the stream, or the queue is broken. What an open batch
     * has is issued when it ends.
     *
     * @return a number that changes with whatever is launched
     */
    synchronized long awaitLaunched() {
        try {
            while ((helper != null || owner != null) && broken.get() == null) {
                wait(LOOK_MILLIS);
            }
        } catch (InterruptedException e) {
            throw GroupErrors.interrupted(name, e);
        }
        return launches;
    }

    /** Tells whether {@link #awaitLaunched} would not wait. */
    synchronized boolean isLaunched() {
        return helper == null && owner == null;
    }

    CudaStream stream() {
        return stream;
    }

    CollectiveException failureOf(Operation operation) {
        return listener.failureOf(operation);
    }

    /** A number for what decides which connections operations need, if launched together. */
    private static long kind(List<NcclWork> unit) {
        long kind = 0;
        for (NcclWork work : unit) {
            kind = kind * 31 + kind(work.operation());
        }
        return kind;
    }

    private static long kind(Operation operation) {
        long root = operation.signature()[ROOT_WORD] >>> 32;
        int size = Long.SIZE - Long.numberOfLeadingZeros(operation.byteSize());
        return root << 32 | operation.type().hashCode() * 64L + size & 0xffffffffL;
    }

    /** Throws if the queue is broken. */
    void checkUsable(Object call) {
        CollectiveException reason = broken.get();
        if (reason != null) {
            throw GroupErrors.broken(call, name, reason);
        }
    }

    void fail(CollectiveException reason) {
        listener.failed(this, reason);
    }

    private void ensureHelper() {
        if (helper == null) {
            helper = LongCalls.start("nccl-helper-" + name, this::help);
        }
    }

    private void help() {
        try {
            for (List<NcclWork> unit = next(); unit != null; unit = next()) {
                if (isByNccl(unit)) {
                    connect(); // All ranks do, if it is the first.
                }
                List<NcclWork> fitting = unit.stream().filter(this::isVerified).toList();
                if (fitting.size() == 1) {
                    launch(fitting);
                } else {
                    NcclGroup.run(() -> launch(fitting));
                }
                fitting.forEach(work -> work.launched(stream));
            }
        } catch (RuntimeException | Error e) {
            endHelper();
            listener.failed(this, GroupErrors.failed(name, e));
        }
    }

    /**
     * Returns what to launch, now that all before is in the stream; without any the helper ends.
     */
    private synchronized List<NcclWork> next() {
        launches++; // The unit before, if there was one.
        List<NcclWork> unit = waiting.poll();
        if (unit == null) {
            endHelper();
        }
        return unit;
    }

    private synchronized void endHelper() {
        helper = null;
        notifyAll();
    }

    private boolean isToBeVerified(NcclWork work) {
        return verifier != null && work.call().byNccl() && verifier.concerns(work);
    }

    private boolean isVerified(NcclWork work) {
        if (!isToBeVerified(work)) {
            return true;
        }
        try {
            work.beginVerification();
            verifier.verify(work);
            work.endVerification();
            return true;
        } catch (CollectiveMismatchException e) {
            listener.refused(work, e);
            return false;
        }
    }

    /** Splits the communicator, behind what was issued; all ranks do. */
    NcclCommunicator split(
            int color,
            int key,
            NcclConfig config,
            Duration timeout,
            Supplier<Optional<String>> obstacle) {
        synchronized (this) {
            awaitLaunched();
            checkUsable("a split");
            owner = Thread.currentThread();
        }
        try {
            return BoundedCall.run(
                    "splitting " + name,
                    timeout,
                    obstacle,
                    () -> {
                        // NCCL wants no operation under way, or the split may never end.
                        awaitQuiet();
                        checkUsable("a split");
                        return communicator.split(color, key, config);
                    });
        } catch (CollectiveException e) {
            listener.failed(this, e); // The abort ends a call that still waits.
            throw e;
        } finally {
            release();
        }
    }

    @Override
    public Optional<String> error() {
        Optional<String> ofKernels = listener.error(this);
        NcclCommunicator nccl = communicator;
        return ofKernels.isPresent() || nccl == null
                ? ofKernels
                : nccl.asyncError().map(text -> "NCCL reports an error: " + text);
    }

    @Override
    public List<Integer> missing() {
        return listener.missing(this);
    }

    @Override
    public String hint() {
        return "; NCCL does not tell which ranks did not arrive, NcclOptions' optVerify(true) does";
    }

    @Override
    public boolean breakWith(CollectiveException reason) {
        return broken.compareAndSet(null, reason);
    }

    /** Aborts and waits until the GPU has stopped. */
    @Override
    public void abort() {
        listener.aborting(this, broken.get());
        Thread thread = helper;
        if (thread != null) {
            thread.interrupt();
        }
        NcclCommunicator nccl = communicator;
        if (nccl != null) {
            nccl.abort();
        }
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
            return true; // The context is lost, or the stream closed: there is no work any more.
        }
    }

    /**
     * Frees the communicator and the stream, when the GPU uses them no more. With ranks in several
     * processes, NCCL waits for the others of this host to do the same.
     */
    void close() {
        boolean failed = !broken.compareAndSet(null, GroupErrors.destroyed(name));
        NcclCommunicator nccl = communicator;
        if (nccl != null) {
            if (failed) {
                nccl.abort(); // Whoever should may not have got to it.
            } else {
                nccl.close();
            }
        }
        awaitQuiet();
        stream.close();
    }
}
