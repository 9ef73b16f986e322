/**
 * The only package that touches native code: libtorch through its stable C interface, memory that
 * arrays can be views of, the CUDA driver and run-time compiler, how GPUs are linked, and which
 * native libraries this machine has.
 *
 * <p>Nothing here needs a GPU to load. {@link org.djlx.nativeops.NativeLibrary} says what is
 * available and, where something is not, why. A wrong argument is an {@link
 * java.lang.IllegalArgumentException}; a failure inside a native library an {@link
 * ai.djl.engine.EngineException}, which for CUDA's is a {@link org.djlx.nativeops.CudaException}.
 */
package org.djlx.nativeops;
