// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.jna.Native;
import com.sun.jna.Pointer;
import com.sun.jna.ptr.IntByReference;
import com.sun.jna.ptr.PointerByReference;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The links of GPUs, where each query of NVML and of the driver may fail. */
class LinkQueryTest {

    private static final String ONE = "0000:1b:00.0";
    private static final String TWO = "0001:AC:00.0";
    private static final int NOT_SUPPORTED = 3;
    private static final int SWITCH = 2; // a remote device type of NVML

    private final Host host = new Host();

    /** Two GPUs, as NVML and the driver show them. */
    private static final class Host implements Nvml, PeerDriver {

        final Set<String> failing = new HashSet<>(); // functions that are not supported
        final Set<String> lacking = new HashSet<>(); // functions that the library lacks
        int nvLinks; // of each GPU
        int remoteType = SWITCH;
        int level = 30; // the host bridge
        boolean access = true;
        boolean atomics;
        int rank;
        int calls;
        int users;

        private int result(String function) {
            calls++;
            if (lacking.contains(function)) {
                throw new UnsatisfiedLinkError(function);
            }
            return failing.contains(function) ? NOT_SUPPORTED : SUCCESS;
        }

        @Override
        public String nvmlErrorString(int result) {
            return result == NOT_SUPPORTED ? "Not Supported" : "error " + result;
        }

        @Override
        public int nvmlInit_v2() {
            int result = result("nvmlInit");
            users += result == SUCCESS ? 1 : 0;
            return result;
        }

        @Override
        public int nvmlShutdown() {
            users--;
            return SUCCESS;
        }

        @Override
        public int nvmlDeviceGetHandleByPciBusId_v2(String busId, PointerByReference device) {
            device.setValue(Pointer.createConstant(number(busId) + 1));
            return result("nvmlDeviceGetHandleByPciBusId");
        }

        private static int number(String busId) {
            return List.of(ONE, TWO.toLowerCase(Locale.ROOT)).indexOf(busId);
        }

        @Override
        public int nvmlDeviceGetNvLinkState(Pointer device, int link, IntByReference active) {
            active.setValue(1);
            int result = result("nvmlDeviceGetNvLinkState");
            return result == SUCCESS && link >= nvLinks ? INVALID_ARGUMENT : result;
        }

        @Override
        public int nvmlDeviceGetNvLinkRemoteDeviceType(
                Pointer device, int link, IntByReference type) {
            type.setValue(remoteType);
            return result("nvmlDeviceGetNvLinkRemoteDeviceType");
        }

        @Override
        public int nvmlDeviceGetNvLinkRemotePciInfo_v2(Pointer device, int link, Pointer pciInfo) {
            boolean first = Pointer.nativeValue(device) == 1;
            // NVML writes eight digits of the domain.
            pciInfo.setString(PCI_INFO_BUS_ID, "0000" + (first ? TWO : ONE));
            return result("nvmlDeviceGetNvLinkRemotePciInfo");
        }

        @Override
        public int nvmlDeviceGetP2PStatus(
                Pointer one, Pointer other, int index, IntByReference status) {
            assertEquals(P2P_NVLINK, index);
            status.setValue(nvLinks > 0 ? 0 : 1);
            return result("nvmlDeviceGetP2PStatus");
        }

        @Override
        public int nvmlDeviceGetTopologyCommonAncestor(
                Pointer one, Pointer other, IntByReference found) {
            found.setValue(level);
            return result("nvmlDeviceGetTopologyCommonAncestor");
        }

        @Override
        public int cuDeviceGetByPCIBusId(IntByReference device, String busId) {
            device.setValue(number(busId));
            return result("cuDeviceGetByPCIBusId");
        }

        @Override
        public int cuDeviceGetP2PAttribute(IntByReference value, int attribute, int from, int to) {
            assertEquals(Set.of(0, 1), Set.of(from, to));
            switch (attribute) {
                case PERFORMANCE_RANK -> value.setValue(rank);
                case ACCESS_SUPPORTED -> value.setValue(access ? 1 : 0);
                default -> value.setValue(atomics ? 1 : 0);
            }
            int result = result("cuDeviceGetP2PAttribute");
            return result == SUCCESS ? result("attribute " + attribute) : result;
        }
    }

    private GpuTopology topology() {
        GpuTopology topology = new LinkQuery(host, host).topology(List.of(ONE, TWO));
        assertEquals(0, host.users, "calls of nvmlInit without nvmlShutdown");
        return topology;
    }

