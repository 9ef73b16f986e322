// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Mpi          binds MPI's functions, with the handles of Open MPI or of MPICH
 * MpiMessages  binds those that move and add messages
 */
/**
 * MPI: communicators and messages of bytes. Start with {@link MpiCommunicator#world}.
 *
 * <ul>
 *   <li>{@link MpiCommunicator} - ranks that exchange messages
 *   <li>{@link MpiException} - a failed call
 *   <li>{@link MpiRequests} - sends and receives that were started
 * </ul>
 */
package org.djlx.nativeops.mpi;
