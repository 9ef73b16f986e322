/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import com.sun.jna.ptr.IntByReference;
import com.sun.jna.ptr.PointerByReference;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;

/** Queries the links of GPUs with NVML. */
final class NvmlLinks {

    /** An upper bound; NVML returns an error after the last link. */
    private static final int MAX_NVLINKS = 64;

    private NvmlLinks() {}

    /** Returns the matrix of links of GPUs, given by their PCI bus ids. */
    static GpuLink[][] query(List<String> busIds) {
        Nvml.check(Nvml.nvmlInit_v2(), "nvmlInit_v2");
        try {
            List<Gpu> gpus = new ArrayList<>();
            for (String busId : busIds) {
                gpus.add(Gpu.read(busId));
            }
            GpuLink[][] links = new GpuLink[gpus.size()][gpus.size()];
            for (int i = 0; i < links.length; i++) {
                links[i][i] = GpuLink.of(GpuLink.Kind.SELF);
                for (int j = 0; j < i; j++) {
                    links[i][j] = link(gpus.get(i), gpus.get(j));
                    links[j][i] = links[i][j];
                }
            }
            return links;
        } finally {
            Nvml.nvmlShutdown();
        }
    }

    /** Returns the best link of two different GPUs. */
    private static GpuLink link(Gpu one, Gpu other) {
        int direct = Collections.frequency(one.remoteGpus, other.busId);
        if (direct > 0) {
            return new GpuLink(GpuLink.Kind.NVLINK, direct);
        }
        int switched = Math.min(one.otherLinks, other.otherLinks);
        if (switched > 0 && hasNvLinkAccess(one, other)) {
            return new GpuLink(GpuLink.Kind.NVSWITCH, switched);
        }
        IntByReference level = new IntByReference();
        Nvml.check(
                Nvml.nvmlDeviceGetTopologyCommonAncestor(one.handle, other.handle, level),
                "nvmlDeviceGetTopologyCommonAncestor");
        return GpuLink.of(commonAncestor(level.getValue()));
    }

    private static boolean hasNvLinkAccess(Gpu one, Gpu other) {
        IntByReference status = new IntByReference();
        int result = Nvml.nvmlDeviceGetP2PStatus(one.handle, other.handle, Nvml.P2P_NVLINK, status);
        return result == Nvml.SUCCESS && status.getValue() == 0;
    }

    /** Translates nvmlGpuTopologyLevel_t. */
    static GpuLink.Kind commonAncestor(int level) {
        return switch (level) {
            case 0 -> GpuLink.Kind.SAME_BOARD;
            case 10 -> GpuLink.Kind.PCIE_SWITCH;
            case 20 -> GpuLink.Kind.PCIE_SWITCHES;
            case 30 -> GpuLink.Kind.HOST_BRIDGE;
            case 40 -> GpuLink.Kind.NUMA_NODE;
            default -> GpuLink.Kind.SYSTEM;
        };
    }

    /**
     * A GPU and the remote ends of its active NVLinks.
     *
     * @param handle the GPU's NVML handle
     * @param busId the GPU's PCI bus id, in NVML's format
     * @param remoteGpus for every NVLink that ends at a GPU, the bus id of that
     * @param otherLinks the number of NVLinks that end at a switch or at a device unknown to NVML;
     *     in virtual machines NVML may not see the switches
     */
    private record Gpu(Pointer handle, String busId, List<String> remoteGpus, int otherLinks) {

        static Gpu read(String busId) {
            PointerByReference found = new PointerByReference();
            Nvml.check(
                    Nvml.nvmlDeviceGetHandleByPciBusId_v2(busId, found),
                    "nvmlDeviceGetHandleByPciBusId of " + busId);
            Pointer handle = found.getValue();
            Memory info = new Memory(Nvml.PCI_INFO_BYTES);
            Nvml.check(Nvml.nvmlDeviceGetPciInfo_v3(handle, info), "nvmlDeviceGetPciInfo");
            String ownId = busId(info);
            List<String> remoteGpus = new ArrayList<>();
            int otherLinks = 0;
            IntByReference value = new IntByReference();
            for (int link = 0; link < MAX_NVLINKS; link++) {
                if (Nvml.nvmlDeviceGetNvLinkState(handle, link, value) != Nvml.SUCCESS) {
                    break;
                }
                if (value.getValue() == 0) {
                    continue;
                }
                if (endsAtGpu(handle, link)
                        && Nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, link, info)
                                == Nvml.SUCCESS) {
                    remoteGpus.add(busId(info));
                } else {
                    otherLinks++;
                }
            }
            return new Gpu(handle, ownId, remoteGpus, otherLinks);
        }

        private static boolean endsAtGpu(Pointer handle, int link) {
            IntByReference type = new IntByReference();
            return Nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link, type) == Nvml.SUCCESS
                    && type.getValue() == Nvml.REMOTE_GPU;
        }

        private static String busId(Pointer pciInfo) {
            return pciInfo.getString(Nvml.PCI_INFO_BUS_ID).toLowerCase(Locale.ROOT);
        }
    }
}
