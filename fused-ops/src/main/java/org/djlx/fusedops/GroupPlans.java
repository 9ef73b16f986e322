/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import java.util.LinkedHashMap;
import java.util.Map;
import org.djlx.collectives.ProcessGroup;
import org.djlx.fusedops.internal.Compute;
import org.djlx.fusedops.internal.Pipeline;

/**
 * What fused operators keep for a group on one rank: the plans used last, and what they compute
 * with. Closed with the group, to which nothing here refers: it could not be freed when it is
 * forgotten, and may be called through views that have other timeouts. A plan is looked up and
 * enqueued under this object's lock.
 */
final class GroupPlans implements AutoCloseable {

    /** How many plans are kept; a layer of a model needs a few for each number of rows. */
    static final int MAX_PLANS = 512;

    private final Device device;
    private final int worldSize;
    private final NDManager manager; // of what operations make; each closes its own arrays
    private final Map<PlanKey, FusedPlan> plans = new LinkedHashMap<>(16, 0.75f, true);
    private Compute compute; // once it is needed
    private Pipeline schedule; // once it is needed

    private GroupPlans(Device device, int worldSize) {
        this.device = device;
        this.worldSize = worldSize;
        this.manager = NDManager.newBaseManager(device, "PyTorch");
    }

    static GroupPlans of(ProcessGroup group) {
        Device device = group.device();
        return group.attachment(GroupPlans.class, () -> new GroupPlans(device, group.worldSize()));
    }

    /**
     * Returns the plan of a call; to be called under this object's lock.
     *
     * @param key the call
     * @param type the plan's class
     * @return the plan; null if there is none yet
     */
    <P extends FusedPlan> P find(PlanKey key, Class<P> type) {
        return type.cast(plans.get(key));
    }

    /** Keeps a plan that was not found, instead of the one that was used the longest ago. */
    <P extends FusedPlan> P keep(PlanKey key, P plan) {
        plans.put(key, plan);
        if (plans.size() > MAX_PLANS) {
            PlanKey oldest = plans.keySet().iterator().next();
            plans.remove(oldest).close();
        }
        return plan;
    }

    /**
     * Tells whether a call takes another plan than this one, as it is recorded into a graph; asked
     * only where that matters, as it takes the host time.
     */
    boolean isOther(FusedPlan plan) {
        return plan.isOtherwiseRecorded() && compute().isRecorded();
    }

    /** Returns what an operation needs until it has ended. */
    OperationScope scope() {
        return new OperationScope(device.isGpu(), manager);
    }

    synchronized Compute compute() {
        if (compute == null) {
            compute = new Compute(device, worldSize, manager);
        }
        return compute;
    }

    synchronized Pipeline schedule(ProcessGroup group) {
        if (schedule == null) {
            schedule = new Pipeline(group);
        }
        return schedule;
    }

    @Override
    public synchronized void close() {
        plans.values().forEach(FusedPlan::close);
        plans.clear();
        if (compute != null) {
            compute.close();
            compute = null;
        }
        manager.close();
    }
}
