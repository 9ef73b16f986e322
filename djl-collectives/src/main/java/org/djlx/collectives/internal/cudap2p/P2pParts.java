// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import com.google.gson.Gson;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.List;
import java.util.OptionalDouble;
import java.util.Set;
import org.djlx.collectives.internal.host.HostSync;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaException;
import org.djlx.nativeops.cuda.CudaStream;
import org.djlx.nativeops.cuda.GpuRates;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The parts of a {@link P2p} while it is being set up: a rank's memory and kernels, and what the
 * ranks agree on. The ranks exchange the results of each step.
 */
final class P2pParts {

    private static final Logger logger = LoggerFactory.getLogger(P2pParts.class);
    private static final Gson GSON = new Gson();

    // Sizes of the copy that measures a link. The start of a smaller copy dominates its time.
    private static final long MOST_LINK_BYTES = 32 << 20;
    private static final long LEAST_LINK_BYTES = 1 << 20;

    final P2pRegion region; // null if there is none
    final HostSync hosts; // null if there is no region
    WaitStatus waits;
    AllReduceKernels kernels;
    ExchangeKernels exchanges;
    SignalKernels signals;
    final RegionHandshake.Place place; // null if there is no region
    int kernelBlocks; // most blocks of a waiting kernel; 0 if the GPUs differ
    int processors; // of this GPU
    private int sharing; // ranks of this group on a GPU
    GpuRates gpuRates; // null if unknown
    boolean allCompareNccl;
    OptionalDouble linkRate = OptionalDouble.empty();

    P2pParts(RegionHandshake.Outcome outcome) {
        region = outcome.region();
        hosts = outcome.hosts();
        place = outcome.place();
    }

    /**
     * Returns the most blocks of a waiting kernel while several groups share the GPU; {@code
     * ofOwnGpu} if each rank of this group has its own GPU.
     */
    int waitingBlocks(int ofOwnGpu) {
        int ranks = place.turn().ranksOnGpu();
        if (ranks <= sharing) {
            return Integer.MAX_VALUE;
        }
        return sharing == 1 ? ofOwnGpu : P2pParts.waitingBlocks(processors, ranks);
    }

    /** Loads all kernels before any runs because a load may wait for running kernels. */
    void loadKernels(CudaDevice device) {
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        SignalKernels.prepare(device, compiler); // in parallel to the all-reduces
        ExchangeKernels.prepare(device, compiler, region.ranks());
        waits = new WaitStatus(device, region.rank());
        kernels = new AllReduceKernels(region, device, waits, compiler);
        exchanges = new ExchangeKernels(region, device, waits, compiler, kernels);
        signals = new SignalKernels(region, device, waits, compiler);
    }

    /** Drops kernels that another rank cannot run: NCCL runs those cases on all ranks. */
    void agreeOnKernels(GroupContext context) {
        Set<String> own = kernels.names();
        own.addAll(exchanges.names());
        Set<String> common = RegionHandshake.common(context, "p2p-kernel-names", own);
        kernels.retain(common);
        exchanges.retain(common);
        own.removeAll(common);
        if (!own.isEmpty()) {
            logger.info(
                    "rank {} of group '{}' does not use kernels {}: another rank cannot run"
                            + " them",
                    context.rank(),
                    context.name(),
                    own);
        }
    }

