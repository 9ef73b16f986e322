/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives;

import ai.djl.engine.EngineException;
import java.nio.file.Path;
import java.util.Optional;

/**
 * A communication between ranks failed: a peer is gone, the group is broken, or a call did not fit.
 */
public class CollectiveException extends EngineException {

    private static final long serialVersionUID = 1L;

    /** The file in which this rank's last operations are, or null. */
    private volatile String flightRecord;

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

    public void setFlightRecord(String file) {
        flightRecord = file;
    }

    /**
     * Returns where this rank's last operations are, as {@link
     * org.djlx.collectives.trace.FlightRecorder} writes them when an operation fails.
     *
     * @return the file, which may still be being written; if it cannot be, the log says so. Empty
     *     if none is written
     */
    public Optional<Path> flightRecord() {
        return Optional.ofNullable(flightRecord).map(Path::of);
    }

    /**
     * Returns what went wrong and where this rank's last operations are.
     *
     * @return the message, with the file if there is one
     */
    @Override
    public String getMessage() {
        String message = super.getMessage();
        String file = flightRecord;
        // The message of a failure that another led to may quote that one's.
        return file == null || message.contains(file)
                ? message
                : message + "; this rank's last operations are in " + file;
    }
}
