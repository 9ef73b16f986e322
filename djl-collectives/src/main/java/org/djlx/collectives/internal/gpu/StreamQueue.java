// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.cuda.CudaException;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.host.LongCalls;

/**
 * A CUDA stream and its {@link Connection} to other ranks. Operations of the connection and other
 * kernels run on the stream one after the other, in the order of the calls. A {@link SideStream}
 * runs other operations of the connection; the queue launches all of them in the order of the
 * calls.
 *
 * <p>Issuing an operation never waits for other ranks. Usually the calling thread launches the
 * operation. If a launch must wait for other ranks, a helper thread launches this operation and all
 * that are issued while the helper runs. The helper ends when no operation is left. These launches
 * need the helper:
 *
 * <ul>
 *   <li>the first operation, which connects the ranks;
 *   <li>operations for which the connection needs more setup, see {@link Connection#isReady};
 *   <li>operations to be verified.
 * </ul>
 */
public final class StreamQueue implements Lane {

    private static final long QUIET_INTERVAL_NANOS = 200_000;
    private static final long POLL_MILLIS = 50; // between checks that the queue is not broken

    private final String name;
    private final GpuGroup group;
    private final GpuResources resources;
    private final CudaStream stream;
    private final Connection connection;
    private final List<SideStream> sides = new CopyOnWriteArrayList<>();
    private final AtomicReference<CollectiveException> broken = new AtomicReference<>();
    private volatile Thread helper; // changed under the lock

    // Guarded by this.
    private final Deque<List<QueuedWork>> waiting = new ArrayDeque<>(); // for the helper
    private Thread owner; // the thread that launches on this queue or is in callAlone(), or null
    private long launches; // changes with every launch

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

    /**
     * Adds a stream for operations that need not wait for the kernels of this queue's own stream.
     *
     * @param hint advice, appended to the error message of an operation that times out
     */
    public Lane addSide(String hint) {
        SideStream side = new SideStream(this, resources.createStream(), hint);
        sides.add(side);
        return side;
    }

    List<SideStream> sides() {
        return sides;
    }

    /** Connects to the other ranks and waits for them; no-op if connected. */
    public void connect() {
        if (connection.connect() && broken.get() != null) {
            connection.abort(); // abort() was a no-op if it ran before connect().
        }
    }

    /**
     * Issues an operation: launches it, adds it to the current batch, or queues it for the helper.
     */
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
        // The other ranks have launched this operation, so this rank's later operations would not
        // match theirs.
        group.fail(this, failure);
    }

    /**
     * If the operations can be launched now, makes the calling thread the owner of the queue, to
     * launch them. Otherwise queues them for the helper. NCCL chooses the order of operations
     * within a unit, so all ranks must form the same units. Any thread may launch them.
     *
     * @param units the operations; each unit is launched as a whole, one unit after the other
     * @return true if the calling thread is the owner: it must {@link #launch} the units and then
     *     {@link #release} the queue
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
            ensureHelper(); // If there is an owner, release() starts the helper.
        }
        return false;
    }

    /** Returns whether operations can be launched without waiting for other ranks. */
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

    void launch(List<QueuedWork> unit) {
        for (QueuedWork work : unit) {
            work.launch();
        }
    }

    /** Records the end of each operation of a unit that has been enqueued. */
    synchronized void launched(List<QueuedWork> unit) {
        launches++;
        if (broken.get() == null) {
            for (QueuedWork work : unit) {
                work.launched();
            }
        }
    }

    /** Ends the ownership; the helper launches operations that were queued during it. */
    synchronized void release() {
        owner = null;
        notifyAll();
        if (broken.get() == null && !waiting.isEmpty()) {
            ensureHelper();
        }
    }

    /**
     * Waits until all issued operations are enqueued on the stream, or the queue is broken. This
     * may wait for other ranks, because the helper may wait for them. The operations of a batch
     * count as issued when the batch ends.
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

    /** Enqueues further work on the stream, after all issued operations: {@link #awaitLaunched}. */
    public synchronized void enqueue(Consumer<CudaStream> work) {
        awaitLaunched();
        checkUsable("work on the group's stream");
        launches++;
        work.accept(stream);
    }

    /**
     * Returns whether all issued operations are enqueued on the stream, so that {@link
     * #awaitLaunched} returns immediately.
     */
    public synchronized boolean isLaunched() {
        return helper == null && owner == null;
    }

    @Override
    public StreamQueue launcher() {
        return this;
    }

    @Override
    public CudaStream stream() {
        return stream;
    }

    CollectiveException failureOf(Operation operation) {
        return group.failureOf(operation);
    }

    /** Returns why the queue is broken or destroyed; null if it is usable. */
    CollectiveException failure() {
        return broken.get();
    }

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
                    connect(); // Every rank connects at the first such unit.
                }
                List<QueuedWork> verified = verified(unit);
                if (verified.size() == 1) {
                    launch(verified);
                } else {
                    connection.launchTogether(() -> launch(verified));
                }
                verified.forEach(QueuedWork::launched);
            }
        } catch (RuntimeException | Error e) {
            endHelper();
            group.fail(this, GroupErrors.failed(name, e));
        }
    }

    /** Returns the next unit to launch; if there is none, ends the helper and returns null. */
    private synchronized List<QueuedWork> next() {
        launches++; // counts the previous unit
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

    /**
     * Returns the operations that match the other ranks' operations; refuses the others. Publishes
     * all before it waits, because messages of a unit may have another order on the peer.
     */
    private List<QueuedWork> verified(List<QueuedWork> unit) {
        Map<QueuedWork, Runnable> comparisons = new HashMap<>();
        for (QueuedWork work : unit) {
            if (isToBeVerified(work)) {
                work.beginVerification();
                comparisons.put(work, connection.startVerification(work));
            }
        }
        return unit.stream()
                .filter(work -> !comparisons.containsKey(work) || matches(work, comparisons))
                .toList();
    }

    private boolean matches(QueuedWork work, Map<QueuedWork, Runnable> comparisons) {
        try {
            comparisons.get(work).run();
            work.endVerification();
            return true;
        } catch (CollectiveMismatchException e) {
            group.refuse(work, e);
            return false;
        }
    }

    /**
     * Runs a call of the connection that needs an idle stream, such as a split. Waits for all
     * operations issued before; operations issued during the call wait for it. All ranks must make
     * the same call.
     *
     * @param call the call, such as "a split"
     * @param name the call in progress, such as "splitting"
     * @param obstacle returns why waiting for the other ranks cannot succeed, or empty
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
                        // An NCCL split may hang while operations run on the stream.
                        awaitQuiet();
                        checkUsable(call);
                        return body.get();
                    });
        } catch (CollectiveException e) {
            group.fail(this, e); // Aborts the connection, which ends a call that still waits.
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

    /** Aborts the connection, and waits until its streams are idle. */
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
        return isQuiet(stream) && sides.stream().allMatch(side -> isQuiet(side.stream()));
    }

    private static boolean isQuiet(CudaStream stream) {
        try {
            return stream.query();
        } catch (CudaException | IllegalStateException e) {
            return true; // The context is lost or the stream is closed: nothing runs.
        }
    }

    /** Closes the connection, and its streams once they are idle. */
    void close() {
        boolean failed = !broken.compareAndSet(null, GroupErrors.destroyed(name));
        if (failed) {
            connection.abort(); // The thread that broke the queue may not have aborted it yet.
        } else {
            connection.close();
        }
        awaitQuiet();
        stream.close();
        sides.forEach(side -> side.stream().close());
    }
}
