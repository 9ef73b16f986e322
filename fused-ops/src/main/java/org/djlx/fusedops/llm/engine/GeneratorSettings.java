/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llm.engine;

import ai.djl.Device;
import ai.djl.util.Progress;
import java.time.Duration;
import java.util.List;
import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.fusedops.llm.model.KvCache;

/**
 * What a {@link LlamaGenerator} was built with; its builder says what each is.
 *
 * @param group the group of which this process is a rank; null if ranks are threads
 * @param devices the GPUs of ranks that are threads; none for CPU ranks
 * @param cpuRanks how many of these there are
 * @param maxLength the tokens of a sequence
 * @param maxRunning how many sequences run
 * @param maxQueued how many wait
 * @param cacheBlocks the blocks of {@link KvCache#BLOCK_TOKENS} tokens that the cache has
 * @param prefillTokens the tokens of prompts that are read at once
 * @param timeout how long ranks wait for each other
 * @param progress is told of loading; may be null
 */
record GeneratorSettings(
        ProcessGroup group,
        List<Device> devices,
        int cpuRanks,
        int maxLength,
        int maxRunning,
        int maxQueued,
        int cacheBlocks,
        int prefillTokens,
        Duration timeout,
        Progress progress) {

    int ranks() {
        return group != null ? group.worldSize() : devices.isEmpty() ? cpuRanks : devices.size();
    }

    /** Returns the tokens that the cache has room for. */
    int cacheRows() {
        return cacheBlocks * KvCache.BLOCK_TOKENS;
    }

    boolean isFollower() {
        return group != null && group.rank() > 0;
    }

    boolean isGpu() {
        return device().isGpu();
    }

    /** Returns the device of this process's first rank. */
    Device device() {
        return group != null ? group.device() : devices.isEmpty() ? Device.cpu() : devices.get(0);
    }

    List<ProcessGroup> groups() {
        if (devices.isEmpty()) {
            return ProcessGroups.local("shm", cpuRanks, new BackendOptions(timeout));
        }
        Device[] each = devices.toArray(new Device[0]);
        NcclOptions nccl = NcclOptions.builder().optDevices(each).optTimeout(timeout).build();
        CudaP2pOptions options = CudaP2pOptions.builder().optNcclOptions(nccl).build();
        return ProcessGroups.local("cuda_p2p", each.length, options);
    }
}
