// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.internal;

import ai.djl.Device;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;

/** Optimizer kernels of a GPU, on the calling thread's current stream. */
final class GpuUpdates extends FusedUpdates {

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "optimizer/optimizer.cu");
    private static final int THREADS = new KernelConstants(SOURCE).value("OPTIMIZER_THREADS");
    private static final int BLOCKS = 8; // per SM
    private static final int PACK = 4; // elements per thread and load

    private final CudaDevice device;
    private final CudaModule module;
    private final CudaKernel[] kernels; // by the number of states
    private final CurrentStreams streams;
    private final int mostBlocks;
    private final KernelArguments arguments = new KernelArguments();

    /** Compiles and loads the kernels. */
    GpuUpdates(Device gpu) {
        super(gpu);
        device = CudaDevice.open(gpu);
        try {
            mostBlocks = BLOCKS * device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
            module = new KernelCompiler(KernelCache.user()).load(device, SOURCE);
            kernels =
                    new CudaKernel[] {
                        module.kernel("sgd"), module.kernel("momentum"), module.kernel("adam")
                    };
            streams = new CurrentStreams(device);
        } catch (Throwable e) {
            device.close();
            throw e;
        }
    }

    @Override
    void launch(long[] addresses, long size, float[] values, boolean adamW) {
        arguments.clear();
        for (long address : addresses) {
            arguments.add(address);
        }
        arguments.add(size);
        for (float value : values) {
            arguments.add(value);
        }
        if (addresses.length == 4) {
            arguments.add(adamW ? 1 : 0);
        }
        long packs = (size + PACK - 1) / PACK;
        int blocks = (int) Math.min(mostBlocks, (packs + THREADS - 1) / THREADS);
        kernels[addresses.length - 2].launch(
                streams.get(), LaunchSize.of(blocks, THREADS), arguments);
    }

    @Override
    public void close() {
        device.synchronize(); // The last step may still run.
        module.close();
        streams.close();
        device.close();
    }
}
