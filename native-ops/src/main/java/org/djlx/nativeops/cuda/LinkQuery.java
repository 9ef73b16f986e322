// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import com.sun.jna.ptr.IntByReference;
import com.sun.jna.ptr.PointerByReference;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.OptionalInt;
import java.util.Set;
import java.util.function.IntSupplier;
import org.djlx.nativeops.NativeLibrary;

/**
 * Finds how GPUs are linked. NVML is asked first. Virtual machines support only a part of NVML: the
 * driver's P2P attributes answer what NVML does not. A query that fails costs its own answer only.
 */
final class LinkQuery {

    /** An upper bound; NVML returns an error after the last link. */
    private static final int MAX_NVLINKS = 64;

    private final Nvml nvml; // null if NVML is not available
    private final PeerDriver driver; // null if the driver is not available
    private final Set<String> unanswered = new LinkedHashSet<>(); // failed queries, with the cause
    private final List<List<String>> undecided = new ArrayList<>(); // pairs, maybe with NVLink

    /** Creates a query of NVML and the driver; null if not available. */
    LinkQuery(Nvml nvml, PeerDriver driver) {
        this.nvml = nvml;
        this.driver = driver;
    }

    static LinkQuery ofHost() {
        return new LinkQuery(
                NativeLibrary.NVML.isAvailable() ? Nvml.load() : null,
                NativeLibrary.CUDA.isAvailable() ? PeerDriver.load() : null);
    }

    /** Returns the topology of GPUs, given by their PCI bus ids; a GPU may occur repeatedly. */
    GpuTopology topology(List<String> busIds) {
        List<String> ids = busIds.stream().map(LinkQuery::normalized).toList();
        List<String> distinct = ids.stream().distinct().toList();
        GpuLink[][] found = distinct.size() > 1 ? links(distinct) : null;
        GpuLink[][] links = new GpuLink[ids.size()][ids.size()];
        for (int i = 0; i < links.length; i++) {
            for (int j = 0; j < links.length; j++) {
                int a = distinct.indexOf(ids.get(i));
                int b = distinct.indexOf(ids.get(j));
                links[i][j] = a == b ? GpuLink.of(GpuLink.Kind.SELF) : found[a][b];
            }
        }
        return new GpuTopology(links, List.copyOf(unanswered));
    }

    /** Returns a PCI bus id as the driver writes it; NVML's has more digits of the domain. */
    private static String normalized(String busId) {
        int end = busId.indexOf(':');
        int domain = Integer.parseInt(busId.substring(0, end), 16);
        return String.format("%04x", domain) + busId.substring(end).toLowerCase(Locale.ROOT);
    }

    private GpuLink[][] links(List<String> busIds) {
        if (nvml == null) {
            unanswered.add("NVML is not available");
        }
        boolean open = nvml != null && works("nvmlInit", nvml::nvmlInit_v2);
        GpuLink[][] links = new GpuLink[busIds.size()][busIds.size()];
        try {
            List<Gpu> gpus = busIds.stream().map(busId -> gpu(busId, open)).toList();
            for (int i = 0; i < links.length; i++) {
                for (int j = 0; j < i; j++) {
                    links[i][j] = link(gpus.get(i), gpus.get(j));
                    links[j][i] = links[i][j];
                }
            }
        } finally {
            if (open) {
                nvml.nvmlShutdown();
            }
        }
        compareRanks(busIds, links);
        return links;
    }

    /** Returns the best link of two different GPUs. */
    private GpuLink link(Gpu one, Gpu other) {
        int direct = Collections.frequency(one.remoteGpus, other.busId);
        if (direct > 0) {
            return new GpuLink(GpuLink.Kind.NVLINK, direct);
        }
        int switched = Math.min(one.otherLinks, other.otherLinks);
        boolean possible = switched > 0 || !one.linksKnown || !other.linksKnown;
        if (possible && hasNvLinkAccess(one, other)) {
            GpuLink.Kind kind = switched > 0 ? GpuLink.Kind.NVSWITCH : GpuLink.Kind.NVLINK;
            return new GpuLink(kind, switched);
        }
        IntByReference level = new IntByReference();
        if (one.handle != null
                && other.handle != null
                && works(
                        "nvmlDeviceGetTopologyCommonAncestor",
                        () ->
                                nvml.nvmlDeviceGetTopologyCommonAncestor(
                                        one.handle, other.handle, level))) {
            return GpuLink.of(commonAncestor(level.getValue()));
        }
        boolean access =
                attribute(PeerDriver.ACCESS_SUPPORTED, one.busId, other.busId).orElse(0) != 0;
        return GpuLink.of(access ? GpuLink.Kind.PEER : GpuLink.Kind.UNKNOWN);
    }

    /** Returns whether NVLink joins two GPUs; the driver answers if NVML does not. */
    private boolean hasNvLinkAccess(Gpu one, Gpu other) {
        IntByReference status = new IntByReference();
        if (one.handle != null
                && other.handle != null
                && works(
                        "nvmlDeviceGetP2PStatus",
                        () ->
                                nvml.nvmlDeviceGetP2PStatus(
                                        one.handle, other.handle, Nvml.P2P_NVLINK, status))) {
            return status.getValue() == 0;
        }
        OptionalInt access = attribute(PeerDriver.ACCESS_SUPPORTED, one.busId, other.busId);
        if (access.orElse(0) == 0) {
            return false;
        }
        // PCIe has no native atomics.
        OptionalInt atomics = attribute(PeerDriver.NATIVE_ATOMIC_SUPPORTED, one.busId, other.busId);
        if (atomics.isEmpty()) {
            undecided.add(List.of(one.busId, other.busId));
        }
        return atomics.orElse(0) != 0;
    }

