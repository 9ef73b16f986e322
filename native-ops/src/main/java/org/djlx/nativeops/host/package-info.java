/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/**
 * Memory, files, threads and processes of the host: shared memory, mapped files, file descriptors,
 * thread binding.
 *
 * <ul>
 *   <li>{@link org.djlx.nativeops.host.AtomicBuffer} - words in it that several threads or
 *       processes read and write
 *   <li>{@link org.djlx.nativeops.host.CallingThread} - what is noted for each thread that does
 *   <li>{@link org.djlx.nativeops.host.Descriptor} - a file descriptor
 *   <li>{@link org.djlx.nativeops.host.DescriptorChannel} - passes file descriptors between
 *       processes
 *   <li>{@link org.djlx.nativeops.host.HostCopier} - copies between Java arrays and addresses
 *   <li>{@link org.djlx.nativeops.host.LibC} - functions of the C library
 *   <li>{@link org.djlx.nativeops.host.MappedFile} - a file as memory
 *   <li>{@link org.djlx.nativeops.host.NativeMemory} - memory of any kind, counted by its users
 *   <li>{@link org.djlx.nativeops.host.ProcessExit} - how the process ends
 *   <li>{@link org.djlx.nativeops.host.ProcessLock} - one process at a time
 *   <li>{@link org.djlx.nativeops.host.Scratch} - memory of a thread for results of C functions
 *   <li>{@link org.djlx.nativeops.host.SharedMemory} - memory that processes share
 *   <li>{@link org.djlx.nativeops.host.ThreadBinding} - binds threads to cores
 * </ul>
 */
package org.djlx.nativeops.host;
