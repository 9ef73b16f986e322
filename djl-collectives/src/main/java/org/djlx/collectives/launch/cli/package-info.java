// SPDX-License-Identifier: Apache-2.0
/**
 * Shared code of the commands: the root command, options of ranks, and helpers for output. Start
 * with {@link org.djlx.collectives.launch.cli.RootCommand} for a command line, and with {@link
 * org.djlx.collectives.launch.cli.RankOptions} for a command that runs ranks.
 *
 * <p>Command lines:
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.launch.cli.RootCommand} - the root command: help, errors, exit
 *       codes
 *   <li>{@link org.djlx.collectives.launch.cli.CliCommand} - a command: its output, its files
 *   <li>{@link org.djlx.collectives.launch.cli.UsageException} - wrong arguments
 *   <li>{@link org.djlx.collectives.launch.cli.HelpCommand} - {@code help}
 *   <li>{@link org.djlx.collectives.launch.cli.RankOptions} - {@code --ranks}, {@code --processes},
 *       {@code --device}, {@code --dtype}
 * </ul>
 *
 * <p>Ranks and devices:
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.launch.cli.Ranks} - the ranks of this process
 *   <li>{@link org.djlx.collectives.launch.cli.DeviceKind} - CPU or GPUs, and their backends
 *   <li>{@link org.djlx.collectives.launch.cli.Gpus} - the GPUs of this process
 *   <li>{@link org.djlx.collectives.launch.cli.MatmulShape} - the sizes of a fused operator
 * </ul>
 *
 * <p>Output:
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.launch.cli.TextTable} - a plain-text table
 * </ul>
 */
package org.djlx.collectives.launch.cli;
