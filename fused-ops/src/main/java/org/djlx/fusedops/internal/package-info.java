/**
 * The schedules of the fused operators, what computes in them, and what packages of this module
 * share. Internal: users call {@link org.djlx.fusedops.FusedOps}.
 *
 * <pre>
 *   Schedule          who sends what to whom, when, and computes meanwhile; on any backend's streams
 *   PersistentMatmul  whole operators as one launch each, on Hopper GPUs
 *   RmsNormKernels    all-reduce, residual and RMSNorm as one launch
 *   Exchange          all-gather and reduce-scatter by kernels, before or behind one matmul
 *   BlockKernels      what a transformer block computes between its matmuls, with gradients
 *   LlamaKernels      decoding: products of few rows, attention, the choice of tokens
 *   OneShotLaunch     what such kernels are told of where ranks exchange data
 *   Slots             where in the P2P buffers that goes
 *   Compute           prepares products and reductions for a group's device
 *   Product           a product of matrices, prepared
 *   ProductSums       products of 16-bit matrices, added to matrices of float32
 *   RankOrderReducer  a kernel that sums the parts of all ranks
 *   Libtorch          products and sums by libtorch, where there is nothing better
 *   StrictJson        the JSON of requests, by its standard
 * </pre>
 */
package org.djlx.fusedops.internal;
