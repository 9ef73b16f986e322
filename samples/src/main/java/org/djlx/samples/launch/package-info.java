// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * RankProcesses - the processes of a job
 * Sessions - kernel sessions, to find all descendants of a rank
 * PrefixedOutput - prints the ranks' output line by line
 * Nodes - how launchers on several nodes agree
 */
/**
 * Runs a program in a process for each rank, on one host or several, as torchrun does.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.launch.LaunchCommand} - {@code launch}
 *   <li>{@link org.djlx.samples.launch.Launcher} - runs a main class in a JVM for each rank, and
 *       restarts failed jobs
 *   <li>{@link org.djlx.samples.launch.RankMain} - the entry point of such a JVM
 * </ul>
 */
package org.djlx.samples.launch;
