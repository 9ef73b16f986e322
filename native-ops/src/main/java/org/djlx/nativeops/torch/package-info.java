// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * BufferOfArray    finds the Java buffer that holds an array's elements
 * Extents          overflow-checked arithmetic on sizes and strides
 * GradientSlot     access to a leaf's gradient
 * MemoryView       an array that is a view of NativeMemory
 * Tensors          reads and checks properties of tensors
 * TorchCuda        whether this libtorch can use GPUs
 * TorchDispatcher  calls operators by name
 * TorchKernelCode  machine code between libtorch and a kernel in Java
 * TorchSchema      an operator's name and argument types
 */
/**
 * libtorch through its stable C ABI ({@code aoti_torch_*}): properties and operators of DJL's
 * arrays that DJL does not offer, and TorchScript operators written in Java. Start with {@link
 * Torch}.
 *
 * <ul>
 *   <li>{@code AotiTensor} - binds the ABI's functions that every operation calls; {@code
 *       src/main/java22} has the variant for Java 22 and newer
 *   <li>{@link AotiTorch} - binds the ABI's other functions
 *   <li>{@code AotiTorchCuda} - binds the ABI's CUDA functions
 *   <li>{@link ArrayBytes} - the bytes of arrays of all types
 *   <li>{@link BlockMath} - RMSNorm and gated activations
 *   <li>{@link CudaStreamGuard} - makes a stream libtorch's current one
 *   <li>{@link HalfBits} - rounds float32 to 16-bit types
 *   <li>{@link InstalledTorch} - lets DJL run on the PyTorch of a Python
 *   <li>{@link NoGradient} - runs code without recording gradients
 *   <li>{@link PackedSequences} - the lengths of sequences for attention
 *   <li>{@link ScalarType} - the element types
 *   <li>{@link TensorHold} - a reference to the storage of an array
 *   <li>{@link TensorInfo} - type, sizes, strides and address of an array
 *   <li>{@link TensorTemplate} - creates arrays with prepared arguments
 *   <li>{@link Torch} - properties and operators of arrays
 *   <li>{@link TorchArguments} - the arguments of an operator written in Java
 *   <li>{@link TorchChecks} - checks arguments before they reach libtorch
 *   <li>{@link TorchInPlace} - in-place operators
 *   <li>{@link TorchLibrary} - defines operators in Java
 * </ul>
 */
package org.djlx.nativeops.torch;
