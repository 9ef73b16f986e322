/**
 * How the ranks of a group on one host meet, and find out that one of them never will.
 *
 * <pre>
 *   SharedSegment    memory that all ranks map
 *   ControlBlock     what ranks tell each other there
 *   Rendezvous       waits for other ranks, with a deadline
 *   HostSync         the two above, for backends whose data goes another way
 *   Liveness         whether a process still runs
 *   Deadline         how long to wait
 * </pre>
 */
package org.djlx.collectives.internal.host;
