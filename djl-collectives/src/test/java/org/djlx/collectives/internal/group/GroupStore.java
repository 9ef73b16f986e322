// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.group;

import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.store.Store;

/** Gives tests the store of a group. */
public final class GroupStore {

    private GroupStore() {}

    /** Returns the store in which the ranks of a group have met. */
    public static Store of(ProcessGroup group) {
        return ((RankGroup) group).state().context().store();
    }
}
