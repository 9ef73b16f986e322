/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

/**
 * Ranks called operations that do not fit together. Where calls are compared before they run, it is
 * thrown on every rank before any tensor was changed, and the group stays usable. Where they are
 * compared behind, the group is broken; {@link ProcessGroup} says which backend does what.
 */
public class CollectiveMismatchException extends CollectiveException {

    private static final long serialVersionUID = 1L;

    /** Whether the ranks are out of step. */
    private final boolean isGroupBroken;

    /**
     * Creates an exception of calls that were compared before they ran.
     *
     * @param message what each rank called
     */
    public CollectiveMismatchException(String message) {
        this(message, false);
    }

    /**
     * Creates an exception.
     *
     * @param message what each rank called
     * @param isGroupBroken whether the calls may have run, so that the ranks are out of step
     */
    public CollectiveMismatchException(String message, boolean isGroupBroken) {
        super(message);
        this.isGroupBroken = isGroupBroken;
    }

    /**
     * Tells whether the group is broken: if so, the {@linkplain #flightRecord() record} of the
     * rank's last operations is written, as after any other failure.
     *
     * @return whether it is; otherwise it stays usable, and all that is known of the calls stands
     *     in the message
     */
    public boolean isGroupBroken() {
        return isGroupBroken;
    }
}
