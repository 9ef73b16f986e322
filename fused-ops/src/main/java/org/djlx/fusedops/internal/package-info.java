// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * Libtorch          matmuls and reductions by libtorch, on memory given by address
 * OneShotLaunch     the kernel argument that describes a group's one-shot slots
 * RankOrderReducer  kernel that sums the parts of all ranks in rank order
 */
/**
 * Launchers of the operators' kernels, and classes shared by packages of this module. Internal:
 * users call {@link org.djlx.fusedops.FusedOps}.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.internal.BlockKernels} - kernels of a transformer block between
 *       its matmuls, with gradients
 *   <li>{@link org.djlx.fusedops.internal.BlockMath} - RMSNorm and gated SiLU by libtorch
 *   <li>{@link org.djlx.fusedops.internal.Compute} - matmuls and reductions on a group's device
 *   <li>{@link org.djlx.fusedops.internal.FusedMatmul} - an operator as one kernel (FUSED), on
 *       Hopper GPUs
 *   <li>{@link org.djlx.fusedops.internal.GatheredExchange} - all-gather and reduce-scatter by one
 *       kernel (GATHERED)
 *   <li>{@link org.djlx.fusedops.internal.DecoderKernels} - kernels of decoding: matmuls of few
 *       rows, attention, sampling
 *   <li>{@link org.djlx.fusedops.internal.MatmulChain} - several matmuls of few rows as one kernel
 *   <li>{@link org.djlx.fusedops.internal.WideMatmul} - a matmul of up to 128 rows in 16 bits, or
 *       64 in e4m3
 *   <li>{@link org.djlx.fusedops.internal.Pipeline} - orders matmuls of parts and copies beside
 *       them (PIPELINED)
 *   <li>{@link org.djlx.fusedops.internal.Product} - a prepared matmul
 *   <li>{@link org.djlx.fusedops.internal.ProductSums} - matmuls of 16-bit matrices that add to
 *       float32 matrices
 *   <li>{@link org.djlx.fusedops.internal.QuantizeKernels} - conversions of 16-bit rows to 8 and 4
 *       bits
 *   <li>{@link org.djlx.fusedops.internal.ReasonPhrase} - messages of answers of DJL Serving, on
 *       one line
 *   <li>{@link org.djlx.fusedops.internal.RequestJson} - parses the JSON of requests strictly (RFC
 *       8259)
 *   <li>{@link org.djlx.fusedops.internal.RmsNormKernels} - all-reduce, residual and RMSNorm in one
 *       kernel
 *   <li>{@link org.djlx.fusedops.internal.Slots} - layout of the P2P buffers of an operation
 *   <li>{@link org.djlx.fusedops.internal.VdevKernels} - all-to-all with splits in GPU memory
 * </ul>
 */
package org.djlx.fusedops.internal;
