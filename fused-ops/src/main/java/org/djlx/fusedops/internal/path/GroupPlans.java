// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicInteger;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.cost.Workload;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.nativeops.cuda.CurrentStreams;

/**
 * The state of fused operators for a group on one rank: the plans used last, and the kernels and
 * buffers that they share. Closed with the group.
 *
 * <ul>
 *   <li>Nothing here refers to the group. Otherwise a group that its users drop could not be
 *       garbage-collected. A group may also be called through views with other timeouts.
 *   <li>A plan is looked up and enqueued under this object's lock.
 * </ul>
 */
public final class GroupPlans implements AutoCloseable {

    /**
     * The number of plans that are kept. A layer of a model needs a few for each number of rows.
     */
    public static final int MAX_PLANS = 512;

    private static final int MAX_AGREED = 4096; // keys, for example one per length of a prompt

    private final Device device;
    private final int worldSize;
    private final NDManager manager; // of temporary arrays; each operation closes its own
    private final Map<PlanKey, FusedPlan> plans = new LinkedHashMap<>(16, 0.75f, true);
    private final Map<PathMeasurement.Key, PathMeasurement.Measured> measured = new HashMap<>();
    private final Map<PathMeasurement.Key, Workload> agreed = new HashMap<>();
    private final AtomicInteger measuring = new AtomicInteger(); // open scopes
    private Compute compute; // null before the first use
    private Pipeline pipeline; // null before the first use

    private GroupPlans(Device device, int worldSize) {
        this.device = device;
        this.worldSize = worldSize;
        this.manager = NDManager.newBaseManager(device, "PyTorch");
    }

    public static GroupPlans of(ProcessGroup group) {
        Device device = group.device();
        return group.attachment(GroupPlans.class, () -> new GroupPlans(device, group.worldSize()));
    }

    /**
     * Returns the plan of a call; null if there is none yet. The caller holds this object's lock.
     */
    @SuppressWarnings("unchecked") // A key belongs to one operator.
    public <P extends FusedPlan> P find(PlanKey key) {
        return (P) plans.get(key);
    }

    /**
     * Keeps a new plan. Beyond {@link #MAX_PLANS}, closes the least recently used plan. The caller
     * holds this object's lock.
     */
    public <P extends FusedPlan> P keep(PlanKey key, P plan) {
        plans.put(key, plan);
        if (plans.size() > MAX_PLANS) {
            PlanKey oldest = plans.keySet().iterator().next();
            plans.remove(oldest).close();
        }
        return plan;
    }

    /** Measures paths, as {@link FusedOps#measurePaths}, until the returned action runs. */
    public Runnable measurePaths() {
        measuring.incrementAndGet();
        return measuring::decrementAndGet;
    }

    public boolean isMeasuring() {
        return measuring.get() > 0;
    }

    /** Returns the measurements of an operator; empty if it was not measured. */
    synchronized Optional<PathMeasurement.Measured> measured(PathMeasurement.Key key) {
        return Optional.ofNullable(measured.get(key));
    }

    /** Returns the sizes that the ranks have agreed on for a key; empty if they have not. */
    synchronized Optional<Workload> agreed(PathMeasurement.Key key) {
        return Optional.ofNullable(agreed.get(key));
    }

    /**
     * Returns whether the ranks exchange the sizes of new keys, because fewer than the maximum are
     * kept. All ranks return the same: they keep sizes in the same order and forget none.
     */
    synchronized boolean agreesOnMore() {
        return agreed.size() < MAX_AGREED;
    }

    /** Keeps the sizes that the ranks have agreed on; no-op beyond the maximum. */
    synchronized void agree(PathMeasurement.Key key, Workload sizes) {
        if (agreesOnMore()) {
            agreed.put(key, sizes);
        }
    }

    /** Keeps measurements, and closes all plans, because new plans may use other paths. */
    public synchronized void keep(PathMeasurement.Key key, PathMeasurement.Measured paths) {
        measured.put(key, paths);
        closePlans();
    }

    private void closePlans() {
        plans.values().forEach(FusedPlan::close);
        plans.clear();
    }

    /**
     * Breaks the group if this rank's call failed for a local reason, such as a lack of memory: the
     * other ranks have made the call, and would wait for this rank. Must not be called under the
     * lock.
     */
    public static void failed(ProcessGroup group, Throwable failure) {
        if (!(failure instanceof CollectiveException)) {
            group.abort(failure);
        }
    }

    /** Waits for an operation: on a GPU the current stream waits, otherwise the calling thread. */
    public static void complete(ProcessGroup group, Work work) {
        if (group.device().isGpu()) {
            work.blockCurrentStream();
        } else {
            work.await();
        }
    }

    /** Returns a scope for the temporary arrays of an operation. */
    public OperationScope scope() {
        return new OperationScope(device.isGpu(), manager);
    }

    public synchronized Compute compute() {
        if (compute == null) {
            compute = new Compute(device, worldSize, manager);
        }
        return compute;
    }

    /** As {@link Compute#hold}; null if plans use no GPU. */
    public synchronized CurrentStreams.Scope hold() {
        return compute == null ? null : compute.hold();
    }

    public synchronized Pipeline pipeline(ProcessGroup group) {
        if (pipeline == null) {
            pipeline = new Pipeline(group);
        }
        return pipeline;
    }

    @Override
    public synchronized void close() {
        closePlans();
        if (compute != null) {
            compute.close();
            compute = null;
        }
        manager.close();
    }
}
