// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

/**
 * The best connection of two GPUs of a host. {@code nvLinks} is 0 unless the kind is {@link
 * Kind#NVLINK} or {@link Kind#NVSWITCH}, and for these if NVML does not report the number.
 */
public record GpuLink(Kind kind, int nvLinks) {

    /** The kinds of connections, from near to far. */
    public enum Kind {
        /** The GPU itself, also if two ranks share it. */
        SELF("X"),
        /** NVLinks from one GPU to the other. */
        NVLINK("NV"),
        /** NVLinks of both GPUs into NVSwitches. */
        NVSWITCH("NV"),
        /** On the same board. */
        SAME_BOARD("PSB"),
        /** Through one PCIe switch. */
        PCIE_SWITCH("PIX"),
        /** Through several PCIe switches, without the host bridge. */
        PCIE_SWITCHES("PXB"),
        /** Through the PCIe host bridge of a CPU. */
        HOST_BRIDGE("PHB"),
        /** Through the host bridges of one NUMA node. */
        NUMA_NODE("NODE"),
        /** Through the connection between NUMA nodes. */
        SYSTEM("SYS"),
        /**
         * The GPUs can access each other's memory, but not through NVLink; NVML reports no details.
         */
        PEER("P2P"),
        /** Unknown: neither NVML nor the driver reports the link. */
        UNKNOWN("?");

        private final String label;

        Kind(String label) {
            this.label = label;
        }
    }

    /**
     * Checks the values.
     *
     * @throws IllegalArgumentException if the number is negative, or another kind has NVLinks
     */
    public GpuLink {
        boolean nvLink = kind == Kind.NVLINK || kind == Kind.NVSWITCH;
        if (kind == null || !nvLink && nvLinks > 0 || nvLinks < 0) {
            throw new IllegalArgumentException(
                    "a link of kind " + kind + " cannot have " + nvLinks + " NVLinks");
        }
    }

    /** Returns a link with an unknown number of NVLinks, or none. */
    public static GpuLink of(Kind kind) {
        return new GpuLink(kind, 0);
    }

    /** {@return whether the GPUs are connected by NVLink, directly or through switches} */
    public boolean isNvLink() {
        return kind == Kind.NVLINK || kind == Kind.NVSWITCH;
    }

    /**
     * {@return the label that nvidia-smi shows, for example {@code NV18}, {@code PIX} or {@code
     * SYS}; {@code NV} if the number of NVLinks is unknown}
     */
    public String label() {
        return nvLinks > 0 ? kind.label + nvLinks : kind.label;
    }
}
