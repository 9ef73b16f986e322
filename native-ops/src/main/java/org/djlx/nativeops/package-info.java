// SPDX-License-Identifier: Apache-2.0
/* Package-private:
 * CudaPresetsProbe  loads JavaCPP's presets for CUDA and cuBLASLt
 */
/**
 * Which native libraries are available, and why one is not. Each of the packages below wraps one
 * library. Nothing here requires a GPU.
 *
 * <p>A wrong argument is an {@link java.lang.IllegalArgumentException}; a failure in a native
 * library is an {@link ai.djl.engine.EngineException}.
 *
 * <ul>
 *   <li>{@link ContextLoader} - lookups that do not depend on the context class loader
 *   <li>{@link CudaProbe} - probes the CUDA driver
 *   <li>{@link LibraryProbes} - probes the other libraries
 *   <li>{@link LoadedLibraries} - finds libraries that the process has loaded
 *   <li>{@link NativeLibrary} - the libraries, and whether each is available
 *   <li>{@link NativeVersions} - the versions of the libraries
 * </ul>
 */
package org.djlx.nativeops;
