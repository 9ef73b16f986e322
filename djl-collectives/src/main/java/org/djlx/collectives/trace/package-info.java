/**
 * What a rank did last, as it is recorded, and what the records of all ranks say together. A plus
 * marks what users name.
 *
 * <pre>
 * + FlightRecorder        the last operations of one rank of a group
 * + FlightRecorderMXBean  the same over JMX
 * + FlightDump            the record as it was at one moment, in memory and as a file
 * + FlightEntry           one operation in it
 * + FlightAnalysis        the dumps of all ranks side by side
 * + FlightFinding         something that they show
 *   GroupTrace            how a group puts its operations on record; public for the package above alone
 *   FlightRecord          an operation as it is recorded
 *   CollectiveEvent       the same for the Java Flight Recorder
 *   FlightRecorderBean    shows a recorder over JMX
 *   FailureDumps          when a failure makes a record be written
 *   DumpWriter            the thread that writes it
 *   FlightFiles           where it goes
 *   BoundedCalls          calls that may never return
 *   WallClock             times since 1970
 * </pre>
 *
 * <p>Every operation is an event of the Java Flight Recorder as well, {@code org.djlx.Collective}.
 */
package org.djlx.collectives.trace;
