// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives;

import ai.djl.engine.EngineException;
import java.nio.file.Path;
import java.util.Optional;

/**
 * Communication between ranks failed: a peer has left or died, the group is broken, or calls do not
 * match. The message names the operation, the group and the ranks.
 */
public class CollectiveException extends EngineException {

    private static final long serialVersionUID = 1L;

    /** The flight record file of this rank, or null. */
    private volatile String flightRecord;

    /**
     * Creates an exception, whose message says the operation, the group, the ranks, and what to do.
     */
    public CollectiveException(String message) {
        super(message);
    }

    /** As {@link #CollectiveException(String)}, with a cause. */
    public CollectiveException(String message, Throwable cause) {
        super(message, cause);
    }

    /** Sets the flight record file. For backends, before the work completes. */
    public void setFlightRecord(String file) {
        flightRecord = file;
    }

    /**
     * {@return the file to which {@link org.djlx.collectives.trace.FlightRecorder} writes this
     * rank's last operations after a failure, possibly not written completely yet; empty if none is
     * written} A background thread writes the file and logs an error if writing fails.
     */
    public Optional<Path> flightRecord() {
        return Optional.ofNullable(flightRecord).map(Path::of);
    }

    /**
     * {@return the message, with the path of the {@linkplain #flightRecord() flight record} if
     * there is one}
     */
    @Override
    public String getMessage() {
        String message = super.getMessage();
        String file = flightRecord;
        // A follow-up failure may quote the first failure's message, path included.
        return file == null || message.contains(file)
                ? message
                : message + "; this rank's flight record: " + file;
    }
}
