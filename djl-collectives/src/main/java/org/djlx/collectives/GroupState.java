/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import org.djlx.collectives.internal.gpu.Disposal;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.collectives.trace.GroupTrace;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What all handles on a group share on one rank: its backend, its counters, its sub-groups. */
final class GroupState {

    private static final Logger logger = LoggerFactory.getLogger(GroupState.class);

    private static final int MAX_TOLD = 1000;

    // The groups of which it was said that they were not destroyed. Bounded, as nobody else knows
    // when all ranks of one are gone.
    private static final Set<String> TOLD =
            Collections.newSetFromMap(
                    new LinkedHashMap<>() {
                        private static final long serialVersionUID = 1L;

                        @Override
                        protected boolean removeEldestEntry(Map.Entry<String, Boolean> eldest) {
                            return size() > MAX_TOLD;
                        }
                    });

    private static final int ABANDONED_ATTEMPTS = 60;
    private static final int ABANDONED_PAUSE_MILLIS = 1000;

    private final GroupState parent; // null if this is not a sub-group
    private final GroupContext context; // null if this rank is not a member
    private final Backend backend;
    private final Runnable onDestroy;
    private final String name;
    private final int rank;
    private final int worldSize;
    private final List<Integer> ranks; // in the group that was initialised
    private final List<Integer> parentRanks; // in the group of which this one was made
    private final GroupTrace trace; // null if this rank is not a member
    private final String unusable; // why, if it never was usable
    private final Object issueLock = new Object();

    // Guarded by issueLock.
    private final List<GroupState> subGroups = new ArrayList<>();
    private final Set<String> givenNames = new HashSet<>();
    private final Map<Class<?>, AutoCloseable> attachments = new HashMap<>(); // guarded by itself
    private long sequence;
    private long messages;
    private int subGroupCount;
    private int monitoredBarriers;
    private volatile boolean destroyed;

    @SuppressWarnings("unused") // It is there to be referred to.
    private volatile Lifeline kept;

    GroupState(
            GroupState parent,
            GroupContext context,
            Backend backend,
            String job,
            List<Integer> ranks,
            Runnable onDestroy) {
        this.parent = parent;
        this.context = context;
        this.backend = backend;
        this.onDestroy = onDestroy;
        this.name = context.name();
        this.rank = context.rank();
        this.worldSize = context.worldSize();
        this.ranks = List.copyOf(ranks);
        this.parentRanks = parent == null ? this.ranks : positions(ranks, parent.ranks);
        this.trace = GroupTrace.open(context, backend.name(), job);
        this.unusable = null;
    }

    /** Creates the state of a group that this rank is not in. */
    GroupState(String name, List<Integer> ranks, GroupState whole, String member) {
        this.parent = null;
        this.context = null;
        this.backend = whole.backend;
        this.onDestroy = () -> {};
        this.name = name;
        this.rank = -1;
        this.worldSize = ranks.size();
        this.ranks = List.copyOf(ranks);
        this.parentRanks = positions(ranks, whole.ranks);
        this.trace = null;
        this.unusable =
                member + " is not a member of the group '" + name + "': ask isMember() before";
    }

    private static List<Integer> positions(List<Integer> ranks, List<Integer> whole) {
        return ranks.stream().map(whole::indexOf).toList();
    }

    GroupContext context() {
        return context;
    }

    Backend backend() {
        return backend;
    }

    String name() {
        return name;
    }

    int rank() {
        return rank;
    }

    int worldSize() {
        return worldSize;
    }

    List<Integer> ranks() {
        return ranks;
    }

    List<Integer> parentRanks() {
        return parentRanks;
    }

    GroupTrace trace() {
        if (trace == null) {
            throw new IllegalStateException(unusable);
        }
        return trace;
    }

    Object issueLock() {
        return issueLock;
    }

    void checkUsable() {
        if (unusable != null) {
            throw new IllegalStateException(unusable);
        }
        if (destroyed) {
            throw GroupErrors.usedAfterDestroy(name);
        }
    }

    /** Numbers an operation; the number is taken by {@link #issued}. */
    Operation nextOperation(OpType type, Duration timeout, Agreed agreed, int tag) {
        Operation operation =
                type.isPointToPoint()
                        ? new Operation(type, messages + 1, name, timeout, agreed, tag)
                        : new Operation(type, sequence + 1, name, timeout, agreed);
        return operation.warningAfter(context.options().warnAfter());
    }

    void issued(Operation operation) {
        if (operation.type().isPointToPoint()) {
            messages = operation.sequence();
        } else {
            sequence = operation.sequence();
        }
    }

