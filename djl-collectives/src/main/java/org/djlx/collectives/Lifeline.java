/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import java.lang.ref.Cleaner;

/**
 * What all who can use a group on one rank refer to: its handles, those of its sub-groups, and its
 * operations until they have ended. When nobody does any more and the group was not destroyed, it
 * is freed. So nothing that lives as long as the group, such as its threads, what is registered for
 * it and what is attached to it, may refer to this, nor to a {@link ProcessGroup}; all that these
 * need is the {@link GroupState}.
 */
public final class Lifeline {

    // One thread for all groups, named for who looks at what waits while a group is freed.
    private static final Cleaner CLEANER =
            Cleaner.create(cleaner -> new Thread(cleaner, "forgotten-groups"));

    private final GroupState state;

    @SuppressWarnings("unused") // It is there to be referred to.
    private final Lifeline parent;

    /**
     * Creates the lifeline of a group.
     *
     * @param state what is destroyed
     * @param parent that of the group that this one is part of, which must outlive it; or null
     */
    Lifeline(GroupState state, Lifeline parent) {
        this.state = state;
        this.parent = parent;
        CLEANER.register(this, state::abandoned);
    }

    /** Makes the group itself refer to this: it stays until it is destroyed. */
    public void keep() {
        state.keep(this);
    }
}
