// SPDX-License-Identifier: Apache-2.0
/**
 * Prints the operations and element types of each backend.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.support.SupportCommand} - {@code support}
 * </ul>
 */
package org.djlx.samples.support;
