/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
/* Package-private:
 * CublasLtProbe     loads its part of the presets
 * CudaPresetsProbe  whether JavaCPP's presets do
 */
/**
 * Which native libraries this machine has, why one is missing, and how often they are called. The
 * rooms below wrap one library each; nothing here needs a GPU to load.
 *
 * <p>A wrong argument is an {@link java.lang.IllegalArgumentException}; a failure inside a native
 * library is an {@link ai.djl.engine.EngineException}.
 *
 * <ul>
 *   <li>{@link org.djlx.nativeops.CudaProbe} - whether the driver works
 *   <li>{@link org.djlx.nativeops.LibraryProbes} - how each is found and tried
 *   <li>{@link org.djlx.nativeops.LoadedLibraries} - those that the process has loaded already
 *   <li>{@link org.djlx.nativeops.NativeCalls} - how often a thread has called them
 *   <li>{@link org.djlx.nativeops.NativeLibrary} - which there are and, of those that are not, why
 *   <li>{@link org.djlx.nativeops.NativeVersions} - which versions of them are in use
 * </ul>
 */
package org.djlx.nativeops;
