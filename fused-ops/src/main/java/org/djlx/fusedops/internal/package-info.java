/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * Libtorch          products and sums by libtorch, where there is nothing better
 * OneShotLaunch     what such kernels are told of where ranks exchange data
 * RankOrderReducer  a kernel that sums the parts of all ranks
 */
/**
 * The schedules of the fused operators, what computes in them, and what packages of this module
 * share. Internal: users call {@link org.djlx.fusedops.FusedOps}.
 *
 * <ul>
 *   <li>{@link org.djlx.fusedops.internal.BlockKernels} - what a transformer block computes between
 *       its matmuls, with gradients
 *   <li>{@link org.djlx.fusedops.internal.Compute} - prepares products and reductions for a group's
 *       device
 *   <li>{@link org.djlx.fusedops.internal.FusedMatmul} - an operator as one kernel (FUSED), on
 *       Hopper GPUs
 *   <li>{@link org.djlx.fusedops.internal.GatheredExchange} - all data of an operator from GPU to
 *       GPU by one kernel (GATHERED)
 *   <li>{@link org.djlx.fusedops.internal.LlamaKernels} - decoding: products of few rows,
 *       attention, the choice of tokens
 *   <li>{@link org.djlx.fusedops.internal.Pipeline} - orders matmuls of parts and the copies beside
 *       them (PIPELINED)
 *   <li>{@link org.djlx.fusedops.internal.Product} - a product of matrices, prepared
 *   <li>{@link org.djlx.fusedops.internal.ProductSums} - products of 16-bit matrices, added to
 *       matrices of float32
 *   <li>{@link org.djlx.fusedops.internal.RequestJson} - parses the JSON of requests strictly (RFC
 *       8259)
 *   <li>{@link org.djlx.fusedops.internal.RmsNormKernels} - all-reduce, residual and RMSNorm as one
 *       launch
 *   <li>{@link org.djlx.fusedops.internal.Slots} - where in the P2P buffers that goes
 * </ul>
 */
package org.djlx.fusedops.internal;
