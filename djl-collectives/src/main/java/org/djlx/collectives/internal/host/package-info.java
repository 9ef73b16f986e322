/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * CallLog  what each of them called, for comparing it afterwards
 */
/**
 * How the ranks of a group on one host meet, find out that one of them never will, or that they
 * called different things.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.internal.host.ArrayBytes} - the bytes of arrays of all types
 *   <li>{@link org.djlx.collectives.internal.host.CallWords} - how they compare a call
 *   <li>{@link org.djlx.collectives.internal.host.ControlBlock} - what ranks tell each other, in
 *       memory that they share
 *   <li>{@link org.djlx.collectives.internal.host.Deadline} - how long to wait
 *   <li>{@link org.djlx.collectives.internal.host.GroupErrors} - the errors of operations that the
 *       ranks cannot complete
 *   <li>{@link org.djlx.collectives.internal.host.HostSync} - for backends whose data goes another
 *       way: hosts that do not wait
 *   <li>{@link org.djlx.collectives.internal.host.Liveness} - whether a process still runs
 *   <li>{@link org.djlx.collectives.internal.host.LongWaits} - tells the log of ranks that wait
 *       long
 *   <li>{@link org.djlx.collectives.internal.host.Rendezvous} - decides when hosts wait for each
 *       other, how, and when they give up
 *   <li>{@link org.djlx.collectives.internal.host.Required} - refuses arguments that are null
 *   <li>{@link org.djlx.collectives.internal.host.SharedSegment} - that memory
 * </ul>
 */
package org.djlx.collectives.internal.host;
