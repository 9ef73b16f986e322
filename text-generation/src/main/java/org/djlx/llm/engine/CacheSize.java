// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import ai.djl.Device;
import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.List;
import org.djlx.collectives.ObjectCollectives;
import org.djlx.collectives.ProcessGroup;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.ops.KvCache;
import org.djlx.llm.ops.TransformerModel;
import org.djlx.nativeops.cuda.CudaDevice;

/** Chooses the size of the KV cache from the memory that the devices have left. */
final class CacheSize {

    private static final long MAX_CPU_BYTES = 2L << 30;

    // CUDA graphs, workspaces of cuBLAS and cuDNN.
    private static final long GPU_LIBRARY_BYTES = 512L << 20;

    private CacheSize() {}

    /**
     * Returns the number of KV cache blocks, the same on all ranks. All ranks call this after they
     * have read their weights.
     *
     * @param mappedBytes the bytes of mapped files that should stay in the host's memory, which
     *     counts them as free
     */
    static int blocks(
            ModelConfig config, GeneratorSettings settings, ProcessGroup group, long mappedBytes) {
        if (settings.cacheBytes() != 0) {
            return settings.cacheBlocks(config, 0);
        }
        String device = "the host";
        if (group.device().isGpu()) {
            try (CudaDevice gpu = CudaDevice.open(group.device())) {
                device = gpu.pciBusId();
            }
        }
        List<String> devices = allGather(group, device); // All ranks have read their weights.
        long available =
                available(
                        config,
                        settings,
                        group.device(),
                        Collections.frequency(devices, device),
                        mappedBytes);
        return settings.cacheBlocks(config, Collections.min(allGather(group, available)));
    }

    /** Returns the ranks' values, in rank order. */
    static <T> List<T> allGather(ProcessGroup group, T own) {
        // One rank does without a communicator.
        return group.worldSize() == 1
                ? List.of(own)
                : new ObjectCollectives(group).allGatherObject(own);
    }

    /** Returns the bytes for the KV cache of a rank; {@code sharing} ranks share the device. */
    private static long available(
            ModelConfig config,
            GeneratorSettings settings,
            Device device,
            int sharing,
            long mappedBytes) {
        double part = settings.memoryUtilization();
        if (device.isGpu()) {
            try (CudaDevice gpu = CudaDevice.open(device)) {
                long workspace =
                        GPU_LIBRARY_BYTES
                                + TransformerModel.activationBytes(
                                        config,
                                        settings.ranks(),
                                        settings.prefillTokens(),
                                        settings.maxLength());
                return (long) (part * (gpu.freeMemory() / sharing - workspace));
            }
        }
        long least =
                KvCacheManager.blocks(settings.maxLength())
                        * KvCache.byteSize(config, settings.ranks(), KvCache.BLOCK_TOKENS);
        long bytes = (long) (part * Math.max(0, hostMemory() - mappedBytes) / sharing);
        return Math.max(least, Math.min(MAX_CPU_BYTES, bytes));
    }

    /** Returns the free memory of the host or the container, less what the heap may still take. */
    private static long hostMemory() {
        OperatingSystemMXBean system =
                (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long available;
        try {
            available =
                    1024
                            * Files.readAllLines(Path.of("/proc/meminfo")).stream()
                                    .filter(line -> line.startsWith("MemAvailable:"))
                                    .mapToLong(line -> Long.parseLong(line.replaceAll("\\D", "")))
                                    .findFirst()
                                    .orElseThrow();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        Runtime runtime = Runtime.getRuntime();
        long heap = runtime.maxMemory() - runtime.totalMemory();
        // In a container the total is its limit.
        return Math.min(available, system.getTotalMemorySize()) - heap;
    }
}
