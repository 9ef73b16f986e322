// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.function.Supplier;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.DebugLevel;
import org.djlx.collectives.internal.gpu.Disposal;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.collectives.spi.Backend;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.collectives.trace.GroupTrace;
import org.djlx.nativeops.host.Durations;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The state of a group on one rank, shared by all its handles: backend, counters, sub-groups. */
final class GroupState {

    private static final Logger logger = LoggerFactory.getLogger(GroupState.class);

    private static final int MAX_WARNED = 1000;

    // The groups for which the log has warned that they were not destroyed. Bounded, because it is
    // unknown when the last rank of a group has gone.
    private static final Set<String> WARNED =
            Collections.newSetFromMap(
                    new LinkedHashMap<>() {
                        private static final long serialVersionUID = 1L;

                        @Override
                        protected boolean removeEldestEntry(Map.Entry<String, Boolean> eldest) {
                            return size() > MAX_WARNED;
                        }
                    });

    private static final int ABANDONED_ATTEMPTS = 60;
    private static final int ABANDONED_PAUSE_MILLIS = 1000;

    private final GroupState parent; // null if this is not a sub-group
    private final GroupContext context; // null if this rank is not a member
    private final Backend backend;
    private final Runnable onDestroy;
    private final Optional<CreatingThread> creator; // of a local group
    private final String name;
    private final int rank;
    private final int worldSize;
    private final List<Integer> ranks; // global ranks
    private final List<Integer> parentRanks; // ranks in the parent group
    private final GroupTrace trace; // null if this rank is not a member
    private final String unusable; // why a non-member handle is not usable; null for members
    private final Object issueLock = new Object();

    // Guarded by issueLock.
    private final List<GroupState> subGroups = new ArrayList<>();
    private final Set<String> givenNames = new HashSet<>();
    private final Map<Class<?>, AutoCloseable> attachments = new HashMap<>(); // guarded by itself
    private long sequence;
    private long messages;
    private int subGroupCount;
    private int monitoredBarriers;
    private int shrinks;
    private volatile boolean destroyed;

    @SuppressWarnings("unused") // Only keeps the group reachable.
    private volatile Lifeline kept;

    GroupState(
            GroupState parent,
            GroupContext context,
            Backend backend,
            String job,
            List<Integer> ranks,
            Optional<CreatingThread> creator,
            Runnable onDestroy) {
        this.parent = parent;
        this.creator = creator;
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
        tell(
                "created: ranks %s, timeout %s"
                        .formatted(ranks, Durations.text(context.options().timeout())));
    }

    GroupState(String name, List<Integer> ranks, GroupState whole, String member) {
        this.parent = null;
        this.context = null;
        this.backend = whole.backend;
        this.onDestroy = () -> {};
        this.creator = Optional.empty();
        this.name = name;
        this.rank = -1;
        this.worldSize = ranks.size();
        this.ranks = List.copyOf(ranks);
        this.parentRanks = positions(ranks, whole.ranks);
        this.trace = null;
        this.unusable = member + " is not a member of group '" + name + "'; check isMember() first";
    }

    private static List<Integer> positions(List<Integer> ranks, List<Integer> whole) {
        return ranks.stream().map(whole::indexOf).toList();
    }

    GroupContext context() {
        return context;
    }

    Optional<CreatingThread> creator() {
        return creator;
    }

    Backend backend() {
        return backend;
    }

    /** Returns how closely this rank's calls are watched. */
    DebugLevel debug() {
        return context == null ? DebugLevel.OFF : context.options().debug();
    }

    /** Logs an event of the group, with {@link DebugLevel#INFO} or more. */
    private void tell(String event) {
        if (debug() != DebugLevel.OFF) {
            logger.info("{} {}", this, event);
        }
    }

    @Override
    public String toString() {
        return "ProcessGroup(%s, %s of %s, %s)"
                .formatted(
                        name,
                        unusable == null ? "rank " + rank : "not a member",
                        worldSize,
                        backend.name());
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
        checkMember();
        return trace;
    }

    /** Throws if this rank is not a member of the group. */
    void checkMember() {
        if (unusable != null) {
            throw new IllegalStateException(unusable);
        }
    }

    Object issueLock() {
        return issueLock;
    }

    /** Breaks the group, unless it is destroyed. */
    void abort(CollectiveException reason) {
        checkMember();
        if (!destroyed) {
            backend.abort(reason);
        }
    }

    void checkUsable() {
        checkMember();
        if (destroyed) {
            throw GroupErrors.usedAfterDestroy(name);
        }
    }