    /**
     * Returns a number that is the same on all ranks, as all create sub-groups in one order.
     *
     * @param givenName the name that the sub-group is to have within this group, or null
     * @throws IllegalArgumentException if a sub-group has been given that name, on all ranks alike:
     *     also if it was destroyed since, which only its members know
     */
    int nextSubGroup(String givenName) {
        synchronized (issueLock) {
            checkUsable();
            if (givenName != null && !givenNames.add(givenName)) {
                throw new IllegalArgumentException(
                        String.format(
                                "newGroup: the group '%s' has had a group '%s' already; choose"
                                        + " another name or leave it out: a name can be given once,"
                                        + " even if the group that has it was destroyed",
                                name, givenName));
            }
            return subGroupCount++;
        }
    }

    int nextMonitoredBarrier() {
        synchronized (issueLock) {
            checkUsable();
            return monitoredBarriers++;
        }
    }

    void addSubGroup(GroupState group) {
        synchronized (issueLock) {
            if (!destroyed) {
                subGroups.add(group);
                return;
            }
        }
        group.destroy();
        checkUsable();
    }

    private void removeSubGroup(GroupState group) {
        synchronized (issueLock) {
            subGroups.remove(group);
        }
    }

    AutoCloseable attachment(Class<?> type, Supplier<? extends AutoCloseable> maker) {
        synchronized (attachments) {
            checkUsable();
            return attachments.computeIfAbsent(type, absent -> maker.get());
        }
    }

    /** Frees what libraries have kept, when nothing of the group runs any more. */
    private void closeAttachments() {
        List<AutoCloseable> kept;
        synchronized (attachments) {
            kept = List.copyOf(attachments.values());
            attachments.clear();
        }
        if (kept.isEmpty()) {
            return;
        }
        Disposal.run(
                "what is attached to group '" + name + "'",
                () -> {
                    for (AutoCloseable attachment : kept) {
                        try {
                            attachment.close();
                        } catch (Exception e) {
                            logger.warn("{} of group '{}' cannot be freed", attachment, name, e);
                        }
                    }
                });
    }

    /** Keeps the group from being freed as a forgotten one. */
    void keep(Lifeline lifeline) {
        kept = lifeline;
        if (destroyed) {
            kept = null;
        }
    }

    /**
     * Destroys the group, which nobody has done and nobody can use any more. Where there is no
     * memory even for that, nobody else would try again.
     */
    void abandoned() {
        for (int attempt = 1; attempt <= ABANDONED_ATTEMPTS; attempt++) {
            try {
                if (destroy() && isNews(trace.job() + "/" + name)) {
                    logger.warn(
                            "group '{}' of backend '{}' was forgotten without destroy() and has"
                                    + " been freed now, here on rank {}; until then it held threads"
                                    + " and memory",
                            name,
                            backend.name(),
                            rank);
                }
                return;
            } catch (OutOfMemoryError e) {
                try {
                    Thread.sleep(ABANDONED_PAUSE_MILLIS);
                } catch (InterruptedException | OutOfMemoryError again) {
                    // The thread is the Cleaner's, which nobody interrupts.
                }
            } catch (RuntimeException | Error e) {
                logger.warn("group '{}', which was forgotten, cannot be freed", name, e);
                return;
            }
        }
    }

    private static boolean isNews(String group) {
        synchronized (TOLD) {
            return TOLD.add(group);
        }
    }

    /** Destroys the group; returns false if that was done before. */
    boolean destroy() {
        List<GroupState> ending = new ArrayList<>();
        try {
            endCalls(ending);
            // All ranks know by now what this one has not called, of any of these groups.
            for (int i = ending.size() - 1; i >= 0; i--) {
                ending.get(i).backend.drain();
            }
        } finally {
            freeAll(ending, ending.size() - 1);
        }
        return !ending.isEmpty();
    }

    /** Ends calls here and on sub-groups; adds those on which this call did so, parents first. */
    private void endCalls(List<GroupState> ending) {
        if (!destroyed && unusable == null) {
            backend.stopWaiting(); // A call that waits for other ranks holds the lock.
        }
        List<GroupState> dependent;
        synchronized (issueLock) {
            if (destroyed || unusable != null) {
                return;
            }
            // If memory has run out for this, nothing is destroyed; what is, will be freed.
            dependent = List.copyOf(subGroups);
            ending.add(this);
            destroyed = true;
        }
        for (int i = 0; i < dependent.size(); i++) {
            dependent.get(i).endCalls(ending);
        }
        backend.endCalls();
    }

    /**
     * Frees groups, sub-groups before their parents. Each is freed, also if another cannot be:
     * nobody gets a second chance. It takes no memory, of which there may be none.
     */
    private static void freeAll(List<GroupState> ending, int last) {
        if (last >= 0) {
            try {
                ending.get(last).free();
            } finally {
                freeAll(ending, last - 1);
            }
        }
    }

    private void free() {
        try {
            trace.close();
        } finally {
            try {
                backend.close();
            } finally {
                try {
                    closeAttachments();
                } finally {
                    onDestroy.run();
                    kept = null;
                    if (parent != null) {
                        parent.removeSubGroup(this);
                    }
                }
            }
        }
    }
}
