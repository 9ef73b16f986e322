// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import ai.djl.engine.EngineException;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaMemory;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.host.AtomicBuffer;
import org.djlx.nativeops.host.NativeMemory;

/**
 * Writes test patterns (probes) into the memory of peers and checks them, by the kernels of {@code
 * probe.cu}. Not thread-safe.
 */
final class PeerProbe implements AutoCloseable {

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "signals/probe.cu");
    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final int PACKS = CONSTANTS.value("PROBE_PACKS");
    private static final LaunchSize SIZE = LaunchSize.of(1, CONSTANTS.value("PROBE_THREADS"));

    static final int BYTES = 16 * PACKS;

    private final CudaModule module;
    private final CudaStream stream;
    private final NativeMemory result; // a word of pinned memory
    private final AtomicBuffer wrong; // over the result: the number of wrong packs
    private final KernelArguments arguments = new KernelArguments();

    PeerProbe(CudaDevice device) {
        module = new KernelCompiler(KernelCache.user()).load(device, SOURCE);
        stream = CudaStream.create(device);
        result = CudaMemory.allocatePinned(device, Integer.BYTES);
        wrong = new AtomicBuffer(result, 0, Integer.BYTES);
    }

    /** Writes a probe, and waits until it is written. */
    void write(long address, int seed) {
        arguments.clear().add(address).add(seed);
        module.kernel("write_probe").launch(stream, SIZE, arguments);
        stream.synchronize();
    }

    /** Checks a probe; throws an EngineException if the memory does not hold it. */
    void check(long address, int seed, String failure) {
        wrong.putIntVolatile(0, 0);
        arguments.clear().add(address).add(seed).add(result.address());
        module.kernel("check_probe").launch(stream, SIZE, arguments);
        stream.synchronize();
        int packs = wrong.getIntVolatile(0);
        if (packs > 0) {
            throw new EngineException(
                    String.format("%s: %d of %d bytes are wrong", failure, 16 * packs, BYTES));
        }
    }

    @Override
    public void close() {
        result.close();
        stream.close();
        module.close();
    }
}
