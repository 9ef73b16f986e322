// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.kernel;

import ai.djl.ndarray.NDArray;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import org.djlx.collectives.p2p.OneShotSlots;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Launches the kernels of {@code all_reduce_rms_norm.cu} on one rank's GPU: all-reduce, residual
 * and RMSNorm in one kernel, and residual and RMSNorm alone; the norm in the element type or in
 * e4m3. Not thread-safe.
 */
public final class RmsNormKernels implements KernelLauncher {

    /**
     * The largest input of the one-shot kernel, in bytes: 64 rows of 8192 elements in float32. For
     * larger inputs the all-reduce of the group is faster.
     */
    private static final long MOST_EXCHANGED = 2 << 20;

    private static final KernelSource SOURCE =
            KernelSource.ofResource(
                    NativeLibrary.class, "all_reduce_rms_norm/all_reduce_rms_norm.cu");
    private static final KernelConstants CONSTANTS = new KernelConstants(SOURCE);
    private static final KernelConstants.Layout ROWS = CONSTANTS.struct("Rows");
    private static final int MAX_THREADS = CONSTANTS.value("NORM_THREADS");
    private static final int WARP = CONSTANTS.value("WARP");
    private static final int PACK = 16; // bytes
    private static final int MAX_ROW = 47 << 10; // a block has 48 KiB of shared memory on any GPU

    private final CurrentStreams streams;
    private final CudaModule module;
    private final Map<ScalarType, CudaKernel> exchanging;
    private final Map<ScalarType, CudaKernel> adding;
    private final Map<ScalarType, CudaKernel> exchangingToE4m3;
    private final Map<ScalarType, CudaKernel> addingToE4m3;
    private final KernelArguments arguments = new KernelArguments();
    private final OneShotLaunch launch = new OneShotLaunch();

    /** Returns the kernels of a group; empty on the CPU. */
    public static Optional<RmsNormKernels> of(Compute compute) {
        return compute.launcher(RmsNormKernels.class, RmsNormKernels::new);
    }

    /** Compiles the kernels, or takes them from the cache. */
    public RmsNormKernels(
            CudaDevice device, CurrentStreams streams, KernelCompiler compiler, int worldSize) {
        this.streams = streams;
        module = compiler.load(device, SOURCE, ranks(worldSize));
        exchanging = module.kernels("all_reduce_rms_norm");
        adding = module.kernels("add_rms_norm");
        exchangingToE4m3 = module.kernels("all_reduce_rms_norm_e4m3");
        addingToE4m3 = module.kernels("add_rms_norm_e4m3");
    }

    /**
     * Starts compiling the kernels on another thread. The future completes when compilation has
     * ended, even if it failed; the constructor reports the failure.
     */
    public static CompletableFuture<Void> prepare(
            CudaDevice device, KernelCompiler compiler, int worldSize) {
        return compiler.prepare(device, SOURCE, ranks(worldSize));
    }

    private static String ranks(int worldSize) {
        return "-DRANKS=" + worldSize;
    }

    /**
     * The arrays of a call, by address. All are contiguous and have the same rows; the weight has
     * one row.
     *
     * @param newResidual the new residual; may be the partial
     * @param scales of the rows of a norm in e4m3, in float32; 0 for a norm in the element type
     */
    public record Rows(
            long newResidual,
            long norm,
            long scales,
            long partial,
            long residual,
            long weight,
            ScalarType type,
            long rows,
            long hidden) {

        /** Rows whose norm has the element type. */
        public Rows(
                long newResidual,
                long norm,
                long partial,
                long residual,
                long weight,
                ScalarType type,
                long rows,
                long hidden) {
            this(newResidual, norm, 0, partial, residual, weight, type, rows, hidden);
        }
    }

    private static long rowBytes(ScalarType type, long hidden) {
        return (hidden * type.itemSize() + PACK - 1) / PACK * PACK;
    }

    /**
     * Returns whether there is a kernel for a type and a length of rows; the same on GPUs of the
     * same architecture.
     */
    public boolean isSupported(ScalarType type, long hidden) {
        return adding.containsKey(type) && hidden <= MAX_ROW / type.itemSize();
    }

    /** Returns whether there is a kernel that rounds the norm of a type to e4m3. */
    public boolean roundsToE4m3(ScalarType type) {
        return addingToE4m3.containsKey(type);
    }

    /**
     * Returns whether the one-shot kernel takes this number of {@linkplain #isSupported supported}
     * rows; the same on all ranks.
     */
    public boolean exchanges(P2pBuffers buffers, ScalarType type, long rows, long hidden) {
        long most = buffers.oneShotSlots().map(OneShotSlots::slot).orElse(0L);
        return rows <= Math.min(most, MOST_EXCHANGED) / rowBytes(type, hidden);
    }

    /**
     * Enqueues all-reduce, residual and RMSNorm on the current stream, within the operation.
     *
     * @param buffers the group's buffers; the kernel {@linkplain #exchanges takes} the rows
     */
    public void exchange(
            Operation operation, P2pBuffers buffers, Rows of, float epsilon, NDArray... used) {
        OneShotSlots slots = buffers.oneShotSlots().orElseThrow();
        int most = Math.min(slots.blocks(), buffers.waitingBlocks());
        int blocks = (int) Math.min(most, of.rows());
        put(of).add(epsilon).add(launch.of(slots, buffers.rank(), operation.timeout()));
        try (P2pStream current = buffers.currentStream(operation)) {
            LaunchSize size = size(blocks, of);
            (of.scales == 0 ? exchanging : exchangingToE4m3)
                    .get(of.type())
                    .launch(
                            streams.get(),
                            current.isRecorded() ? size.asDependent() : size,
                            arguments);
            current.keepAlive(used);
        }
    }

    /** Enqueues residual and RMSNorm on the current stream. The partial is the all-reduced sum. */
    public void add(Rows of, float epsilon, NDArray... used) {
        CudaStream stream = streams.get();
        int blocks = (int) Math.min(Integer.MAX_VALUE, of.rows());
        put(of).add(epsilon);
        LaunchSize size = size(blocks, of);
        boolean recorded = stream.isCapturing();
        (of.scales == 0 ? adding : addingToE4m3)
                .get(of.type())
                .launch(stream, recorded ? size.asDependent() : size, arguments);
        if (recorded) {
            stream.keepAlive(used);
        }
    }

    private KernelArguments put(Rows of) {
        return arguments
                .clear()
                .addStruct(ROWS)
                .put("new_residual", of.newResidual)
                .put("norm", of.norm)
                .put("partial", of.partial)
                .put("residual", of.residual)
                .put("weight", of.weight)
                .put("rows", of.rows)
                .put("hidden", of.hidden)
                .put("scales", of.scales);
    }

    private static LaunchSize size(int blocks, Rows of) {
        int rowBytes = (int) rowBytes(of.type(), of.hidden());
        int threads = Math.min(MAX_THREADS, (rowBytes / PACK + WARP - 1) / WARP * WARP);
        return LaunchSize.of(blocks, threads).withShared(rowBytes);
    }

    @Override
    public void close() {
        module.close();
    }
}
