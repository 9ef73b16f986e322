// SPDX-License-Identifier: Apache-2.0
/**
 * The command line of the samples. Each command, or family of commands, has a package of its own.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.Main} - names the commands of {@code samples/run.sh}
 * </ul>
 */
package org.djlx.samples;
