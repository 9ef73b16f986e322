// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import ai.djl.Device;
import ai.djl.util.Progress;
import java.time.Duration;
import java.util.List;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.ops.KvCache;
import org.djlx.llm.ops.ModelKernels;
import org.djlx.nativeops.host.Required;

/**
 * The checked options of a {@link TextEngine}; its builder describes them.
 *
 * @param group the group in which this process is a rank; null if ranks are threads
 * @param devices the GPUs of ranks that are threads; empty for CPU ranks
 * @param cacheBytes the size of the KV cache on each rank; 0 to take {@code memoryUtilization} of
 *     what the device has left
 * @param progress may be null
 */
record GeneratorSettings(
        Quantization quantization,
        ProcessGroup group,
        List<Device> devices,
        int cpuRanks,
        int maxLength,
        int maxRunning,
        int maxQueued,
        long cacheBytes,
        double memoryUtilization,
        boolean prefixCaching,
        boolean batchInvariant,
        int prefillTokens,
        Duration timeout,
        Progress progress) {

    /** Checks the options of a builder, and sets the defaults that depend on the model. */
    static GeneratorSettings of(TextEngine.Builder builder, ModelConfig config) {
        if (builder.devices == null || builder.timeout == null) {
            throw new IllegalArgumentException("the devices or the timeout are null");
        }
        int cpuRanks = builder.ranks == null ? 1 : builder.ranks;
        checkPositive("ranks", cpuRanks);
        checkPositive("maxRunning", builder.maxRunning);
        checkPositive("maxQueued", builder.maxQueued);
        checkPositive("prefillTokens", builder.prefillTokens);
        for (Device device : builder.devices) {
            Required.check(
                    device != null && device.isGpu(),
                    "%s is not a GPU; set the number of CPU ranks with optRanks",
                    device);
        }
        ProcessGroup group = builder.group;
        Required.check(
                group == null || builder.ranks == null && builder.devices.isEmpty(),
                "ranks or devices cannot be combined with a process group, which has its own");
        int ranks = ranks(group, builder.devices, cpuRanks);
        config.checkDivisible(ranks);
        int length =
                builder.maxLength == 0
                        ? Math.min(config.maxLength(), TextEngine.DEFAULT_MAX_LENGTH)
                        : builder.maxLength;
        checkPositive("maxLength", length);
        Required.check(
                length <= config.maxLength(),
                "maxLength %d is out of range: the model has at most %d positions",
                length,
                config.maxLength());
        double utilization = builder.memoryUtilization;
        Required.check(
                utilization > 0 && utilization <= 1,
                "gpuMemoryUtilization must be above 0 and at most 1, not %s",
                utilization);
        long blockBytes = KvCache.byteSize(config, ranks, KvCache.BLOCK_TOKENS);
        if (builder.cacheBytes != 0) {
            checkCache(builder.cacheBytes / blockBytes, blockBytes, length);
        }
        GeneratorSettings settings =
                new GeneratorSettings(
                        builder.quantization,
                        group,
                        List.copyOf(builder.devices),
                        cpuRanks,
                        length,
                        builder.maxRunning,
                        builder.maxQueued,
                        builder.cacheBytes,
                        utilization,
                        builder.prefixCaching,
                        builder.batchInvariant,
                        builder.prefillTokens,
                        builder.timeout,
                        builder.progress);
        Required.check(
                settings.quantization != null, "the quantization is null; use Quantization.NONE");
        ModelKernels.check(config, settings.device(), ranks, settings.quantization);
        return settings;
    }

    /**
     * Checks that a KV cache holds a sequence of maximum length: then every request fits that
     * {@link InputProcessor} accepts.
     */
    private static void checkCache(long blocks, long blockBytes, int length) {
        long needed = KvCacheManager.blocks(length);
        if (blocks < needed) {
            throw new IllegalArgumentException(
                    String.format(
                            "a KV cache of %d bytes on each rank is too small: one sequence of"
                                    + " maxLength %d takes %d bytes; lower maxLength, or give the"
                                    + " cache more memory",
                            blocks * blockBytes, length, needed * blockBytes));
        }
    }

    /**
     * Returns the number of KV cache blocks: as many as fit in {@code availableBytes}, or in {@code
     * cacheBytes} if it is not 0, but at most what {@code maxRunning} sequences of maximum length
     * take. Throws if not even one such sequence fits.
     */
    int cacheBlocks(ModelConfig config, long availableBytes) {
        long blockBytes = KvCache.byteSize(config, ranks(), KvCache.BLOCK_TOKENS);
        long ofSequence = KvCacheManager.blocks(maxLength);
        long most = Integer.MAX_VALUE / KvCache.BLOCK_TOKENS;
        if (cacheBytes != 0) {
            return (int) Math.min(most, cacheBytes / blockBytes);
        }
        long blocks = Math.min(ofSequence * maxRunning, availableBytes / blockBytes);
        checkCache(blocks, blockBytes, maxLength);
        return (int) Math.min(most, blocks);
    }

    private static void checkPositive(String name, int value) {
        Required.check(value >= 1, "%s must be 1 or more, not %s", name, value);
    }

    private static int ranks(ProcessGroup group, List<Device> devices, int cpuRanks) {
        return group != null ? group.worldSize() : devices.isEmpty() ? cpuRanks : devices.size();
    }

    int ranks() {
        return ranks(group, devices, cpuRanks);
    }

    boolean isFollower() {
        return group != null && group.rank() > 0;
    }

    boolean isGpu() {
        return device().isGpu();
    }

    Device device() {
        return group != null ? group.device() : devices.isEmpty() ? Device.cpu() : devices.get(0);
    }

    List<ProcessGroup> groups() {
        if (devices.isEmpty()) {
            return ProcessGroups.local("shm", cpuRanks, new BackendOptions(timeout));
        }
        Device[] each = devices.toArray(new Device[0]);
        NcclOptions nccl = NcclOptions.builder().optDevices(each).optTimeout(timeout).build();
        if (each.length == 1) { // It needs neither P2P memory nor a communicator.
            return ProcessGroups.local("nccl", 1, nccl);
        }
        CudaP2pOptions options = CudaP2pOptions.builder().optNcclOptions(nccl).build();
        return ProcessGroups.local("cuda_p2p", each.length, options);
    }
}
