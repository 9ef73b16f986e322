// SPDX-License-Identifier: Apache-2.0
/**
 * The part of process groups that all backends have in common. Internal.
 *
 * <ul>
 *   <li>RankGroup - the process group of one rank: checks arguments and issues operations in order
 *   <li>GroupState - state of a group on one rank, shared by its handles
 *   <li>OperationChecks - argument checks
 *   <li>InputCheck - search for NaN in inputs, for debugging
 *   <li>Coalescing - runs a collective on several tensors
 *   <li>CoalescedWork - one work for several operations
 *   <li>SubGroups - creates sub-groups
 *   <li>MonitoredBarrier - barrier that names missing ranks
 *   <li>Lifeline - frees a group that is garbage but was not destroyed
 *   <li>CreatingThread - warns of a thread that calls for all ranks of a local group
 *   <li>HostWait - blocks the host until a work has ended
 *   <li>JobId - identifier that separates the flight records of jobs
 *   <li>RankThreads - one thread per rank
 *   <li>ObjectCodec - Java serialisation with a filter
 *   <li>SerializedGraph - bounds the work of reading a serialised object
 * </ul>
 */
package org.djlx.collectives.internal.group;
