// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.trace;

/**
 * A {@link FlightRecorder} over JMX, under {@code
 * org.djlx.collectives:type=FlightRecorder,group="NAME",rank=N}, while the group exists. If the
 * name is taken, {@code instance=2} and so on is added.
 */
public interface FlightRecorderMXBean {

    String getGroup();

    int getRank();

    int getWorldSize();

    String getBackend();

    /** {@return the number of operations on record, at most the size of the ring buffer} */
    int getOperations();

    /** {@return the per-group number of the last issued operation, or 0} */
    long getLastScheduled();

    /** {@return the per-group number of the last operation on record that started, or 0} */
    long getLastStarted();

    /** {@return the per-group number of the last operation on record that succeeded, or 0} */
    long getLastCompleted();

    /** {@return a dump of the current record as JSON, see {@link FlightDump}} */
    String dumpJson();
}
