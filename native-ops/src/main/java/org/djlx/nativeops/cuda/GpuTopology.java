/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.nativeops.cuda;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.djlx.nativeops.NativeLibrary;

/**
 * How GPUs of a host are linked: for every pair the best way between them. GPUs are numbered by
 * their place in the matrix.
 */
public final class GpuTopology {

    /** What algorithms choose by. */
    public enum Kind {
        /** Every pair is linked by NVLink, directly or through NVSwitches. One GPU counts, too. */
        FULLY_CONNECTED_NVLINK,
        /**
         * Eight GPUs in two groups of four: within a group every pair is linked by NVLink, and
         * every GPU is linked to one of the other group. DGX-1 and servers like it.
         */
        HYBRID_CUBE_MESH,
        /** Anything else. */
        OTHER
    }

    private static final int MESH_GPUS = 8;
    private static final int MESH_NEIGHBOURS = 4;

    private final GpuLink[][] links;
    private final Kind kind;

    /**
     * Describes GPUs.
     *
     * @param links for every pair (row, column) the link; on the diagonal {@link GpuLink.Kind#SELF}
     * @throws IllegalArgumentException if the matrix is empty, not square or not symmetric, or the
     *     diagonal is not as it must be
     */
    public GpuTopology(GpuLink[][] links) {
        this.links = Arrays.stream(links).map(GpuLink[]::clone).toArray(GpuLink[][]::new);
        requireMatrix();
        kind = classify();
    }

    private void requireMatrix() {
        if (links.length == 0) {
            throw new IllegalArgumentException("there is no GPU");
        }
        for (int i = 0; i < links.length; i++) {
            if (links[i].length != links.length) {
                throw new IllegalArgumentException(
                        "row " + i + " has " + links[i].length + " links, not " + links.length);
            }
        }
        for (int i = 0; i < links.length; i++) {
            for (int j = 0; j < links.length; j++) {
                GpuLink link = links[i][j];
                if (link == null || !link.equals(links[j][i])) {
                    throw new IllegalArgumentException(
                            String.format(
                                    "the link of GPUs %d and %d is %s one way, %s the other",
                                    i, j, link, links[j][i]));
                }
                if ((i == j) != (link.kind() == GpuLink.Kind.SELF)) {
                    throw new IllegalArgumentException(
                            String.format("%s cannot link GPUs %d and %d", link, i, j));
                }
            }
        }
    }

    private Kind classify() {
        int[] all = new int[links.length];
        Arrays.setAll(all, i -> i);
        if (isClique(all)) {
            return Kind.FULLY_CONNECTED_NVLINK;
        }
        return isHybridCubeMesh() ? Kind.HYBRID_CUBE_MESH : Kind.OTHER;
    }

    private boolean isClique(int[] gpus) {
        for (int a : gpus) {
            for (int b : gpus) {
                if (a != b && !links[a][b].isNvLink()) {
                    return false;
                }
            }
        }
        return true;
    }

    /**
     * With four neighbours each, two disjoint cliques of four leave every GPU one link across; as
     * both sides have one each, these pair the GPUs up.
     */
    private boolean isHybridCubeMesh() {
        if (links.length != MESH_GPUS) {
            return false;
        }
        for (int i = 0; i < MESH_GPUS; i++) {
            if (neighbours(i).length != MESH_NEIGHBOURS) {
                return false;
            }
        }
        for (int across : neighbours(0)) {
            if (isClique(groupOfFirst(across)) && isClique(others(groupOfFirst(across)))) {
                return true;
            }
        }
        return false;
    }

    /** Returns GPU 0 and its neighbours but one. */
    private int[] groupOfFirst(int across) {
        List<Integer> group = new ArrayList<>(List.of(0));
        for (int neighbour : neighbours(0)) {
            if (neighbour != across) {
                group.add(neighbour);
            }
        }
        return group.stream().mapToInt(Integer::intValue).toArray();
    }

    private int[] others(int[] group) {
        List<Integer> others = new ArrayList<>();
        for (int i = 0; i < links.length; i++) {
            int gpu = i;
            if (Arrays.stream(group).noneMatch(member -> member == gpu)) {
                others.add(gpu);
            }
        }
        return others.stream().mapToInt(Integer::intValue).toArray();
    }

    /**
     * Asks NVML how GPUs of this host are linked.
     *
     * @param devices the GPUs, in the order of the matrix
     * @return the topology
     * @throws UnsatisfiedLinkError if there is no NVML; see {@link NativeLibrary#NVML}
     * @throws CudaException if NVML fails, or does not know one of the GPUs
     */
    public static GpuTopology query(List<CudaDevice> devices) {
        return queryBus(devices.stream().map(CudaDevice::pciBusId).toList());
    }

    /**
     * Asks NVML how GPUs of this host are linked, also such as this process cannot use.
     *
     * @param busIds where the GPUs are on the PCI bus, as {@link CudaDevice#pciBusId}, in the order
     *     of the matrix
     * @return the topology
     * @throws UnsatisfiedLinkError if there is no NVML
     * @throws CudaException if NVML fails, or does not know one of the GPUs
     */
    public static GpuTopology queryBus(List<String> busIds) {
        NativeLibrary.NVML.ensureAvailability();
        return new GpuTopology(NvmlLinks.query(busIds));
    }

    /**
     * Returns what algorithms choose by.
     *
     * @return the kind of the topology
     */
    public Kind kind() {
        return kind;
    }

    /**
     * Returns the number of GPUs.
     *
     * @return the number
     */
    public int size() {
        return links.length;
    }

    /**
     * Returns the link of two GPUs.
     *
     * @param a the place of one
     * @param b the place of the other
     * @return the link
     */
    public GpuLink link(int a, int b) {
        return links[a][b];
    }

    /**
     * Returns the GPUs to which a GPU is linked by NVLink.
     *
     * @param gpu the place of the GPU
     * @return their places, ascending
     */
    public int[] neighbours(int gpu) {
        List<Integer> result = new ArrayList<>();
        for (int other = 0; other < links.length; other++) {
            if (links[gpu][other].isNvLink()) {
                result.add(other);
            }
        }
        return result.stream().mapToInt(Integer::intValue).toArray();
    }

    /**
     * Returns the topology of some of the GPUs.
     *
     * @param gpus their places, in the order that they are to have
     * @return the topology
     */
    public GpuTopology subset(int... gpus) {
        GpuLink[][] some = new GpuLink[gpus.length][gpus.length];
        for (int i = 0; i < gpus.length; i++) {
            for (int j = 0; j < gpus.length; j++) {
                some[i][j] = links[gpus[i]][gpus[j]];
            }
        }
        return new GpuTopology(some);
    }

    /** Returns the matrix, a line for each GPU, as nvidia-smi shows it. */
    @Override
    public String toString() {
        StringBuilder text = new StringBuilder("     ");
        for (int i = 0; i < links.length; i++) {
            text.append(String.format(" %-5s", "GPU" + i));
        }
        for (int i = 0; i < links.length; i++) {
            text.append(String.format("%n%-5s", "GPU" + i));
            for (GpuLink link : links[i]) {
                text.append(String.format(" %-5s", link.label()));
            }
        }
        return text.toString();
    }
}
