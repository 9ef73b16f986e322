// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * HostP2pStream  stream on the CPU
 */
/**
 * Symmetric memory, which peers read and write directly, and streams for operators on it; the
 * counterpart of PyTorch's {@code SymmetricMemory}. Start with {@link P2pBuffers}: its rules say
 * who may write into a peer's buffer and heap, and when. Writers there are {@code P2pStream.put},
 * {@code P2pBuffers.exchange}, copies to views, {@code CopyExchange} of {@code internal.cudap2p},
 * and of fused-ops the FUSED kernels and the all-to-all by device sizes. {@link OneShotSlots} are
 * other memory with rules of their own: there the all-reduce kernels, {@code ExchangeKernels},
 * GATHERED and all-reduce + RMSNorm write.
 *
 * <ul>
 *   <li>{@link P2pBuffers} - a group's symmetric memory and signals
 *   <li>{@link P2pBackend} - a backend that has symmetric memory
 *   <li>{@link P2pAllocator} - allocates arrays in symmetric memory
 *   <li>{@link P2pStream} - puts, signals and waits of operators, on a thread or a CUDA stream
 *   <li>{@link KernelSignals} - addresses for GPU kernels that signal and wait themselves
 *   <li>{@link OneShotSlots} - memory for GPU kernels that exchange data like a one-shot all-reduce
 *   <li>{@link SplitError} - why an all-to-all refuses its splits
 * </ul>
 */
package org.djlx.collectives.p2p;
