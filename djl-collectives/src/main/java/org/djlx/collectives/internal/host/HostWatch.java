// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Optional;
import org.djlx.collectives.store.PrefixStore;
import org.djlx.collectives.store.Store;

/**
 * Notices, through the group's store, that a host of the group is dead, also while an operation
 * runs. One instance serves one rank of a group on several hosts.
 *
 * <pre>
 *   hosts/beat-R    heartbeat of rank R
 *   hosts/failure   why the group cannot go on; the first that is set counts on all ranks
 *   hosts/left      set by the first rank that leaves in order: from then on, silence is no failure
 * </pre>
 *
 * <p>The hosts form a ring: the first rank of each watches the ranks of the next, so that the store
 * serves each rank a few calls a second. A host counts as dead if all its ranks are silent; a
 * single rank may be stopped by a debugger. The end of a process is noticed on its own host ({@link
 * Peers}), and reported here.
 */
final class HostWatch implements AutoCloseable {

    private static final byte[] UNSET = new byte[0];
    private static final String FAILURE = "failure";
    private static final String LEFT = "left";

    private final Store store;
    private final List<Integer> ranks; // of the next host; empty if this rank watches none
    private final String next; // its name
    private final Heartbeat heartbeat;
    private volatile String report; // what this rank tells the other ranks; null if nothing
    private volatile String failure; // null if none is known
    private volatile boolean left;

    /** Begins to watch the next host, by its name, for the ranks on it; none to watch none. */
    HostWatch(String name, Store groupStore, int rank, String next, List<Integer> ranks) {
        store = new PrefixStore("hosts", groupStore);
        this.next = next;
        this.ranks = ranks;
        heartbeat = new Heartbeat("heartbeat-" + name, store, beat(rank), this::look);
        ranks.forEach(peer -> heartbeat.watch(beat(peer)));
    }

    private static String beat(int rank) {
        return "beat-" + rank;
    }

    /** Runs after each heartbeat, the first time perhaps before {@link #heartbeat} is set. */
    private void look(Heartbeat beats) {
        if (failure != null) {
            return;
        }
        if (!left && report == null && isSilent(beats)) {
            report =
                    String.format(
                            "host %s (%s) has sent no heartbeat for %d s: the host, its network or"
                                    + " all its processes are down",
                            next, GroupErrors.ranks(ranks), Heartbeat.LIMIT);
        }
        if (report != null) {
            publish();
        } else if (store.check(List.of(FAILURE))) {
            failure = text(store.get(FAILURE));
        }
        left |= store.check(List.of(LEFT));
    }

    private boolean isSilent(Heartbeat beats) {
        return !ranks.isEmpty()
                && ranks.stream().allMatch(peer -> beats.missed(beat(peer)) >= Heartbeat.LIMIT);
    }

    private void publish() {
        byte[] own = report.getBytes(StandardCharsets.UTF_8);
        failure = text(store.compareSet(FAILURE, UNSET, own));
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** Tells the ranks on other hosts that a process of this host has ended. */
    void report(String end) {
        report = end;
    }

    /** Describes why the group cannot go on; empty if no reason is known. */
    Optional<String> dead() {
        String lost = failure != null || left ? null : heartbeat.lost();
        return Optional.ofNullable(
                lost == null ? failure : "the store of the group is lost, or its host: " + lost);
    }

    /**
     * Tells the other ranks a report that no heartbeat has published, or else that this rank leaves
     * in order. After a known failure does neither: the store may not answer.
     */
    @Override
    public void close() {
        boolean failed = dead().isPresent();
        heartbeat.close();
        if (failed) {
            return;
        }
        try {
            if (report != null) {
                publish();
            } else {
                store.set(LEFT, UNSET);
            }
        } catch (RuntimeException e) {
            left = true; // The store is gone, so the other ranks cannot be told.
        }
    }
}
