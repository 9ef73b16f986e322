// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * HostP2pStream  stream on the CPU
 */
/**
 * Symmetric memory, which peers read and write directly, and streams for operators on it; the
 * counterpart of PyTorch's {@code SymmetricMemory}. Start with {@link P2pBuffers}: its rules say
 * who may write into a peer's memory, and when. Writers on GPUs are {@code P2pStream.put}, the
 * exchange and all-reduce kernels of {@code internal.cudap2p}, and the FUSED kernels of fused-ops.
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