    /** Agrees on the most blocks of a kernel that waits for peers, and on the GPUs' rates. */
    void compareGpus(GroupContext context, CudaDevice device, boolean comparesNccl) {
        boolean buffers = region.layout().bufferSize() > 0;
        processors = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT);
        Gpu own =
                new Gpu(
                        device.architecture(),
                        processors,
                        device.pciBusId(),
                        buffers ? GpuRates.of(device).orElse(null) : null,
                        linkRate(device),
                        comparesNccl);
        List<Gpu> gpus =
                context
                        .exchange("p2p-gpus", GSON.toJson(own).getBytes(StandardCharsets.UTF_8))
                        .stream()
                        .map(json -> new String(json, StandardCharsets.UTF_8))
                        .map(json -> GSON.fromJson(json, Gpu.class))
                        .toList();
        List<String> buses = gpus.stream().map(Gpu::bus).toList();
        sharing = buses.stream().mapToInt(bus -> Collections.frequency(buses, bus)).max().orElse(1);
        int blocks = P2pParts.waitingBlocks(gpus, sharing);
        if (sharing > 1) {
            kernels.shareGpu(blocks, fixedBlocks(gpus), () -> waitingBlocks(Integer.MAX_VALUE));
        }
        kernelBlocks = Gpu.areAlike(gpus) && buffers ? blocks : 0;
        gpuRates = Gpu.slowest(gpus);
        allCompareNccl = gpus.stream().allMatch(Gpu::comparesNccl);
        double slowest = gpus.stream().mapToDouble(Gpu::linkRate).min().orElseThrow();
        if (slowest > 0 && sharing == 1) {
            linkRate = OptionalDouble.of(slowest);
        }
    }

    /**
     * Measures the rate of copies from this rank's buffer to the next rank's, in GB/s. Returns 0
     * for one rank, if the buffer is too small to measure, and if a copy fails: the other ranks
     * wait for the rate, and can do without it.
     */
    private double linkRate(CudaDevice device) {
        long bytes = Math.min(MOST_LINK_BYTES, region.layout().bufferSize());
        if (region.ranks() == 1 || bytes < LEAST_LINK_BYTES) {
            return 0;
        }
        long buffer = region.layout().buffer();
        long from = region.address(region.rank()) + buffer;
        long to = region.address((region.rank() + 1) % region.ranks()) + buffer;
        try (CudaStream stream = CudaStream.create(device)) {
            double seconds = GpuRates.seconds(stream, () -> stream.copyAsync(to, from, bytes));
            return bytes / seconds / 1e9;
        } catch (CudaException e) {
            logger.info("cannot measure the links of {}: {}", device, e.toString());
            return 0;
        }
    }

    void close() {
        if (place != null) {
            place.leave();
        }
        for (AutoCloseable part : new AutoCloseable[] {signals, exchanges, kernels, waits}) {
            closePart(part);
        }
        if (region != null) {
            RetiredRegions.add(region, hosts, () -> {});
        }
    }

    private static void closePart(AutoCloseable part) {
        try {
            if (part != null) {
                part.close();
            }
        } catch (Exception e) {
            logger.warn("cannot free a part of a group that has no P2P memory", e);
        }
    }

    /**
     * Returns the maximum number of blocks that each rank may launch of a kernel that waits for
     * peers, if each block takes an SM. If ranks share a GPU, half of its SMs stay free while all
     * ranks except one wait. Reason: cuBLAS launches clusters of eight blocks that fill an SM each,
     * and a cluster starts only when eight SMs of one GPC are free. With half of the SMs free, some
     * GPC of a Hopper GPU has eight free SMs, wherever the waiting blocks are.
     *
     * @param sharing the ranks that share it, 1 if each rank has its own
     */
    static int waitingBlocks(int processors, int sharing) {
        return sharing == 1 ? processors : Math.max(1, processors / (2 * (sharing - 1)));
    }

    private static int waitingBlocks(List<Gpu> gpus, int sharing) {
        return gpus.stream()
                .mapToInt(gpu -> waitingBlocks(gpu.processors, sharing))
                .min()
                .orElseThrow();
    }

    /**
     * Returns the blocks of a kernel that needs the same number at all times and on all ranks,
     * which share these GPUs: other groups may join up to the most ranks that a GPU can have.
     */
    static int fixedBlocks(List<Gpu> gpus) {
        return waitingBlocks(gpus, RegionHandshake.MOST_SHARING);
    }

    /**
     * The GPU of a rank.
     *
     * @param rates null if unknown
     * @param linkRate the rate of copies to the next rank's GPU, in GB/s; 0 if unknown
     * @param comparesNccl whether the rank can compare its all-reduces with NCCL's, and is to
     */
    record Gpu(
            String architecture,
            int processors,
            String bus,
            GpuRates rates,
            double linkRate,
            boolean comparesNccl) {

        static boolean areAlike(List<Gpu> gpus) {
            return gpus.stream()
                            .map(gpu -> gpu.architecture + " " + gpu.processors)
                            .distinct()
                            .count()
                    == 1;
        }

        /** Returns the lowest rates; null if a GPU has none, or the GPUs are of several kinds. */
        static GpuRates slowest(List<Gpu> gpus) {
            if (gpus.stream().anyMatch(gpu -> gpu.rates == null)
                    || gpus.stream().map(gpu -> gpu.rates.gpu()).distinct().count() > 1) {
                return null;
            }
            return gpus.stream()
                    .map(Gpu::rates)
                    .reduce(
                            (a, b) ->
                                    new GpuRates(
                                            a.gpu(),
                                            Math.min(a.multiprocessors(), b.multiprocessors()),
                                            Math.min(a.teraflops(), b.teraflops()),
                                            Math.min(
                                                    a.gigabytesPerSecond(),
                                                    b.gigabytesPerSecond())))
                    .orElseThrow();
        }
    }
}
