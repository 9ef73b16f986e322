/**
 * The only package that touches native code.
 *
 * <p>Nothing here needs a GPU to load. {@link org.djlx.nativeops.NativeLibrary} says what is
 * available and, where something is not, why. A wrong argument is an {@link
 * java.lang.IllegalArgumentException}; a failure inside a native library an {@link
 * ai.djl.engine.EngineException}, which for CUDA's is a {@link org.djlx.nativeops.CudaException}.
 *
 * <p>A plus marks what other modules use; of that, a user names what public classes of theirs take
 * or return. The rest may change at any time.
 *
 * <pre>
 *   libraries
 *   + NativeLibrary         which there are and, of those that are not, why
 *   + NativeVersions        which versions of them are in use
 *   + NativeCalls           how often a thread has called them
 *     CallingThread         what is noted for each thread that does
 *     LibraryProbes         how each is found and tried
 *     LoadedLibraries       those that the process has loaded already
 *     LibC                  functions of the C library
 *   libtorch, through its stable C interface
 *   + Torch                 what DJL does not show of its arrays, and further operators
 *   + TorchInPlace          operators that change an array in place
 *   + ScalarType            the element types
 *     HalfBits              the bits of 16-bit numbers
 *   + TensorInfo            what is known of an array, asked for at once
 *   + TensorHold            keeps an array's storage alive
 *   + NoGradient            runs code without recording gradients
 *   + TorchLibrary          defines operators that TorchScript calls, in Java
 *   + TorchArguments        what such an operator is called with
 *   + CudaStreamGuard       makes a stream libtorch's current one
 *     AotiTorch             the functions
 *     GradientSlot          where a tensor keeps its gradient
 *     AotiTorchCuda         those for CUDA
 *     TorchCuda             whether this libtorch can use GPUs
 *     TorchDispatcher       calls operators by name
 *     TorchKernelCode       the instructions between libtorch and a kernel in Java
 *     TorchSchema           an operator's name and the types of its arguments
 *     TorchChecks           checks of arrays, managers and devices before libtorch sees them
 *     Tensors               the properties of tensors, and whether several fit
 *     Extents               arithmetic on sizes and strides
 *     MemoryView            an array that is a view of NativeMemory
 *     BufferOfArray         the Java buffer below an array of DJL
 *     HeldArrays            references to the storage of several arrays
 *     StreamOrderedRelease  holds arrays until their stream has passed what uses them
 *     Scratch               memory of a thread for results of C functions
 *   memory of the host
 *   + NativeMemory          memory of any kind, counted by its users
 *   + SharedMemory          memory that processes share
 *   + MappedFile            a file as memory
 *   + AtomicBuffer          words in it that several threads or processes read and write
 *   + HostCopier            copies between Java arrays and addresses
 *   + Descriptor            a file descriptor
 *   + DescriptorChannel     passes file descriptors between processes
 *   threads and the process
 *   + ThreadBinding         binds threads to cores
 *   + ProcessExit           how the process ends
 *   CUDA
 *   + CudaDevice            a GPU and its context
 *   + CudaAttribute         what it can be asked
 *   + CudaMemory            memory of GPUs, and of the host for GPUs
 *   + CudaVirtualMemory     memory that is mapped for several GPUs or processes
 *   + CudaStream            a queue of work
 *   + CurrentStreams        those that libtorch has made current
 *   + CudaEvent             a mark in it
 *   + CudaGraph             work that is recorded and launched again
 *   + CudaException         a call that failed
 *     CudaResource          what lives in a context
 *     CudaDriver            how the driver is called
 *     CudaProbe             whether the driver works
 *     CudaPresetsProbe      whether JavaCPP's presets do
 *   matrix products by cuBLASLt
 *   + CublasLt              plans products on one GPU
 *   + CublasLtMatmul        one that is planned
 *   + MatrixLayout          where the elements of a matrix lie
 *     CublasLtHandle        the library and the workspace that products share
 *     CublasLtProbe         loads its part of the presets
 *   kernels
 *   + KernelSource          a source with what it includes
 *   + KernelCompiler        compiles it for the GPU at hand
 *   + KernelCache           keeps what was compiled in files
 *     ProcessLock           one process at a time
 *   + CudaModule            compiled kernels, loaded
 *   + CudaKernel            one of them
 *   + KernelArguments       what it is launched with
 *   + KernelStruct          an argument of several members, kept from launch to launch
 *   + TensorMap             a member of it that tells the copy engine how a tensor lies
 *   + LaunchSize            how many blocks and threads
 *     CachedFile            a file of the cache
 *     Nvrtc                 the compiler's functions
 *   how GPUs are linked
 *   + GpuTopology           all of a host's
 *   + GpuLink               two of them
 *     NvmlLinks             reads the links
 *     Nvml                  the library's functions
 *   NCCL
 *   + NcclCommunicator      one rank of a communicator
 *   + NcclConfig            how it is to work
 *   + NcclGroup             calls that start together
 *   + NcclWindow            memory that all ranks know
 *   + NcclException         a call that failed
 *     Nccl                  the functions
 *     NcclWindowCalls       those for windows, which not every NCCL has
 * </pre>
 */
package org.djlx.nativeops;
