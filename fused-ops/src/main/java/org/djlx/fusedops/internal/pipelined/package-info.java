// SPDX-License-Identifier: Apache-2.0
/**
 * Pipelines with a computation of the caller: {@link org.djlx.fusedops.FusedOps#pipelinedAllGather}
 * and {@link org.djlx.fusedops.FusedOps#pipelinedProduceAndAllToAll}.
 *
 * <ul>
 *   <li>{@link CallerPipeline} - checks and runs a call
 * </ul>
 */
package org.djlx.fusedops.internal.pipelined;
