/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import java.time.Duration;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.CudaKernel;
import org.djlx.nativeops.CudaModule;
import org.djlx.nativeops.CudaStream;
import org.djlx.nativeops.KernelArguments;
import org.djlx.nativeops.KernelCompiler;
import org.djlx.nativeops.KernelSource;
import org.djlx.nativeops.LaunchSize;
import org.djlx.nativeops.NativeLibrary;

/**
 * Lets streams wait for signals, by the kernel of {@code wait_signals.cu}, which has a deadline and
 * ends when the host says so. For one thread at a time.
 */
final class SignalWaits implements AutoCloseable {

    private static final LaunchSize SIZE = LaunchSize.of(1, RegionLayout.MAX_RANKS);

    private final WaitStatus status;
    private final CudaModule module;
    private final CudaKernel kernel;
    private final KernelArguments arguments = new KernelArguments();

    SignalWaits(CudaDevice device, WaitStatus status, KernelCompiler compiler) {
        this.status = status;
        module = compiler.load(device, source());
        kernel = module.kernel("wait_signals");
    }

    private static KernelSource source() {
        return KernelSource.ofResource(NativeLibrary.class, "wait_signals/wait_signals.cu");
    }

    /** Begins to compile the kernel, while the caller does something else. */
    static void prepare(CudaDevice device, KernelCompiler compiler) {
        compiler.prepare(device, source());
    }

    /** The address of the words by which waits end, and tell who did not come. */
    long status() {
        return status.address();
    }

    /**
     * Enqueues a wait.
     *
     * @param stream where
     * @param words the address of rank 0's word
     * @param distance from one rank's word to the next, in bytes
     * @param ranks a bit for each rank to wait for
     * @param epoch what they raise their words to
     * @param timeout how long to wait
     */
    void enqueue(
            CudaStream stream, long words, long distance, int ranks, int epoch, Duration timeout) {
        arguments
                .clear()
                .add(words)
                .add(distance)
                .add(ranks)
                .add(epoch)
                .add(status.address())
                .add(timeout.toNanos());
        kernel.launch(stream, SIZE, arguments);
    }

    @Override
    public void close() {
        module.close();
    }
}
