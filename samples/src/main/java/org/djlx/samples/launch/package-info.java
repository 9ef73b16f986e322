/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Runs a program as a job of several processes on one host or several, as torchrun does. *
 *
 * <pre>
 *   LaunchCommand   the command
 *   Launcher        runs a main class in a JVM for each rank, again if one fails
 *   RankMain        the entry point of such a JVM
 *   RankProcesses   the processes of a job
 *   Sessions        what keeps together a process and all that descend from it
 *   PrefixedOutput  what ranks write, line by line
 *   Nodes           what launchers on several nodes tell each other
 * </pre>
 */
package org.djlx.samples.launch;
