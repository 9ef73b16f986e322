/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * BufferOfArray    the Java buffer below an array of DJL
 * Extents          arithmetic on sizes and strides
 * GradientSlot     where a tensor keeps its gradient
 * MemoryView       an array that is a view of NativeMemory
 * Tensors          the properties of tensors, and whether several fit
 * TorchCuda        whether this libtorch can use GPUs
 * TorchDispatcher  calls operators by name
 * TorchKernelCode  the instructions between libtorch and a kernel in Java
 * TorchSchema      an operator's name and the types of its arguments
 */
/**
 * libtorch through its stable C ABI ({@code aoti_torch_*}): properties of DJL's arrays that DJL
 * does not show, further operators, and operators for TorchScript written in Java.
 *
 * <ul>
 *   <li>{@link org.djlx.nativeops.torch.AotiTorch} - the functions
 *   <li>{@link org.djlx.nativeops.torch.AotiTorchCuda} - those for CUDA
 *   <li>{@link org.djlx.nativeops.torch.CudaStreamGuard} - makes a stream libtorch's current one
 *   <li>{@link org.djlx.nativeops.torch.HalfBits} - the bits of 16-bit numbers
 *   <li>{@link org.djlx.nativeops.torch.HeldArrays} - references to the storage of several arrays
 *   <li>{@link org.djlx.nativeops.torch.NoGradient} - runs code without recording gradients
 *   <li>{@link org.djlx.nativeops.torch.ScalarType} - the element types
 *   <li>{@link org.djlx.nativeops.torch.TensorHold} - keeps an array's storage alive
 *   <li>{@link org.djlx.nativeops.torch.TensorInfo} - what is known of an array, asked for at once
 *   <li>{@link org.djlx.nativeops.torch.Torch} - what DJL does not show of its arrays, and further
 *       operators
 *   <li>{@link org.djlx.nativeops.torch.TorchArguments} - what such an operator is called with
 *   <li>{@link org.djlx.nativeops.torch.TorchChecks} - checks of arrays, managers and devices
 *       before libtorch sees them
 *   <li>{@link org.djlx.nativeops.torch.TorchInPlace} - operators that change an array in place
 *   <li>{@link org.djlx.nativeops.torch.TorchLibrary} - defines operators that TorchScript calls,
 *       in Java
 * </ul>
 */
package org.djlx.nativeops.torch;
