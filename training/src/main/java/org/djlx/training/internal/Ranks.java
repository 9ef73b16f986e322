// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.nn.Block;
import ai.djl.training.optimizer.Optimizer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.ToDoubleFunction;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveMismatchException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.nativeops.host.LongCalls;
import org.djlx.nativeops.torch.ScalarType;

/**
 * The ranks of a trainer in this JVM, with their replicas, threads and process groups: all ranks of
 * the job, or one of them. If a rank fails, the operations of all ranks are aborted.
 */
public abstract class Ranks implements AutoCloseable {

    private static final Duration ABORT_PATIENCE = Duration.ofSeconds(30);

    private final ScalarType computeType; // null for that of the input
    protected final List<ProcessGroup> opened = new ArrayList<>(); // the trainer's own groups
    private final List<Replica> replicas = new ArrayList<>();
    private final RankWorkers workers;
    private volatile Throwable failure; // the failure that broke the ranks' group, or null

    /**
     * Starts the ranks' threads.
     *
     * @param computeType the type of matrix products; null for that of their input
     */
    protected Ranks(int count, ScalarType computeType) {
        this.computeType = computeType;
        workers = new RankWorkers(count, this::abort);
    }

    public abstract void open(
            NDManager manager, Block block, Optimizer optimizer, Device[] devices);

    protected final void add(Device device, ProcessGroup group, NDManager parent) {
        replicas.add(new Replica(replicas.size(), device, group, parent, computeType));
    }

    /** Returns the group of processes; null if all ranks of the job are in this JVM. */
    public abstract ProcessGroup processes();

    public abstract ReduceOp gradientOp();

    /** Returns whether the ranks' groups are the trainer's own: no other trainer uses them. */
    public final boolean openedGroups() {
        return !opened.isEmpty();
    }

    /** Broadcasts arrays from rank 0. No-op if all ranks have copied them from one block. */
    public abstract void receive(List<NDArray> arrays);

    /** Replaces layers of batch normalisation by {@link SyncBatchNorm}. */
    public abstract Block synchronizeStatistics(Block block);

    /** Describes devices, backend and gradient reduction, for the log. */
    public abstract String description();

    public final List<Replica> replicas() {
        return replicas;
    }

    public final Replica get(int rank) {
        return replicas.get(rank);
    }

    public final Replica first() {
        return replicas.get(0);
    }

    public final List<Replica> others() {
        return replicas.subList(1, replicas.size());
    }

    /** Returns the first rank's handle on the group of all ranks; null if there is one rank. */
    public final ProcessGroup group() {
        return first().group();
    }

    public final int worldSize() {
        return group() == null ? 1 : group().worldSize();
    }

    public final void each(Consumer<Replica> body) {
        run(replicas.size(), body);
    }

    public final void run(int count, Consumer<Replica> body) {
        try {
            workers.run(count, false, rank -> body.accept(get(rank)));
        } catch (CollectiveMismatchException e) {
            failure = e;
            throw new CollectiveException(
                    "the ranks called different operations: a rank may have closed its trainer"
                        + " while other ranks train on (after fewer batches?), or may train another"
                        + " model. For uneven numbers of batches see optJoin: "
                            + e.getMessage(),
                    e);
        } catch (RuntimeException | Error e) {
            failure = failure == null ? e : failure;
            throw e;
        }
    }

    /** Computes a value on the first {@code count} ranks; returns that of the first rank. */
    public final double valueOf(int count, ToDoubleFunction<Replica> body) {
        double[] values = new double[count];
        run(count, replica -> values[replica.index()] = body.applyAsDouble(replica));
        return values[0];
    }

    public RankWorkers workers() {
        return workers;
    }

    /** Destroys the trainer's own groups, so that no rank waits for the failed rank. */
    private void abort(Throwable cause) {
        failure = failure == null ? cause : failure;
        // In parallel: destroy() waits for the rank's operations, and on GPUs these wait for peers.
        List<Thread> ends =
                opened.stream()
                        .map(group -> LongCalls.start("trainer-abort", group::destroy))
                        .toList();
        LongCalls.join(ends, ABORT_PATIENCE);
    }

    public final boolean hasFailed() {
        return failure != null;
    }

    public final void requireWorking(String call) {
        if (failure != null) {
            throw new IllegalStateException(
                    ("%s: a rank of this trainer has failed, so parameters may differ between"
                                    + " ranks; create a new trainer for the model. The failure: %s")
                            .formatted(call, failure),
                    failure);
        }
    }

    @Override
    public final void close() {
        opened.forEach(ProcessGroup::destroy);
        replicas.forEach(Replica::close);
        workers.close();
    }
}
