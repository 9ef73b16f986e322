// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.kernel;

import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelCompiler;

/** Launches the kernels of one CUDA source on one rank's GPU. {@link Compute#launcher} keeps it. */
public interface KernelLauncher extends AutoCloseable {

    @FunctionalInterface
    interface Factory<T extends KernelLauncher> {

        /** Compiles the kernels, or takes them from the cache, for a number of ranks. */
        T create(CudaDevice device, CurrentStreams streams, KernelCompiler compiler, int worldSize);
    }

    @Override
    void close();
}
