// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * HostP2pStream  stream on the CPU
 */
/**
 * Symmetric memory, which peers read and write directly, and streams for operators on it; the
 * counterpart of PyTorch's {@code SymmetricMemory}. Start with {@link
 * org.djlx.collectives.p2p.P2pBuffers}.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.p2p.P2pBuffers} - a group's symmetric memory and signals
 *   <li>{@link org.djlx.collectives.p2p.P2pBackend} - a backend that has symmetric memory
 *   <li>{@link org.djlx.collectives.p2p.P2pAllocator} - allocates arrays in symmetric memory
 *   <li>{@link org.djlx.collectives.p2p.P2pStream} - backend-independent stream for operators
 *   <li>{@link org.djlx.collectives.p2p.KernelSignals} - addresses for GPU kernels that signal and
 *       wait themselves
 *   <li>{@link org.djlx.collectives.p2p.OneShotSlots} - memory for GPU kernels that exchange data
 *       like a one-shot all-reduce
 *   <li>{@link org.djlx.collectives.p2p.SplitError} - why an all-to-all refuses its splits
 * </ul>
 */
package org.djlx.collectives.p2p;
