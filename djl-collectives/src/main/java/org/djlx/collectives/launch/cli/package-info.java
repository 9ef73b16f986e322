// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * OutputClosedException  stdout takes no more output
 */
/**
 * Shared code of the commands: the root command, options of ranks, and helpers for output. Start
 * with {@link RootCommand} for a command line, and with {@link RankOptions} for a command that runs
 * ranks.
 *
 * <p>Command lines:
 *
 * <ul>
 *   <li>{@link RootCommand} - the root command: help, errors, exit codes
 *   <li>{@link CliCommand} - a command: its output, its files
 *   <li>{@link UsageException} - wrong arguments
 *   <li>{@link HelpCommand} - {@code help}
 *   <li>{@link RankOptions} - {@code --ranks}, {@code --processes}, {@code --device}, {@code
 *       --dtype}
 * </ul>
 *
 * <p>Ranks and devices:
 *
 * <ul>
 *   <li>{@link Ranks} - the ranks of this process
 *   <li>{@link DeviceKind} - CPU or GPUs, and their backends
 *   <li>{@link Gpus} - the GPUs of this process
 *   <li>{@link MatmulShape} - the sizes of a fused operator
 * </ul>
 *
 * <p>Output:
 *
 * <ul>
 *   <li>{@link TextTable} - a plain-text table
 * </ul>
 */
package org.djlx.collectives.launch.cli;
