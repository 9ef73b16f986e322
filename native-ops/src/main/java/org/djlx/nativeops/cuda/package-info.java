/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * CachedFile            a file of the cache
 * CublasLtHandle        the library and the workspace that products share
 * CudaResource          what lives in a context
 * Nvml                  the library's functions
 * NvmlLinks             reads the links
 * Nvrtc                 the compiler's functions
 * StreamOrderedRelease  holds arrays until their stream has passed what uses them
 */
/**
 * The CUDA driver API: devices, memory, streams, events, graphs, kernels compiled by NVRTC, matrix
 * products by cuBLASLt, and the links between GPUs by NVML.
 *
 * <ul>
 *   <li>{@link org.djlx.nativeops.cuda.CublasLt} - plans products on one GPU
 *   <li>{@link org.djlx.nativeops.cuda.CublasLtMatmul} - one that is planned
 *   <li>{@link org.djlx.nativeops.cuda.CudaAttribute} - what it can be asked
 *   <li>{@link org.djlx.nativeops.cuda.CudaDevice} - a GPU and its context
 *   <li>{@link org.djlx.nativeops.cuda.CudaDriver} - how the driver is called
 *   <li>{@link org.djlx.nativeops.cuda.CudaEvent} - a mark in it
 *   <li>{@link org.djlx.nativeops.cuda.CudaException} - a call that failed
 *   <li>{@link org.djlx.nativeops.cuda.CudaGraph} - work that is recorded and launched again
 *   <li>{@link org.djlx.nativeops.cuda.CudaKernel} - one of them
 *   <li>{@link org.djlx.nativeops.cuda.CudaMemory} - memory of GPUs, and of the host for GPUs
 *   <li>{@link org.djlx.nativeops.cuda.CudaModule} - compiled kernels, loaded
 *   <li>{@link org.djlx.nativeops.cuda.CudaStream} - a queue of work
 *   <li>{@link org.djlx.nativeops.cuda.CudaVirtualMemory} - memory that is mapped for several GPUs
 *       or processes
 *   <li>{@link org.djlx.nativeops.cuda.CurrentStreams} - those that libtorch has made current
 *   <li>{@link org.djlx.nativeops.cuda.GpuLink} - two of them
 *   <li>{@link org.djlx.nativeops.cuda.GpuTopology} - all of a host's
 *   <li>{@link org.djlx.nativeops.cuda.KernelArguments} - what it is launched with
 *   <li>{@link org.djlx.nativeops.cuda.KernelCache} - keeps what was compiled in files
 *   <li>{@link org.djlx.nativeops.cuda.KernelCompiler} - compiles it for the GPU at hand
 *   <li>{@link org.djlx.nativeops.cuda.KernelSource} - a source with what it includes
 *   <li>{@link org.djlx.nativeops.cuda.KernelStruct} - an argument of several members, kept from
 *       launch to launch
 *   <li>{@link org.djlx.nativeops.cuda.LaunchSize} - how many blocks and threads
 *   <li>{@link org.djlx.nativeops.cuda.MatrixLayout} - where the elements of a matrix lie
 *   <li>{@link org.djlx.nativeops.cuda.TensorMap} - a member of it that tells the copy engine how a
 *       tensor lies
 * </ul>
 */
package org.djlx.nativeops.cuda;
