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
 * org.djlx.nativeops.torch.Torch}.
 *
 * <ul>
 *   <li>{@code AotiTensor} - binds the ABI's functions that every operation calls; {@code
 *       src/main/java22} has the variant for Java 22 and newer
 *   <li>{@link org.djlx.nativeops.torch.AotiTorch} - binds the ABI's other functions
 *   <li>{@code AotiTorchCuda} - binds the ABI's CUDA functions
 *   <li>{@link org.djlx.nativeops.torch.ArrayBytes} - the bytes of arrays of all types
 *   <li>{@link org.djlx.nativeops.torch.BlockMath} - RMSNorm and gated activations
 *   <li>{@link org.djlx.nativeops.torch.CudaStreamGuard} - makes a stream libtorch's current one
 *   <li>{@link org.djlx.nativeops.torch.HalfBits} - rounds float32 to 16-bit types
 *   <li>{@link org.djlx.nativeops.torch.InstalledTorch} - lets DJL run on the PyTorch of a Python
 *   <li>{@link org.djlx.nativeops.torch.NoGradient} - runs code without recording gradients
 *   <li>{@link org.djlx.nativeops.torch.PackedSequences} - the lengths of sequences for attention
 *   <li>{@link org.djlx.nativeops.torch.ScalarType} - the element types
 *   <li>{@link org.djlx.nativeops.torch.TensorHold} - a reference to the storage of an array
 *   <li>{@link org.djlx.nativeops.torch.TensorInfo} - type, sizes, strides and address of an array
 *   <li>{@link org.djlx.nativeops.torch.TensorTemplate} - creates arrays with prepared arguments
 *   <li>{@link org.djlx.nativeops.torch.Torch} - properties and operators of arrays
 *   <li>{@link org.djlx.nativeops.torch.TorchArguments} - the arguments of an operator written in
 *       Java
 *   <li>{@link org.djlx.nativeops.torch.TorchChecks} - checks arguments before they reach libtorch
 *   <li>{@link org.djlx.nativeops.torch.TorchInPlace} - in-place operators
 *   <li>{@link org.djlx.nativeops.torch.TorchLibrary} - defines operators in Java
 * </ul>
 */
package org.djlx.nativeops.torch;
