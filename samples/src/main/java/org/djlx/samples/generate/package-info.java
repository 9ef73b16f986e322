// SPDX-License-Identifier: Apache-2.0
/**
 * Generates text.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.generate.GenerateCommand} - {@code generate}: continues a prompt
 * </ul>
 */
package org.djlx.samples.generate;
