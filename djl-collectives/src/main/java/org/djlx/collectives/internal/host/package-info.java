/**
 * How the ranks of a group on one host meet, and find out that one of them never will.
 *
 * <pre>
 *   Rendezvous       decides when hosts wait for each other, how, and when they give up
 *   HostSync         the same, for backends whose data goes another way
 *   GroupErrors      the errors of operations that the ranks cannot complete
 *   ControlBlock     what ranks tell each other, in memory that they share
 *   SharedSegment    that memory
 *   Liveness         whether a process still runs
 *   Deadline         how long to wait
 * </pre>
 */
package org.djlx.collectives.internal.host;
