// SPDX-License-Identifier: Apache-2.0
/**
 * Memory, files, threads and processes of the host: shared memory, mapped files, file descriptors
 * and thread binding.
 *
 * <ul>
 *   <li>{@link org.djlx.nativeops.host.AtomicBuffer} - atomic words in shared memory, with futex
 *   <li>{@link org.djlx.nativeops.host.AtomicFile} - a file that is renamed when it is complete
 *   <li>{@link org.djlx.nativeops.host.CallingThread} - state of a thread that calls native code
 *   <li>{@link org.djlx.nativeops.host.CopyQueue} - a queue of copies between GPUs
 *   <li>{@link org.djlx.nativeops.host.CpuKernels} - the kernels of decode steps on a CPU
 *   <li>{@link org.djlx.nativeops.host.Deadline} - when a timeout expires
 *   <li>{@link org.djlx.nativeops.host.Descriptor} - an owned file descriptor
 *   <li>{@link org.djlx.nativeops.host.DescriptorChannel} - passes file descriptors between
 *       processes
 *   <li>{@link org.djlx.nativeops.host.Durations} - formats durations for messages
 *   <li>{@link org.djlx.nativeops.host.FailureText} - the text of a user's exception
 *   <li>{@link org.djlx.nativeops.host.FileWrites} - errors of writes that name the file
 *   <li>{@link org.djlx.nativeops.host.HostCopier} - copies between Java arrays and addresses
 *   <li>{@link org.djlx.nativeops.host.LibC} - functions of the C library
 *   <li>{@link org.djlx.nativeops.host.LongCalls} - threads for calls that may wait for other ranks
 *       or GPUs
 *   <li>{@link org.djlx.nativeops.host.MappedFile} - a read-only mapping of a file
 *   <li>{@link org.djlx.nativeops.host.NativeCalls} - counts a thread's native calls
 *   <li>{@link org.djlx.nativeops.host.NativeMemory} - reference-counted off-heap memory
 *   <li>{@link org.djlx.nativeops.host.ProcessExit} - control over the end of the process
 *   <li>{@link org.djlx.nativeops.host.ProcessLock} - a lock between processes
 *   <li>{@link org.djlx.nativeops.host.Required} - checks arguments for null
 *   <li>{@link org.djlx.nativeops.host.Scratch} - a thread's memory for results of C functions
 *   <li>{@link org.djlx.nativeops.host.SharedMemory} - memory shared by processes
 *   <li>{@link org.djlx.nativeops.host.ThreadBinding} - binds threads to cores
 * </ul>
 */
package org.djlx.nativeops.host;
