// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * CachedFile            the format of a file of the kernel cache
 * CudaResource          a native object in a GPU's context
 * LinkQuery             finds how GPUs are linked, from NVML and the driver
 * Nvml                  binds NVML
 * Nvrtc                 binds NVRTC
 * PeerDriver            binds the driver's functions for pairs of GPUs
 * StreamOrderedRelease  keeps arrays until a stream has executed the work that uses them
 */
/**
 * The CUDA driver API: devices, memory, streams, events, graphs, kernels compiled with NVRTC,
 * matmuls with cuBLASLt, and the links of GPUs. Start with {@link CudaDevice}.
 *
 * <ul>
 *   <li>{@link CublasLt} - plans matmuls on a GPU
 *   <li>{@link CublasLtMatmul} - a planned matmul
 *   <li>{@link CudaAttribute} - attributes of a GPU
 *   <li>{@link CudaDevice} - a GPU and its primary context
 *   <li>{@link CudaDriver} - calls the driver with the right context
 *   <li>{@link CudaEvent} - an event on a stream
 *   <li>{@link CudaException} - a failed call
 *   <li>{@link CudaGraph} - captured work that is launched many times
 *   <li>{@link CudaKernel} - a kernel of a module
 *   <li>{@link CudaMemory} - allocates GPU memory and pinned host memory
 *   <li>{@link CudaModule} - compiled kernels, loaded onto a GPU
 *   <li>{@link CudaStream} - a stream
 *   <li>{@link CudaVirtualMemory} - memory mapped for several GPUs or processes
 *   <li>{@link CurrentStreams} - libtorch's current streams
 *   <li>{@link GpuLink} - the connection of two GPUs
 *   <li>{@link GpuRates} - the measured rates of a kind of GPU
 *   <li>{@link GpuTopology} - the connections of all GPUs of a host
 *   <li>{@link KernelArguments} - the arguments of a launch
 *   <li>{@link KernelCache} - a cache of compiled kernels
 *   <li>{@link KernelCompiler} - compiles and loads kernels
 *   <li>{@link KernelConstants} - block sizes, structs and tables, read from a kernel source
 *   <li>{@link KernelSource} - a source with the files that it includes
 *   <li>{@link KernelStruct} - a struct argument, reused for many launches
 *   <li>{@link LaunchSize} - grid and thread blocks of a launch
 *   <li>{@link MatrixLayout} - the memory layout of a matrix
 *   <li>{@link TensorMap} - a tensor map (TMA) in a struct argument
 * </ul>
 */
package org.djlx.nativeops.cuda;