    private GpuLink link() {
        return topology().link(0, 1);
    }

    @Test
    void namesTheLinkWhenNvmlAnswersEverything() {
        assertEquals(GpuLink.of(GpuLink.Kind.HOST_BRIDGE), link());
        host.nvLinks = 18;
        assertEquals(new GpuLink(GpuLink.Kind.NVSWITCH, 18), link());
        host.remoteType = Nvml.REMOTE_GPU;
        assertEquals(new GpuLink(GpuLink.Kind.NVLINK, 18), link());
        assertEquals(
                "every two GPUs are one GPU or linked by NVLink (NV18 X)", topology().summary());
    }

    /** No query is needed to know that a GPU reaches its own memory. */
    @Test
    void ranksOnOneGpu() {
        GpuTopology topology = new LinkQuery(host, host).topology(List.of(ONE, ONE, ONE));
        assertEquals(0, host.calls);
        assertEquals(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, topology.kind());
        assertEquals(GpuLink.of(GpuLink.Kind.SELF), topology.link(0, 2));
        assertEquals(
                GpuTopology.Kind.FULLY_CONNECTED_NVLINK,
                new LinkQuery(null, null).topology(List.of(TWO, TWO)).kind());
    }

    @Test
    void someRanksShareAGpu() {
        host.nvLinks = 18;
        GpuTopology topology = new LinkQuery(host, host).topology(List.of(ONE, TWO, ONE));
        assertEquals(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, topology.kind());
        assertEquals("X", topology.link(0, 2).label());
        assertEquals("NV18", topology.link(2, 1).label());
    }

    /** With NVSwitches, any one query of NVML may fail. */
    @ParameterizedTest
    @CsvSource({
        "nvmlInit, NV",
        "nvmlDeviceGetHandleByPciBusId, NV",
        "nvmlDeviceGetNvLinkState, NV",
        "nvmlDeviceGetNvLinkRemoteDeviceType, NV18",
        "nvmlDeviceGetNvLinkRemotePciInfo, NV18",
        "nvmlDeviceGetP2PStatus, NV18",
        "nvmlDeviceGetTopologyCommonAncestor, NV18"
    })
    void switchesAreFoundWithoutOneQuery(String function, String label) {
        host.nvLinks = 18;
        host.atomics = true;
        host.failing.add(function);
        assertEquals(label, link().label());
        assertEquals(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, topology().kind());
        host.failing.clear();
        host.lacking.add(function);
        assertEquals(label, link().label());
    }

    /** With NVLinks from GPU to GPU, too. */
    @ParameterizedTest
    @CsvSource({
        "nvmlInit, NV",
        "nvmlDeviceGetHandleByPciBusId, NV",
        "nvmlDeviceGetNvLinkState, NV",
        "nvmlDeviceGetNvLinkRemoteDeviceType, NV4",
        "nvmlDeviceGetNvLinkRemotePciInfo, NV4",
        "nvmlDeviceGetP2PStatus, NV4",
        "nvmlDeviceGetTopologyCommonAncestor, NV4"
    })
    void directLinksAreFoundWithoutOneQuery(String function, String label) {
        host.nvLinks = 4;
        host.remoteType = Nvml.REMOTE_GPU;
        host.atomics = true;
        host.failing.add(function);
        assertEquals(label, link().label());
    }

    /** Without NVLink, no failure makes one. */
    @ParameterizedTest
    @CsvSource({
        "nvmlInit, P2P",
        "nvmlDeviceGetHandleByPciBusId, P2P",
        "nvmlDeviceGetNvLinkState, PHB",
        "nvmlDeviceGetP2PStatus, PHB",
        "nvmlDeviceGetTopologyCommonAncestor, P2P"
    })
    void pcieStaysPcie(String function, String label) {
        host.failing.add(function);
        assertEquals(label, link().label());
        assertEquals(GpuTopology.Kind.OTHER, topology().kind());
    }

    /** As seen in a virtual machine with H100s. */
    @Test
    void summaryNamesWhatFailed() {
        host.failing.add("nvmlDeviceGetTopologyCommonAncestor");
        assertEquals(
                "not every two GPUs are linked by NVLink (P2P X; failed:"
                        + " nvmlDeviceGetTopologyCommonAncestor: Not Supported)",
                topology().summary());
    }

