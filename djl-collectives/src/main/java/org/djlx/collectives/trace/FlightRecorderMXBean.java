/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.trace;

/**
 * A {@link FlightRecorder} over JMX, under {@code
 * org.djlx.collectives:type=FlightRecorder,group="NAME",rank=N}, while the group exists. If the
 * name is taken, {@code instance=2} and so on is added.
 */
public interface FlightRecorderMXBean {

    /**
     * Returns the group's name.
     *
     * @return the name
     */
    String getGroup();

    /**
     * Returns the rank.
     *
     * @return the rank within the group
     */
    int getRank();

    /**
     * Returns the number of ranks.
     *
     * @return the world size
     */
    int getWorldSize();

    /**
     * Returns the group's backend.
     *
     * @return its name
     */
    String getBackend();

    /**
     * Returns the number of operations on record.
     *
     * @return the number, at most the size of the ring buffer
     */
    int getOperations();

    /**
     * Returns the number of the last operation that was issued.
     *
     * @return the number within the group, or 0
     */
    long getLastScheduled();

    /**
     * Returns the number of the last operation on record whose execution began.
     *
     * @return the number within the group, or 0
     */
    long getLastStarted();

    /**
     * Returns the number of the last operation on record that completed without a failure.
     *
     * @return the number within the group, or 0
     */
    long getLastCompleted();

    /**
     * Takes a dump of the current record.
     *
     * @return JSON, see {@link FlightDump}
     */
    String dumpJson();
}
