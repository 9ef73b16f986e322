// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * CachedFile            the format of a file of the kernel cache
 * CublasLtHandle        cuBLASLt's handle and the workspace of its matmuls
 * CudaResource          a native object in a GPU's context
 * LinkQuery             finds how GPUs are linked, from NVML and the driver
 * Nvml                  binds NVML
 * Nvrtc                 binds NVRTC
 * PeerDriver            binds the driver's functions for pairs of GPUs
 * StreamOrderedRelease  keeps arrays until a stream has executed the work that uses them
 */
/**
 * The CUDA driver API: devices, memory, streams, events, graphs, kernels compiled with NVRTC,
 * matmuls with cuBLASLt, and the links of GPUs. Start with {@link
 * org.djlx.nativeops.cuda.CudaDevice}.
 *
 * <ul>
 *   <li>{@link org.djlx.nativeops.cuda.CublasLt} - plans matmuls on a GPU
 *   <li>{@link org.djlx.nativeops.cuda.CublasLtMatmul} - a planned matmul
 *   <li>{@link org.djlx.nativeops.cuda.CudaAttribute} - attributes of a GPU
 *   <li>{@link org.djlx.nativeops.cuda.CudaDevice} - a GPU and its primary context
 *   <li>{@link org.djlx.nativeops.cuda.CudaDriver} - calls the driver with the right context
 *   <li>{@link org.djlx.nativeops.cuda.CudaEvent} - an event on a stream
 *   <li>{@link org.djlx.nativeops.cuda.CudaException} - a failed call
 *   <li>{@link org.djlx.nativeops.cuda.CudaGraph} - captured work that is launched many times
 *   <li>{@link org.djlx.nativeops.cuda.CudaKernel} - a kernel of a module
 *   <li>{@link org.djlx.nativeops.cuda.CudaMemory} - allocates GPU memory and pinned host memory
 *   <li>{@link org.djlx.nativeops.cuda.CudaModule} - compiled kernels, loaded onto a GPU
 *   <li>{@link org.djlx.nativeops.cuda.CudaStream} - a stream
 *   <li>{@link org.djlx.nativeops.cuda.CudaVirtualMemory} - memory mapped for several GPUs or
 *       processes
 *   <li>{@link org.djlx.nativeops.cuda.CurrentStreams} - libtorch's current streams
 *   <li>{@link org.djlx.nativeops.cuda.GpuLink} - the connection of two GPUs
 *   <li>{@link org.djlx.nativeops.cuda.GpuRates} - the measured rates of a kind of GPU
 *   <li>{@link org.djlx.nativeops.cuda.GpuTopology} - the connections of all GPUs of a host
 *   <li>{@link org.djlx.nativeops.cuda.KernelArguments} - the arguments of a launch
 *   <li>{@link org.djlx.nativeops.cuda.KernelCache} - a cache of compiled kernels
 *   <li>{@link org.djlx.nativeops.cuda.KernelCompiler} - compiles and loads kernels
 *   <li>{@link org.djlx.nativeops.cuda.KernelConstants} - block sizes, structs and tables, read
 *       from a kernel source
 *   <li>{@link org.djlx.nativeops.cuda.KernelSource} - a source with the files that it includes
 *   <li>{@link org.djlx.nativeops.cuda.KernelStruct} - a struct argument, reused for many launches
 *   <li>{@link org.djlx.nativeops.cuda.LaunchSize} - grid and thread blocks of a launch
 *   <li>{@link org.djlx.nativeops.cuda.MatrixLayout} - the memory layout of a matrix
 *   <li>{@link org.djlx.nativeops.cuda.TensorMap} - a tensor map (TMA) in a struct argument
 * </ul>
 */
package org.djlx.nativeops.cuda;
