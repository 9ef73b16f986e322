// SPDX-License-Identifier: Apache-2.0
/**
 * Shared code of the commands: the root command, options of ranks, and helpers for output. Start
 * with {@link org.djlx.samples.common.RootCommand} for a command line, and with {@link
 * org.djlx.samples.common.RankOptions} for a command that runs ranks.
 *
 * <p>Command lines:
 *
 * <ul>
 *   <li>{@link org.djlx.samples.common.RootCommand} - the root command: help, errors, exit codes
 *   <li>{@link org.djlx.samples.common.CliCommand} - a command: its output, its files
 *   <li>{@link org.djlx.samples.common.UsageException} - wrong arguments
 *   <li>{@link org.djlx.samples.common.HelpCommand} - {@code help}
 *   <li>{@link org.djlx.samples.common.RankOptions} - {@code --ranks}, {@code --processes}, {@code
 *       --device}, {@code --dtype}
 * </ul>
 *
 * <p>Ranks and devices:
 *
 * <ul>
 *   <li>{@link org.djlx.samples.common.Ranks} - the ranks of this process
 *   <li>{@link org.djlx.samples.common.DeviceKind} - CPU or GPUs, and their backends
 *   <li>{@link org.djlx.samples.common.Gpus} - the GPUs of this process
 *   <li>{@link org.djlx.samples.common.MatmulShape} - the sizes of a fused operator
 * </ul>
 *
 * <p>Output:
 *
 * <ul>
 *   <li>{@link org.djlx.samples.common.TextTable} - a plain-text table
 * </ul>
 */
package org.djlx.samples.common;
