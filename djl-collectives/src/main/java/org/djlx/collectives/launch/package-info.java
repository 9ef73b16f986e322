// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Launcher       runs a main class in a JVM for each rank, and restarts failed jobs
 * Nodes          connects the launchers of several nodes through the job's store
 * Coordinator    decides which launchers take part in an attempt
 * RankMain       the entry point of a rank's JVM
 * RankProcesses  the processes of a job
 * Sessions       kernel sessions, to find all descendants of a rank
 * PrefixedOutput prints the ranks' output line by line
 */
/**
 * Runs a program in a process for each rank, on one host or several, as torchrun does, and reads
 * the environment variables of launchers.
 *
 * <ul>
 *   <li>{@link Launch} - the main class
 *   <li>{@link LaunchCommand} - its options, as a command of picocli
 *   <li>{@link LaunchEnvironment} - rank, world size and address, from the variables of torchrun,
 *       Slurm, MPI or Kubernetes
 *   <li>{@link TorchThreads} - sets libtorch's thread count of a CPU rank
 * </ul>
 */
package org.djlx.collectives.launch;
