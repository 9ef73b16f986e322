// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.util.List;
import org.djlx.collectives.ObjectCollectives;
import org.djlx.collectives.ProcessGroup;

/**
 * Synchronizes the hosts of all ranks, threads or processes, and exchanges their results. It uses a
 * separate group, because operations of the measured group would be measured too. The caller owns
 * the group, of the same ranks with backend {@code shm}. If a rank fails and destroys the group,
 * the other ranks fail.
 */
record Meeting(ProcessGroup control) {

    int rank() {
        return control.rank();
    }

    void await() {
        control.barrier().await();
    }

    /** Exchanges a message among all ranks; returns the message of each rank, in rank order. */
    List<String> exchange(String message) {
        return new ObjectCollectives(control).allGatherObject(message);
    }

    /**
     * Exchanges whether a rank failed in a step that all ranks must do together. Returns the cause
     * of the first failed rank; empty for none.
     */
    String failureOfAny(String own) {
        return exchange(own).stream().filter(failure -> !failure.isEmpty()).findFirst().orElse("");
    }
}