    /** Creates an operation with the next sequence number, which {@link #issued} consumes. */
    Operation nextOperation(OpType type, Duration timeout, Agreed agreed, int tag) {
        Operation operation =
                type.isPointToPoint()
                        ? new Operation(type, messages + 1, name, timeout, agreed, tag)
                        : new Operation(type, sequence + 1, name, timeout, agreed);
        operation.warningAfter(context.options().warnAfter());
        creator.ifPresent(thread -> thread.called(operation));
        return operation;
    }

    void issued(Operation operation) {
        if (operation.type().isPointToPoint()) {
            messages = operation.sequence();
        } else {
            sequence = operation.sequence();
        }
    }

    /**
     * Returns the number of the next sub-group, given the user's name for it or null: the same on
     * all ranks, because all ranks create sub-groups in the same order. Throws
     * IllegalArgumentException on all ranks if the name was used before; also if the earlier
     * sub-group has been destroyed, because only its members know that.
     */
    int nextSubGroup(String givenName) {
        synchronized (issueLock) {
            checkUsable();
            if (givenName != null && !givenNames.add(givenName)) {
                throw new IllegalArgumentException(
                        String.format(
                                "newGroup: the group '%s' already had a sub-group '%s'; choose"
                                    + " another name or none (a name can be used once, even if the"
                                    + " sub-group was destroyed)",
                                name, givenName));
            }
            return subGroupCount++;
        }
    }

    /**
     * Returns the number of the next call of {@code shrink}, the same on all ranks that call it.
     */
    int nextShrink() {
        synchronized (issueLock) {
            checkUsable();
            return shrinks++;
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
            AutoCloseable kept = attachments.get(type);
            return kept != null ? kept : attachments.computeIfAbsent(type, absent -> maker.get());
        }
    }

    /** Closes the attachments of libraries, after all operations of the group have ended. */
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
                "the attachments of group '" + name + "'",
                () -> {
                    for (AutoCloseable attachment : kept) {
                        try {
                            attachment.close();
                        } catch (Exception e) {
                            logger.warn(
                                    "cannot close attachment {} of group '{}'",
                                    attachment,
                                    name,
                                    e);
                        }
                    }
                });
    }

    /** Keeps the group reachable: the Cleaner must not free it before it is destroyed. */
    void keep(Lifeline lifeline) {
        kept = lifeline;
        if (destroyed) {
            kept = null;
        }
    }

    /**
     * Destroys the group after it became unreachable. Retries when memory has run out, because
     * nothing else would free the group.
     */
    void abandoned() {
        for (int attempt = 1; attempt <= ABANDONED_ATTEMPTS; attempt++) {
            try {
                if (destroy() && isFirstWarning(trace.job() + "/" + name)) {
                    logger.warn(
                            "group '{}' of backend '{}' was never destroyed; the garbage collector"
                                + " has freed its threads and memory on rank {}; call destroy()",
                            name,
                            backend.name(),
                            rank);
                }
                return;
            } catch (OutOfMemoryError e) {
                try {
                    Thread.sleep(ABANDONED_PAUSE_MILLIS);
                } catch (InterruptedException | OutOfMemoryError again) {
                    // Try again; nothing interrupts the Cleaner's thread.
                }
            } catch (RuntimeException | Error e) {
                logger.warn("cannot free group '{}', which was never destroyed", name, e);
                return;
            }
        }
    }

    private static boolean isFirstWarning(String group) {
        synchronized (WARNED) {
            return WARNED.add(group);
        }
    }

    /** Destroys the group; returns false if it already was destroyed. */
    boolean destroy() {
        List<GroupState> ending = new ArrayList<>();
        try {
            endCalls(ending);
            // The other ranks now know the last call of this rank in each of these groups.
            for (int i = ending.size() - 1; i >= 0; i--) {
                ending.get(i).backend.drain();
            }
        } finally {
            freeAll(ending, ending.size() - 1);
        }
        return !ending.isEmpty();
    }

    /**
     * Ends calls on this group and its sub-groups; adds each group with ended calls to a list,
     * parents first.
     */
    private void endCalls(List<GroupState> ending) {
        if (!destroyed && unusable == null) {
            backend.stopWaiting(); // A call that waits for other ranks holds issueLock.
        }
        List<GroupState> dependent;
        synchronized (issueLock) {
            if (destroyed || unusable != null) {
                return;
            }
            // Allocate before changing state: an OutOfMemoryError then leaves the group intact.
            dependent = List.copyOf(subGroups);
            ending.add(this);
            destroyed = true;
        }
        tell("destroyed after " + sequence + " collectives and " + messages + " messages");
        for (int i = 0; i < dependent.size(); i++) {
            dependent.get(i).endCalls(ending);
        }
        backend.endCalls();
    }

    /**
     * Frees groups, sub-groups before their parents. All groups are freed, even if one throws.
     * Allocates nothing, because memory may have run out.
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
