// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import java.util.Arrays;
import java.util.List;

/** An operation took longer than its timeout because some ranks did not arrive. */
public class CollectiveTimeoutException extends CollectiveException {

    private static final long serialVersionUID = 1L;

    /** The missing ranks; an array, because a list need not be serializable. */
    private final int[] missingRanks;

    /**
     * Creates an exception whose message says the operation, its sequence number, the group, the
     * timeout and the ranks of the group that did not arrive; null if unknown.
     */
    public CollectiveTimeoutException(String message, List<Integer> missingRanks) {
        this(message, missingRanks, null);
    }

    /** Creates an exception whose cause was thrown by the thread that ran the operation. */
    public CollectiveTimeoutException(String message, List<Integer> missingRanks, Throwable cause) {
        super(message, cause);
        this.missingRanks =
                missingRanks == null
                        ? new int[0]
                        : missingRanks.stream().mapToInt(Integer::intValue).toArray();
    }

    /** {@return the ranks that did not arrive, ascending; empty if they are unknown} */
    public List<Integer> missingRanks() {
        return Arrays.stream(missingRanks).boxed().toList();
    }
}
