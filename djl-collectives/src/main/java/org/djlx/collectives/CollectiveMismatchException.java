// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

/**
 * The calls of the ranks do not match. If the backend compares calls before they run, every rank
 * throws before any tensor changes and the group stays usable. If the backend compares calls
 * afterwards, the group is broken. See the table in {@link ProcessGroup}.
 */
public class CollectiveMismatchException extends CollectiveException {

    private static final long serialVersionUID = 1L;

    /** Whether mismatched calls may have run; the ranks are then out of step. */
    private final boolean isGroupBroken;

    /**
     * Creates an exception for calls that were compared before they ran; the group stays usable.
     */
    public CollectiveMismatchException(String message) {
        this(message, false);
    }

    /**
     * As the other constructor; {@code isGroupBroken}: mismatched calls may have run, and the ranks
     * are then out of step.
     */
    public CollectiveMismatchException(String message, boolean isGroupBroken) {
        super(message);
        this.isGroupBroken = isGroupBroken;
    }

    /**
     * {@return whether the group is broken} A broken group writes its {@linkplain #flightRecord()
     * flight record}; otherwise the group stays usable and the message has all information.
     */
    public boolean isGroupBroken() {
        return isGroupBroken;
    }
}
