/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.nccl;

import ai.djl.Device;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.nativeops.cuda.CudaDevice;

/** The GPU of a rank. */
final class DeviceChoice {

    private DeviceChoice() {}

    /**
     * Returns the device of a rank, if it was given: that of the parent group, or one of the
     * options'.
     */
    static Optional<Device> given(GroupContext context, NcclOptions options) {
        List<Device> devices = options.devices();
        if (context.device() != null || devices.isEmpty()) {
            return Optional.ofNullable(context.device());
        }
        int rank = context.rank();
        if (devices.size() > 1 && rank >= devices.size()) {
            throw new IllegalArgumentException(
                    "there are " + devices.size() + " devices, none of them for rank " + rank);
        }
        return Optional.of(devices.get(devices.size() == 1 ? 0 : rank));
    }

    /** Chooses a device for a rank for which none was given. */
    static Device choose(GroupContext context, Map<String, String> environment) {
        return Device.gpu(
                index(context.rank(), context.worldSize(), environment, CudaDevice.count()));
    }

    /**
     * Chooses by {@code LOCAL_RANK} if the environment is that of this very rank, as torchrun sets
     * it for each process; by the rank if the ranks are threads, or nothing is set.
     *
     * @throws IllegalArgumentException if {@code LOCAL_RANK} is not a number of a GPU
     */
    static int index(int rank, int worldSize, Map<String, String> environment, int count) {
        String local = environment.get("LOCAL_RANK");
        boolean process =
                local != null
                        && String.valueOf(rank).equals(environment.get("RANK"))
                        && String.valueOf(worldSize).equals(environment.get("WORLD_SIZE"));
        if (!process) {
            return rank % Math.max(1, count);
        }
        int index;
        try {
            index = Integer.parseInt(local.trim());
        } catch (NumberFormatException e) {
            throw new IllegalArgumentException("LOCAL_RANK is not a number: " + local, e);
        }
        if (index < 0 || index >= count) {
            throw new IllegalArgumentException(
                    "LOCAL_RANK is "
                            + index
                            + ", but CUDA shows "
                            + count
                            + " GPUs to this process: start no more processes on this host than it"
                            + " has GPUs, or give NcclOptions the devices");
        }
        return index;
    }
}
