/**
 * How the ranks of a group on one host meet, find out that one of them never will, or that they
 * called different things.
 *
 * <pre>
 *   Rendezvous       decides when hosts wait for each other, how, and when they give up
 *   HostSync         for backends whose data goes another way: hosts that do not wait
 *   CallLog          what each of them called, for comparing it afterwards
 *   CallWords        how they compare a call
 *   GroupErrors      the errors of operations that the ranks cannot complete
 *   ControlBlock     what ranks tell each other, in memory that they share
 *   SharedSegment    that memory
 *   Liveness         whether a process still runs
 *   Deadline         how long to wait
 *   LongWaits        tells the log of ranks that wait long
 *   Required         refuses arguments that are null
 * </pre>
 */
package org.djlx.collectives.internal.host;
