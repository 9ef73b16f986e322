// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * MpiBackend      the backend of one rank
 * MpiProcess      this process in MPI: its beginning and its end
 * MpiEnvironment  rank, world size and the store's address, from MPI
 * MpiGroup        the communicator of a group: letters, and the ranks that have left or failed
 * LetterBuffer    layout of a letter
 * MpiCollectives  collectives
 * MpiSums         sums contributions
 * MpiChannel      messages to and from one peer
 * Backoff         how a thread pauses between polls
 */
/**
 * Backend {@code mpi}: collectives and messages on CPUs of many hosts, through the cluster's MPI.
 * Each rank is a process that mpirun has started.
 *
 * <ul>
 *   <li>{@link MpiBackendFactory} - creates the backend
 * </ul>
 */
package org.djlx.mpi;
