// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.gpu;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.CollectiveTimeoutException;
import org.djlx.collectives.internal.host.GroupErrors;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.host.Deadline;

/**
 * Orders the kernels of this process that fill a GPU while they wait for a peer, such as path
 * FUSED. {@code docs/design/memory-and-signals.md}, Groups that share GPUs, shows why, and the log.
 *
 * <p>Each rank of a group {@linkplain #join joins} as a member. A member numbers its calls ({@link
 * Member#begin}). Before a launch it waits for its turn ({@link Member#await}); after the launch,
 * or after a call without one, it {@linkplain Member#passed passes} the call.
 *
 * <p>Invariants:
 *
 * <ol>
 *   <li>Calls of a group have the same numbers on all ranks, because ranks make the same calls.
 *   <li>A call takes its place in the log when the first member needs a turn for it. Calls of one
 *       group are in the order of their numbers.
 *   <li>A group without another group on its GPUs keeps no log. When a second group joins, the
 *       calls that some, not all, members have passed enter the log first: {@code shared} is
 *       written before the numbers are read, and a member writes its number before it reads {@code
 *       shared}.
 *   <li>A member that {@linkplain Member#stop stops} makes no more calls, so no host waits for it;
 *       streams still wait for its last launch. A member {@linkplain Member#leave leaves} once its
 *       kernels have ended or do not wait for peers.
 *   <li>A call leaves the log once all members have passed it.
 * </ol>
 *
 * <p>Thread-safe. Processes do not agree on an order: see {@link GpuLease}.
 */
public final class GpuTurns {

    /** The turns of this process. */
    public static final GpuTurns PROCESS = new GpuTurns();

    private final Map<String, Group> groups = new HashMap<>(); // by key; guarded by this
    private final List<Call> log = new ArrayList<>(); // guarded by this

    /** The end of a launch, for which a stream can wait. */
    @FunctionalInterface
    public interface Launched {

        /** Lets a stream wait for the end of the launch. */
        void order(CudaStream stream);
    }

    private record Call(Group group, long number, Object operation) {}

    private static final class Group {
        final String name;
        final List<String> gpus; // of the ranks, also those of other processes
        final List<Member> members = new ArrayList<>(); // guarded by the turns
        volatile boolean shared; // another group has ranks on one of the GPUs

        Group(String name, List<String> gpus) {
            this.name = name;
            this.gpus = gpus;
        }

        boolean meets(Group other) {
            return other != this && gpus.stream().anyMatch(other.gpus::contains);
        }
    }

    /**
     * Adds a rank of this process, which leaves when its group is broken or destroyed. The key is
     * the same for the ranks of a group and for no other group.
     */
    public synchronized Member join(String key, String name, int rank, List<String> gpus) {
        Group group = groups.computeIfAbsent(key, k -> new Group(name, List.copyOf(gpus)));
        Member member = new Member(group, rank);
        group.members.add(member);
        update();
        return member;
    }

    /** Finds out which groups share GPUs. */
    private void update() {
        for (Group group : groups.values()) {
            boolean before = group.shared;
            group.shared = groups.values().stream().anyMatch(group::meets);
            if (group.shared && !before) {
                long last = group.members.stream().mapToLong(m -> m.begun.get()).max().orElse(0);
                long passed =
                        group.members.stream().mapToLong(Member::lastPassed).min().orElse(last);
                for (long number = Math.min(passed, last) + 1; number <= last; number++) {
                    log.add(
                            new Call(
                                    group,
                                    number,
                                    "call " + number + " of group '" + group.name + "'"));
                }
            } else if (!group.shared) {
                log.removeIf(call -> call.group == group);
            }
            for (Member member : group.members) {
                member.ranksOnGpu =
                        (int)
                                groups.values().stream()
                                        .flatMap(other -> other.gpus.stream())
                                        .filter(member.gpu::equals)
                                        .count();
                member.sharesGpu =
                        groups.values().stream()
                                .anyMatch(
                                        other -> Collections.frequency(other.gpus, member.gpu) > 1);
            }
        }
        notifyAll();
    }

    /** A rank of this process. Its calls are made in order, mostly by one thread. */
    public final class Member {

        private final Group group;
        private final int rank;
        private final String gpu;
        private final AtomicLong begun = new AtomicLong();
        private volatile long passed;
        private volatile Launched last; // the last launch; null before the first
        private volatile int ranksOnGpu;
        private volatile boolean sharesGpu;
        private volatile Thread launching; // has the turn; null if the member has not
        private volatile boolean stopped;

        private Member(Group group, int rank) {
            this.group = group;
            this.rank = rank;
            this.gpu = group.gpus.get(rank);
        }

        /** Returns the number of ranks on this GPU, those of all groups of this process. */
        public int ranksOnGpu() {
            return ranksOnGpu;
        }

        /** Returns whether a group of this process has several ranks on this GPU. */
        public boolean sharesGpu() {
            return sharesGpu;
        }

        /** Returns whether another group of this process has ranks on the group's GPUs. */
        public boolean isShared() {
            return group.shared;
        }