    @ParameterizedTest
    @ValueSource(strings = {"cuDeviceGetByPCIBusId", "cuDeviceGetP2PAttribute", "attribute 2"})
    void linksAreUnknownIfNeitherNvmlNorDriverAnswers(String function) {
        host.failing.addAll(List.of("nvmlInit", function));
        assertEquals(GpuLink.of(GpuLink.Kind.UNKNOWN), link());
        assertTrue(topology().summary().contains("nvmlInit: Not Supported"));
        assertTrue(topology().summary().contains("cuDeviceGetP2PAttribute: error 3"));
    }

    @Test
    void neitherNvmlNorDriver() {
        GpuTopology topology = new LinkQuery(null, null).topology(List.of(ONE, TWO));
        assertEquals(GpuLink.of(GpuLink.Kind.UNKNOWN), topology.link(1, 0));
        assertTrue(topology.summary().contains("NVML is not available"), topology.summary());
    }

    @Test
    void atomicsWithoutAccessAreNoLink() {
        host.failing.add("nvmlInit");
        host.atomics = true;
        host.access = false;
        assertEquals(GpuLink.of(GpuLink.Kind.UNKNOWN), link());
    }

    /** A pair that is as fast as one with NVLink has NVLink, even if its atomics are unknown. */
    @Test
    void performanceRankDecidesIfAtomicsAreUnknown() {
        String three = "0000:3c:00.0";
        for (int rank = 0; rank < 2; rank++) {
            GpuTopology topology =
                    new LinkQuery(null, new ThreeGpus(rank)).topology(List.of(ONE, TWO, three));
            assertTrue(topology.link(0, 1).isNvLink());
            assertEquals(rank == 0 ? "NV" : "P2P", topology.link(0, 2).label());
            assertEquals(topology.link(0, 2), topology.link(2, 0));
        }
    }

    /** GPUs 0 and 1 have NVLink; of the pairs with GPU 2 only the performance rank is known. */
    private record ThreeGpus(int rank) implements PeerDriver {

        @Override
        public int cuDeviceGetByPCIBusId(IntByReference device, String busId) {
            device.setValue(busId.startsWith("0000:3c") ? 2 : Host.number(busId));
            return 0;
        }

        @Override
        public int cuDeviceGetP2PAttribute(IntByReference value, int attribute, int from, int to) {
            boolean third = from == 2 || to == 2;
            value.setValue(attribute == PERFORMANCE_RANK ? third ? rank : 0 : 1);
            return third && attribute == NATIVE_ATOMIC_SUPPORTED ? NOT_SUPPORTED : 0;
        }
    }

    @ParameterizedTest
    @CsvSource({
        "0, SAME_BOARD", "10, PCIE_SWITCH", "20, PCIE_SWITCHES",
        "30, HOST_BRIDGE", "40, NUMA_NODE", "50, SYSTEM"
    })
    void levelsOfNvml(int level, GpuLink.Kind kind) {
        host.level = level;
        assertEquals(GpuLink.of(kind), link());
    }

    /** JNA binds the interfaces; libc has none of the functions. */
    @Test
    void functionsAreBoundWhenTheyAreCalled() {
        Nvml nvml = Native.load("c", Nvml.class);
        PeerDriver driver = Native.load("c", PeerDriver.class);
        GpuTopology topology = new LinkQuery(nvml, driver).topology(List.of(ONE, TWO));
        assertEquals(GpuLink.of(GpuLink.Kind.UNKNOWN), topology.link(0, 1));
        assertTrue(topology.summary().contains("nvmlInit: the library lacks a function"));
    }

    @Test
    @Tag("gpu")
    void aGpuTwiceOnThisHost() {
        Gpus.require(1);
        try (CudaDevice device = Gpus.open(0)) {
            GpuTopology topology = GpuTopology.query(List.of(device, device));
            assertEquals(GpuTopology.Kind.FULLY_CONNECTED_NVLINK, topology.kind());
        }
    }

    /**
     * NVML and the driver of this host know the functions; a GPU that does not exist is unknown.
     */
    @Test
    @Tag("gpu")
    void aGpuThatDoesNotExist() {
        Gpus.require(1);
        try (CudaDevice device = Gpus.open(0)) {
            GpuTopology topology = GpuTopology.queryBus(List.of(device.pciBusId(), "0000:ff:1f.0"));
            assertEquals(GpuLink.of(GpuLink.Kind.UNKNOWN), topology.link(0, 1));
            assertFalse(topology.summary().contains("lacks"), topology.summary());
        }
    }
}
