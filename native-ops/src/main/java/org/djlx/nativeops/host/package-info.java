// SPDX-License-Identifier: Apache-2.0
/**
 * Memory, files, threads and processes of the host: shared memory, mapped files, file descriptors
 * and thread binding.
 *
 * <ul>
 *   <li>{@link AtomicBuffer} - atomic words in shared memory, with futex
 *   <li>{@link AtomicFile} - a file that is renamed when it is complete
 *   <li>{@link CallingThread} - state of a thread that calls native code
 *   <li>{@link CopyQueue} - a queue of copies between GPUs
 *   <li>{@link CpuKernels} - the kernels of decode steps on a CPU
 *   <li>{@link Deadline} - when a timeout expires
 *   <li>{@link Descriptor} - an owned file descriptor
 *   <li>{@link DescriptorChannel} - passes file descriptors between processes
 *   <li>{@link Durations} - formats durations for messages
 *   <li>{@link FailureText} - the text of a user's exception
 *   <li>{@link FileWrites} - errors of writes that name the file
 *   <li>{@link Flock} - a lock between threads and processes, also with programs in Python
 *   <li>{@link HostCopier} - copies between Java arrays and addresses
 *   <li>{@link LibC} - functions of the C library
 *   <li>{@link LongCalls} - threads for calls that may wait for other ranks or GPUs
 *   <li>{@link MappedFile} - a read-only mapping of a file
 *   <li>{@link NativeCalls} - counts a thread's native calls
 *   <li>{@link NativeMemory} - reference-counted off-heap memory
 *   <li>{@link ProcessExit} - control over the end of the process
 *   <li>{@link Required} - checks of arguments
 *   <li>{@link Scratch} - a thread's memory for results of C functions
 *   <li>{@link SharedMemory} - memory shared by processes
 *   <li>{@link ThreadBinding} - binds threads to cores
 * </ul>
 */
package org.djlx.nativeops.host;
