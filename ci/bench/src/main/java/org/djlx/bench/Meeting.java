// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.util.List;
import org.djlx.collectives.ObjectCollectives;
import org.djlx.collectives.ProcessGroup;

/**
 * Synchronizes the hosts of all ranks, threads or processes, and exchanges their results. It uses a
 * separate group, because operations of the measured group would be measured too. The caller owns
 * the group. If a rank fails and destroys the group, the other ranks fail.
 *
 * @param control a group of the same ranks with backend {@code shm}
 */
record Meeting(ProcessGroup control) {

    int rank() {
        return control.rank();
    }

    /** Waits for all ranks. */
    void await() {
        control.barrier().await();
    }

    /** Exchanges a message among all ranks; returns the message of each rank, in rank order. */
    List<String> exchange(String message) {
        return new ObjectCollectives(control).allGatherObject(message);
    }

    /**
     * Exchanges whether a rank failed in a step that all ranks must do together.
     *
     * @param own the cause of this rank's failure; empty for none
     * @return the cause of the first failed rank; empty if none failed
     */
    String failureOfAny(String own) {
        return exchange(own).stream().filter(failure -> !failure.isEmpty()).findFirst().orElse("");
    }
}
