// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import java.lang.ref.Cleaner;
import org.djlx.collectives.ProcessGroup;

/**
 * Reachable from everything that can use a group on one rank: its handles, the handles of its
 * sub-groups, and its running operations. When it becomes unreachable and the group has not been
 * destroyed, a {@link Cleaner} destroys the group.
 *
 * <p>Invariant: objects that live as long as the group, such as its threads, registrations and
 * attachments, must not refer to a Lifeline or a {@link ProcessGroup}. They refer to {@link
 * GroupState}.
 */
final class Lifeline {

    // One thread for all groups; its name explains it in a thread dump.
    private static final Cleaner CLEANER =
            Cleaner.create(cleaner -> new Thread(cleaner, "forgotten-groups"));

    private final GroupState state;

    @SuppressWarnings("unused") // Only keeps the parent reachable.
    private final Lifeline parent;

    /**
     * Creates the lifeline of a group. That of its parent group, or null, must outlive this one.
     */
    Lifeline(GroupState state, Lifeline parent) {
        this.state = state;
        this.parent = parent;
        CLEANER.register(this, state::abandoned);
    }

    /** Keeps the group reachable until it is destroyed. */
    void keep() {
        state.keep(this);
    }
}
