/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Runnable applications: {@link org.djlx.samples.Main}, the command line, and what its commands
 * share. Each command, or family of commands, has a package of its own.
 *
 * <pre>
 *   Main            the command line
 *   Ranks           the ranks that this process runs
 *   ThreadsPerRank  the cores of each of them
 *   Gpus            what a user of GPUs lacks
 *   ElementType     types of elements, by name
 *   MatmulShape     the sizes of a fused operator
 *   TextTable       a table of text
 * </pre>
 */
package org.djlx.samples;
