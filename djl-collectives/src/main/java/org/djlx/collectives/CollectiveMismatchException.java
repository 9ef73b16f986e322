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

    /**
     * Creates an exception.
     *
     * @param message what each rank called
     */
    public CollectiveMismatchException(String message) {
        super(message);
    }
}
