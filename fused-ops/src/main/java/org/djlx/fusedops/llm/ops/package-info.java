// SPDX-License-Identifier: Apache-2.0
/**
 * Launchers of the kernels of text generation, on memory given by address.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.llm.ops.DecoderKernels} - kernels of decoding: matmuls of few
 *       rows, attention, sampling
 *   <li>{@link org.djlx.fusedops.llm.ops.MatmulChain} - several matmuls of few rows as one kernel
 *   <li>{@link org.djlx.fusedops.llm.ops.QuantizeKernels} - conversions of 16-bit rows to 8 and 4
 *       bits
 *   <li>{@link org.djlx.fusedops.llm.ops.WideMatmul} - a matmul of up to 128 rows in 16 bits, or 64
 *       in e4m3
 * </ul>
 */
package org.djlx.fusedops.llm.ops;
