// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * CallLog       log of all ranks' calls, for asynchronous comparison
 * HostWatch     notices dead hosts of a group, through its store
 * Introduction  header of the values that ranks exchange
 */
/**
 * Synchronisation of ranks: waiting, detecting failed ranks and hosts, and comparing calls.
 *
 * <ul>
 *   <li>{@link CallWords} - encoding of a call that ranks compare
 *   <li>{@link ControlBlock} - layout of the shared memory: epochs, states, signals
 *   <li>{@link FailureNote} - reports a failed rank to the other ranks of a group, through its
 *       store
 *   <li>{@link GroupExchange} - exchange of values between the ranks of a group, through its store
 *   <li>{@link GroupErrors} - exceptions for operations that cannot complete
 *   <li>{@link Heartbeat} - heartbeats of the members of a job, through a store; detects missing
 *       ones
 *   <li>{@link HostSync} - host-side checks for GPU backends
 *   <li>{@link Liveness} - whether a process is alive
 *   <li>{@link LongWaits} - logs long waits
 *   <li>{@link Peers} - the processes and hosts of other ranks
 *   <li>{@link RankProcess} - the process of a rank, and whether it has died
 *   <li>{@link Rendezvous} - barrier and signals between hosts; decides how to wait
 *   <li>{@link SharedSegment} - the shared memory
 * </ul>
 */
package org.djlx.collectives.internal.host;
