/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

/**
 * The best way between two GPUs of a host.
 *
 * @param kind what it goes through
 * @param nvLinks how many NVLinks make it up; 0 unless the kind is {@link Kind#NVLINK} or {@link
 *     Kind#NVSWITCH}
 */
public record GpuLink(Kind kind, int nvLinks) {

    /** What a link goes through, from near to far. */
    public enum Kind {
        /** Nothing: the GPU itself. */
        SELF("X"),
        /** NVLinks from one GPU to the other. */
        NVLINK("NV"),
        /** NVLinks of both GPUs into NVSwitches. */
        NVSWITCH("NV"),
        /** The board that both are on. */
        SAME_BOARD("PSB"),
        /** One PCIe switch. */
        PCIE_SWITCH("PIX"),
        /** Several PCIe switches, but not the host bridge. */
        PCIE_SWITCHES("PXB"),
        /** The PCIe host bridge of a CPU. */
        HOST_BRIDGE("PHB"),
        /** The host bridges of one NUMA node. */
        NUMA_NODE("NODE"),
        /** The connection between NUMA nodes. */
        SYSTEM("SYS");

        private final String label;

        Kind(String label) {
            this.label = label;
        }
    }

    /**
     * Checks that the two fit.
     *
     * @param kind what it goes through
     * @param nvLinks how many NVLinks make it up
     * @throws IllegalArgumentException if an NVLink kind has no links, or another kind has some
     */
    public GpuLink {
        boolean nvLink = kind == Kind.NVLINK || kind == Kind.NVSWITCH;
        if (kind == null || nvLink != nvLinks > 0 || nvLinks < 0) {
            throw new IllegalArgumentException(nvLinks + " NVLinks make up no link of " + kind);
        }
    }

    /**
     * Returns a link without NVLinks.
     *
     * @param kind what it goes through
     * @return the link
     */
    public static GpuLink of(Kind kind) {
        return new GpuLink(kind, 0);
    }

    /**
     * Tells whether the GPUs are linked by NVLink, directly or through switches.
     *
     * @return whether they are
     */
    public boolean isNvLink() {
        return nvLinks > 0;
    }

    /**
     * Returns the link as nvidia-smi shows it.
     *
     * @return for example {@code NV18}, {@code PIX} or {@code SYS}
     */
    public String label() {
        return isNvLink() ? kind.label + nvLinks : kind.label;
    }
}
