// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.nccl;

import ai.djl.Device;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.djlx.collectives.NcclOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.nativeops.cuda.CudaDevice;

/** Chooses the GPU of a rank. */
final class DeviceChoice {

    private DeviceChoice() {}

    /** Returns the device that the parent group or the options specify for a rank. */
    static Optional<Device> given(GroupContext context, NcclOptions options) {
        List<Device> devices = options.devices();
        if (context.device() != null || devices.isEmpty()) {
            return Optional.ofNullable(context.device());
        }
        int rank = context.rank();
        if (devices.size() > 1 && rank >= devices.size()) {
            throw new IllegalArgumentException(
                    ("NcclOptions has %s devices, but no device for rank %s: give one device, or"
                                    + " one for each rank")
                            .formatted(devices.size(), rank));
        }
        return Optional.of(devices.get(devices.size() == 1 ? 0 : rank));
    }

    /** Chooses the device of a rank if the user gave none. */
    static Device choose(GroupContext context, Map<String, String> environment) {
        return Device.gpu(
                index(context.rank(), context.worldSize(), environment, CudaDevice.count()));
    }

    /**
     * Returns 0 if the process sees one GPU, as Slurm shows each task its own. Returns {@code
     * LOCAL_RANK} if {@code RANK} and {@code WORLD_SIZE} match this rank and its world size:
     * torchrun sets the three for each process. Otherwise, for example if ranks are threads,
     * returns the rank modulo the number of GPUs.
     *
     * @throws IllegalArgumentException if {@code LOCAL_RANK} is not the index of a GPU
     */
    static int index(int rank, int worldSize, Map<String, String> environment, int count) {
        if (count == 1) {
            return 0;
        }
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
            throw new IllegalArgumentException(
                    "LOCAL_RANK is not a number: '"
                            + local
                            + "'; set it as torchrun does, or unset it",
                    e);
        }
        if (index < 0 || index >= count) {
            throw new IllegalArgumentException(
                    ("LOCAL_RANK is %s, but this process sees %s GPUs: start at most one process"
                                    + " per GPU, or pass the devices to NcclOptions")
                            .formatted(index, count));
        }
        return index;
    }
}
