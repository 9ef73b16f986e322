// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * CollectiveEvent     JFR event of one operation
 * DumpWriter          the thread that writes flight records
 * FailureDumps        decides when a failure writes a flight record
 * FlightRecord        one operation in a flight recorder
 * FlightRecorderBean  the JMX bean of a flight recorder
 */
/**
 * The flight recorder: keeps the last operations of a rank, writes them to a file when a group
 * fails, and compares the files of all ranks. Start with {@link FlightRecorder}.
 *
 * <ul>
 *   <li>{@link FlightAnalysis} - compares the flight records of all ranks
 *   <li>{@link FlightDump} - a flight record: the last operations of a rank, in memory and as a
 *       file
 *   <li>{@link FlightEntry} - one operation in a flight record
 *   <li>{@link FlightFinding} - a finding of the comparison, such as a rank that is behind
 *   <li>{@link FlightRecorder} - the last operations of one rank of a group
 *   <li>{@link FlightRecorderMXBean} - the flight recorder over JMX
 *   <li>{@link GroupTrace} - records the operations of a group; public for {@code ProcessGroup}
 *       only
 * </ul>
 */
package org.djlx.collectives.trace;
