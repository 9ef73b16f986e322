/**
 * What a rank did last, as it is recorded, and what the records of all ranks say together.
 *
 * <pre>
 *   FlightRecorder       the last operations of one rank of a group
 *   FlightRecorderMXBean the same over JMX
 *   FlightDump           the record as it was at one moment, in memory and as a file
 *   FlightEntry          one operation in it
 *   FlightAnalysis       the dumps of all ranks side by side
 *   FlightFinding        something that they show
 *   GroupTrace           how a group puts its operations on record; not for users
 * </pre>
 *
 * <p>Every operation is an event of the Java Flight Recorder as well, {@code org.djlx.Collective}.
 */
package org.djlx.collectives.trace;