    /**
     * Decides the pairs whose atomics are unknown: a pair that the driver ranks as fast as some
     * pair with NVLink has NVLink, too.
     */
    private void compareRanks(List<String> busIds, GpuLink[][] links) {
        if (undecided.isEmpty()) {
            return;
        }
        int slowest = -1;
        for (int i = 0; i < links.length; i++) {
            for (int j = 0; j < i; j++) {
                if (links[i][j].isNvLink()) {
                    slowest = Math.max(slowest, rank(busIds.get(i), busIds.get(j)).orElse(-1));
                }
            }
        }
        for (List<String> pair : undecided) {
            if (rank(pair.get(0), pair.get(1)).orElse(Integer.MAX_VALUE) <= slowest) {
                int i = busIds.indexOf(pair.get(0));
                int j = busIds.indexOf(pair.get(1));
                links[i][j] = GpuLink.of(GpuLink.Kind.NVLINK);
                links[j][i] = links[i][j];
            }
        }
    }

    private OptionalInt rank(String one, String other) {
        return attribute(PeerDriver.PERFORMANCE_RANK, one, other);
    }

    /** Returns a P2P attribute of a pair, the smaller one of both directions; empty if unknown. */
    private OptionalInt attribute(int attribute, String one, String other) {
        IntByReference[] values = {new IntByReference(), new IntByReference()};
        boolean known =
                driver != null
                        && works(
                                "cuDeviceGetP2PAttribute",
                                () -> {
                                    int there = attribute(values[0], attribute, one, other);
                                    return there != 0
                                            ? there
                                            : attribute(values[1], attribute, other, one);
                                });
        return known
                ? OptionalInt.of(Math.min(values[0].getValue(), values[1].getValue()))
                : OptionalInt.empty();
    }

    private int attribute(IntByReference value, int attribute, String from, String to) {
        IntByReference source = new IntByReference();
        IntByReference target = new IntByReference();
        int result = driver.cuDeviceGetByPCIBusId(source, from);
        result = result == 0 ? driver.cuDeviceGetByPCIBusId(target, to) : result;
        return result == 0
                ? driver.cuDeviceGetP2PAttribute(
                        value, attribute, source.getValue(), target.getValue())
                : result;
    }

    /** Makes a query; notes a failure, which costs this answer only. */
    private boolean works(String function, IntSupplier query) {
        String cause;
        try {
            int result = query.getAsInt();
            if (result == Nvml.SUCCESS) {
                return true;
            }
            cause = function.startsWith("nvml") ? nvml.nvmlErrorString(result) : "error " + result;
        } catch (LinkageError e) {
            cause = "the library lacks a function";
        }
        unanswered.add(function + ": " + cause);
        return false;
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
     * @param handle the GPU's NVML handle; null if NVML does not know the GPU
     * @param busId the GPU's PCI bus id, {@linkplain #normalized normalized}
     * @param remoteGpus for every NVLink that ends at a GPU, the bus id of that
     * @param otherLinks the number of NVLinks that end at a switch or at a device unknown to NVML;
     *     in virtual machines NVML may not see the switches
     * @param linksKnown whether NVML has answered for all links
     */
    private record Gpu(
            Pointer handle,
            String busId,
            List<String> remoteGpus,
            int otherLinks,
            boolean linksKnown) {}

    private Gpu gpu(String busId, boolean open) {
        PointerByReference found = new PointerByReference();
        if (!open
                || !works(
                        "nvmlDeviceGetHandleByPciBusId",
                        () -> nvml.nvmlDeviceGetHandleByPciBusId_v2(busId, found))) {
            return new Gpu(null, busId, List.of(), 0, false);
        }
        Pointer handle = found.getValue();
        List<String> remoteGpus = new ArrayList<>();
        int otherLinks = 0;
        boolean known = true;
        int[] state = {Nvml.SUCCESS};
        for (int link = 0; link < MAX_NVLINKS && known && state[0] == Nvml.SUCCESS; link++) {
            int number = link;
            IntByReference active = new IntByReference();
            known =
                    works(
                            "nvmlDeviceGetNvLinkState",
                            () -> {
                                state[0] = nvml.nvmlDeviceGetNvLinkState(handle, number, active);
                                // After the last link, NVML refuses the number.
                                boolean end = state[0] == Nvml.INVALID_ARGUMENT;
                                return end ? Nvml.SUCCESS : state[0];
                            });
            if (!known || state[0] != Nvml.SUCCESS || active.getValue() == 0) {
                continue;
            }
            String remote = remoteGpu(handle, link);
            if (remote == null) {
                otherLinks++;
            } else {
                remoteGpus.add(remote);
            }
        }
        return new Gpu(handle, busId, remoteGpus, otherLinks, known);
    }

    /** Returns the bus id of the GPU at the other end of an NVLink; null if NVML shows none. */
    private String remoteGpu(Pointer handle, int link) {
        IntByReference type = new IntByReference();
        Memory info = new Memory(Nvml.PCI_INFO_BYTES);
        boolean isGpu =
                works(
                                "nvmlDeviceGetNvLinkRemoteDeviceType",
                                () -> nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link, type))
                        && type.getValue() == Nvml.REMOTE_GPU;
        return isGpu
                        && works(
                                "nvmlDeviceGetNvLinkRemotePciInfo",
                                () -> nvml.nvmlDeviceGetNvLinkRemotePciInfo_v2(handle, link, info))
                ? normalized(info.getString(Nvml.PCI_INFO_BUS_ID))
                : null;
    }
}
