// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.path;

import ai.djl.ndarray.NDArray;
import java.util.Collection;
import java.util.Map;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.p2p.OneShotSlots;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.fusedops.kernel.KernelLauncher;
import org.djlx.fusedops.kernel.OneShotLaunch;
import org.djlx.fusedops.kernel.RankOrderReducer;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.KernelStruct;
import org.djlx.nativeops.cuda.LaunchSize;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Launches the kernels of {@code gathered.cu}: all-gather and reduce-scatter between GPUs with peer
 * access to each other. An operation is one launch, or several if the data does not fit into a
 * slot. No barrier is needed, not even in graphs. Not thread-safe: call its methods in the order of
 * the group's operations.
 */
public final class GatheredExchange implements KernelLauncher {

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "gathered/gathered.cu");
    private static final int THREADS = new KernelConstants(SOURCE).value("GATHERED_THREADS");
    private static final int PACK = 16; // bytes
    private static final int MAX_LAUNCHES = 8; // per operation; options may make slots small

    private final CurrentStreams streams;
    private final CudaModule module;
    private final CudaKernel gather;
    private final Map<ScalarType, CudaKernel> scatters;
    private final KernelArguments arguments = new KernelArguments();
    private final OneShotLaunch launch = new OneShotLaunch();
    private final int processors;
    private final int perProcessor; // resident thread blocks

    /** Returns the kernels of a group, which must be {@linkplain #isPossible possible}. */
    public static GatheredExchange of(Compute compute) {
        return compute.launcher(GatheredExchange.class, GatheredExchange::new).orElseThrow();
    }

    private GatheredExchange(
            CudaDevice device, CurrentStreams streams, KernelCompiler compiler, int worldSize) {
        this.streams = streams;
        module = compiler.load(device, SOURCE, "-DRANKS=" + worldSize);
        gather = module.kernel("all_gather");
        scatters = module.kernels("reduce_scatter");
        processors = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
        perProcessor = Math.min(blocks(gather), blocks(scatters.values()));
    }

    private static int blocks(Collection<CudaKernel> kernels) {
        return kernels.stream().mapToInt(GatheredExchange::blocks).min().orElse(1);
    }

    private static int blocks(CudaKernel kernel) {
        return kernel.maxBlocksPerMultiprocessor(THREADS, 0);
    }

    /**
     * Returns whether the kernels can exchange an array, without compiling them; the same on all
     * ranks, because GPUs with one-shot slots have the same architecture. Elements arrive bit for
     * bit, except that a NaN of all ones arrives as another NaN.
     */
    public static boolean isPossible(
            Compute compute, P2pBuffers buffers, ScalarType type, long byteSize) {
        long slot = buffers.oneShotSlots().map(OneShotSlots::slot).orElse(0L);
        return slot > 0
                && compute.cuda()
                        .filter(device -> RankOrderReducer.isSupported(device, type))
                        .isPresent()
                && byteSize % PACK == 0
                && byteSize <= MAX_LAUNCHES * slot;
    }

    /** Returns whether a shard's address is aligned for the kernel. */
    public static boolean isUsable(long address) {
        return address % PACK == 0;
    }

    /**
     * Enqueues an all-gather on the current stream, within the operation.
     *
     * @param shard the address of this rank's shard, {@linkplain #isUsable aligned}
     * @param byteSize its size, {@linkplain #isPossible possible} for the kernels
     * @param gathered the address of the output: all shards, contiguous in rank order
     */
    public void gather(
            Operation operation,
            P2pBuffers buffers,
            long shard,
            long byteSize,
            long gathered,
            NDArray... used) {
        OneShotSlots slots = buffers.oneShotSlots().orElseThrow();
        KernelStruct struct = launch.of(slots, buffers.rank(), operation.timeout());
        try (P2pStream current = buffers.currentStream(operation)) {
            for (long done = 0; done < byteSize; done += slots.slot()) {
                long packs = Math.min(slots.slot(), byteSize - done) / PACK;
                arguments.clear().add(shard + done).add(packs).add(struct);
                arguments.add(gathered + done).add(byteSize / PACK);
                gather.launch(streams.get(), size(buffers, slots, packs), arguments);
            }
            current.keepAlive(used);
        }
    }

    /**
     * Enqueues a reduce-scatter on the current stream, within the operation.
     *
     * @param parts the address of the parts, one for each rank, contiguous in rank order
     * @param byteSize the size of a part, {@linkplain #isPossible possible} for the kernels
     * @param op SUM, or AVG to divide the sum by the number of ranks
     */
    public void scatter(
            Operation operation,
            P2pBuffers buffers,
            ScalarType type,
            long parts,
            long byteSize,
            long sum,
            ReduceOp op,
            NDArray... used) {
        OneShotSlots slots = buffers.oneShotSlots().orElseThrow();
        KernelStruct struct = launch.of(slots, buffers.rank(), operation.timeout());
        float divisor = op == ReduceOp.AVG ? buffers.worldSize() : 1;
        try (P2pStream current = buffers.currentStream(operation)) {
            for (long done = 0; done < byteSize; done += slots.slot()) {
                long part = Math.min(slots.slot(), byteSize - done);
                arguments.clear().add(parts + done).add(part / type.itemSize()).add(struct);
                arguments.add(sum + done).add(byteSize / type.itemSize()).add(divisor);
                scatters.get(type)
                        .launch(streams.get(), size(buffers, slots, part / PACK), arguments);
            }
            current.keepAlive(used);
        }
    }

    /**
     * All thread blocks must be resident at the same time: they wait for the other ranks' blocks,
     * which may run on the same GPU.
     */
    private LaunchSize size(P2pBuffers buffers, OneShotSlots slots, long packs) {
        int alone = slots.blocks() < processors ? slots.blocks() : perProcessor * processors;
        int most = Math.min(alone, buffers.waitingBlocks());
        return LaunchSize.of((int) Math.min(most, (packs + THREADS - 1) / THREADS), THREADS);
    }

    @Override
    public void close() {
        module.close();
    }
}