        /** Begins a call, and returns its number. The member then passes the call, or leaves. */
        public long begin() {
            return begun.incrementAndGet();
        }

        /**
         * Waits for the turn of a call. The stream of the launch must then wait for the launches
         * that are returned.
         *
         * @throws CollectiveTimeoutException if the turn does not come in time; names the group and
         *     the rank that has not made its call
         * @throws CollectiveException if the member stops
         * @throws IllegalStateException if this thread has another group's turn
         */
        public List<Launched> await(long number, Object operation, Duration timeout) {
            if (!group.shared) {
                return List.of();
            }
            Deadline deadline = Deadline.after(timeout);
            synchronized (GpuTurns.this) {
                if (group.shared && !stopped) {
                    append(new Call(group, number, operation));
                }
                while (!stopped) {
                    Call earlier = earlierCall(number);
                    if (earlier == null) {
                        launching = Thread.currentThread();
                        return launches();
                    }
                    awaitChange(deadline, operation, earlier);
                }
            }
            throw new CollectiveException(
                    operation + " did not start: its group is broken or destroyed");
        }

        private void awaitChange(Deadline deadline, Object operation, Call earlier) {
            Member missing = missing(earlier);
            if (missing == null) {
                return; // The member has passed the call since: members do so without the lock.
            }
            if (missing.launching == Thread.currentThread()) {
                throw new IllegalStateException(
                        String.format(
                                "%s cannot start within %s: a CUDA graph cannot hold operators that"
                                    + " fill the GPU of two groups that share it; capture a graph"
                                    + " for each group",
                                operation, earlier.operation));
            }
            if (deadline.isOver()) {
                throw new CollectiveTimeoutException(
                        String.format(
                                "%s did not start on rank %d within %s: on GPU %s its turn is after"
                                    + " %s, which rank %d of that group has not called; call each"
                                    + " group from a thread of its own, or call the groups in the"
                                    + " same order on all ranks",
                                operation,
                                rank,
                                deadline.timeout(),
                                gpu,
                                earlier.operation,
                                missing.rank),
                        List.of());
            }
            try {
                TimeUnit.NANOSECONDS.timedWait(
                        GpuTurns.this, Math.max(1_000_000, deadline.remainingNanos()));
            } catch (InterruptedException e) {
                throw GroupErrors.interrupted(operation, e);
            }
        }

        private void append(Call call) {
            int place = 0;
            while (place < log.size()
                    && (log.get(place).group != group || log.get(place).number < call.number)) {
                place++;
            }
            if (place == log.size() || log.get(place).number != call.number) {
                log.add(place, call);
            }
        }

        /** Returns the first call that precedes this one, and is missing on this GPU; or null. */
        private Call earlierCall(long number) {
            for (Call call : log) {
                if (call.group == group && call.number == number) {
                    return null;
                }
                if (call.group != group && missing(call) != null) {
                    return call;
                }
            }
            return null; // The group is not shared any more.
        }

        /** Returns the member on this GPU that has not passed a call; null if there is none. */
        private Member missing(Call call) {
            for (Member member : call.group.members) {
                if (member.lastPassed() < call.number && member.gpu.equals(gpu)) {
                    return member;
                }
            }
            return null;
        }

        private List<Launched> launches() {
            List<Launched> launches = new ArrayList<>();
            for (Group other : groups.values()) {
                for (Member member : other.members) {
                    if (other != group && member.last != null && member.gpu.equals(gpu)) {
                        launches.add(member.last);
                    }
                }
            }
            return launches;
        }

        /** Passes a call, which has launched a kernel that fills the GPU. */
        public void launched(long number, Launched end) {
            last = end;
            passed(number);
        }

        public void passed(long number) {
            passed = number;
            if (launching != null) {
                launching = null;
            }
            if (!group.shared) {
                return;
            }
            synchronized (GpuTurns.this) {
                prune();
            }
        }

        private long lastPassed() {
            return stopped ? Long.MAX_VALUE : passed;
        }

        /** Removes the group's calls that all members have passed, and wakes who waits for them. */
        private void prune() {
            long all =
                    group.members.stream()
                            .mapToLong(Member::lastPassed)
                            .min()
                            .orElse(Long.MAX_VALUE);
            log.removeIf(call -> call.group == group && call.number <= all);
            GpuTurns.this.notifyAll();
        }

        /** Ends this member's waits. Other members no longer wait for its calls. */
        public void stop() {
            synchronized (GpuTurns.this) {
                stopped = true;
                prune();
            }
        }

        /** Stops, and lets no stream wait for this member. A second call does nothing. */
        public void leave() {
            synchronized (GpuTurns.this) {
                stopped = true;
                if (group.members.remove(this)) {
                    if (group.members.isEmpty()) {
                        groups.values().remove(group);
                    }
                    prune();
                    update();
                }
            }
        }
    }

    /** Returns the number of calls in the log. */
    synchronized int logged() {
        return log.size();
    }
}
