/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.engine.EngineException;

/**
 * A communication between ranks failed: a peer is gone, the group is broken, or a call did not fit.
 */
public class CollectiveException extends EngineException {

    private static final long serialVersionUID = 1L;

    /**
     * Creates an exception.
     *
     * @param message the operation, the group, the ranks, and what to do
     */
    public CollectiveException(String message) {
        super(message);
    }

    /**
     * Creates an exception with a cause.
     *
     * @param message the operation, the group, the ranks, and what to do
     * @param cause what went wrong underneath
     */
    public CollectiveException(String message, Throwable cause) {
        super(message, cause);
    }
}
