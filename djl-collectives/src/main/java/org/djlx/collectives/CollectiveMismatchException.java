/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

/**
 * Ranks called operations that do not fit together. Thrown on every rank, before any tensor was
 * changed; the group stays usable.
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
