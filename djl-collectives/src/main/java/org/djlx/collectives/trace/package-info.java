/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * BoundedCalls        calls that may never return
 * CollectiveEvent     the same for the Java Flight Recorder
 * DumpWriter          the thread that writes it
 * FailureDumps        when a failure makes a record be written
 * FlightFiles         where it goes
 * FlightRecord        an operation as it is recorded
 * FlightRecorderBean  shows a recorder over JMX
 * WallClock           times since 1970
 */
/**
 * What a rank did last, as it is recorded, and what the records of all ranks say together.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.trace.FlightAnalysis} - the dumps of all ranks side by side
 *   <li>{@link org.djlx.collectives.trace.FlightDump} - the record as it was at one moment, in
 *       memory and as a file
 *   <li>{@link org.djlx.collectives.trace.FlightEntry} - one operation in it
 *   <li>{@link org.djlx.collectives.trace.FlightFinding} - something that they show
 *   <li>{@link org.djlx.collectives.trace.FlightRecorder} - the last operations of one rank of a
 *       group
 *   <li>{@link org.djlx.collectives.trace.FlightRecorderMXBean} - the same over JMX
 *   <li>{@link org.djlx.collectives.trace.GroupTrace} - how a group puts its operations on record;
 *       public for the package above alone
 * </ul>
 */
package org.djlx.collectives.trace;
