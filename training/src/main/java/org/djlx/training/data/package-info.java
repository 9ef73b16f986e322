// SPDX-License-Identifier: Apache-2.0
/**
 * Batches of several processes.
 *
 * <ul>
 *   <li>{@link org.djlx.training.data.DistributedSampler} - divides a dataset among processes
 *   <li>{@link org.djlx.training.data.JoinListener} - a listener that takes part in batches of
 *       other processes
 * </ul>
 */
package org.djlx.training.data;
