// SPDX-License-Identifier: Apache-2.0
/**
 * Matmul + all-reduce: {@link org.djlx.fusedops.FusedOps#matmulAllReduce}.
 *
 * <ul>
 *   <li>{@link MatmulAllReduce} - the checked sizes of a call; runs it in pieces of rows
 * </ul>
 */
package org.djlx.fusedops.internal.matmulallreduce;
