/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.function.Function;
import java.util.function.Supplier;
import org.djlx.collectives.ProcessGroup;
import org.djlx.fusedops.internal.Compute;
import org.djlx.fusedops.internal.Schedule;

/**
 * What fused operators keep for a group on one rank: the plans used last, and what they compute
 * with. Closed with the group, to which nothing here refers: it could not be freed when it is
 * forgotten, and may be called through views that have other timeouts. A plan is looked up and
 * enqueued under this object's lock.
 */
final class GroupPlans implements AutoCloseable {

    /** How many plans are kept; a layer of a model needs a few. */
    static final int MAX_PLANS = 128;

    private final Device device;
    private final int worldSize;
    private final NDManager manager; // of what operations make; each closes its own arrays
    private final Map<PlanKey, FusedPlan> plans = new LinkedHashMap<>(16, 0.75f, true);
    private Compute compute; // once it is needed
    private Schedule schedule; // once it is needed

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
     * Returns the plan of a call; to be called under this object's lock. Whether the call is
     * recorded into a graph is asked only where that matters, as it takes the host time.
     *
     * @param key the call, for whether it is recorded
     * @param type the plan's class
     * @param maker makes it, for whether it is recorded; what it throws is passed on, and nothing
     *     kept
     */
    <P extends FusedPlan> P plan(
            Function<Boolean, PlanKey> key, Class<P> type, Function<Boolean, P> maker) {
        P plan = plan(key.apply(false), type, () -> maker.apply(false));
        return plan.isOtherwiseRecorded() && compute().isRecorded()
                ? plan(key.apply(true), type, () -> maker.apply(true))
                : plan;
    }

    private <P extends FusedPlan> P plan(PlanKey key, Class<P> type, Supplier<P> maker) {
        FusedPlan plan = plans.get(key);
        if (plan == null) {
            plan = maker.get();
            plans.put(key, plan);
            if (plans.size() > MAX_PLANS) {
                PlanKey oldest = plans.keySet().iterator().next();
                plans.remove(oldest).close();
            }
        }
        return type.cast(plan);
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

    synchronized Schedule schedule(ProcessGroup group) {
        if (schedule == null) {
            schedule = new Schedule(group);
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
