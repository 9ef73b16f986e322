// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * CublasLtProbe     loads JavaCPP's presets for cuBLASLt
 * CudaPresetsProbe  loads JavaCPP's CUDA presets
 */
/**
 * Which native libraries are available, and why one is not. Each of the packages below wraps one
 * library. Nothing here requires a GPU.
 *
 * <p>A wrong argument is an {@link java.lang.IllegalArgumentException}; a failure in a native
 * library is an {@link ai.djl.engine.EngineException}.
 *
 * <ul>
 *   <li>{@link org.djlx.nativeops.ContextLoader} - lookups that do not depend on the context class
 *       loader
 *   <li>{@link org.djlx.nativeops.CudaProbe} - probes the CUDA driver
 *   <li>{@link org.djlx.nativeops.LibraryProbes} - probes the other libraries
 *   <li>{@link org.djlx.nativeops.LoadedLibraries} - finds libraries that the process has loaded
 *   <li>{@link org.djlx.nativeops.NativeLibrary} - the libraries, and whether each is available
 *   <li>{@link org.djlx.nativeops.NativeVersions} - the versions of the libraries
 * </ul>
 */
package org.djlx.nativeops;
