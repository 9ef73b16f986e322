// SPDX-License-Identifier: Apache-2.0
/**
 * Prints the links between the GPUs of this host.
 *
 * <ul>
 *   <li>{@link org.djlx.samples.topology.TopologyCommand} - {@code topology}
 * </ul>
 */
package org.djlx.samples.topology;
