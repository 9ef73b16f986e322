/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * HostP2pStream  a stream on the CPU
 */
/**
 * Memory that peers write directly, and streams for operators built on it; the counterpart of
 * PyTorch's symmetric memory. Start with {@link org.djlx.collectives.p2p.P2pBuffers}.
 *
 * <ul>
 *   <li>{@link org.djlx.collectives.p2p.KernelSignals} - where kernels of your own raise and await
 *       signals themselves
 *   <li>{@link org.djlx.collectives.p2p.OneShotSlots} - where they exchange data as one-shot
 *       all-reduces do
 *   <li>{@link org.djlx.collectives.p2p.P2pAllocator} - tensors in such memory
 *   <li>{@link org.djlx.collectives.p2p.P2pBuffers} - memory into which other ranks write
 *   <li>{@link org.djlx.collectives.p2p.P2pStream} - a stream that writes there, for operators of
 *       your own
 * </ul>
 */
package org.djlx.collectives.p2p;
