// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/**
 * The links between the GPUs of a host: the best connection of every pair. GPUs are identified by
 * their index in the matrix. A GPU may have several indices, and is then linked to itself.
 */
public final class GpuTopology {

    /** The kinds of topologies that algorithms distinguish. */
    public enum Kind {
        /** Every pair is one GPU, or linked by NVLink, directly or through NVSwitches. */
        FULLY_CONNECTED_NVLINK,
        /**
         * Eight GPUs in two groups of four: in a group every pair is linked by NVLink, and every
         * GPU is linked to one GPU of the other group. Used by DGX-1 and similar servers.
         */
        HYBRID_CUBE_MESH,
        /** Anything else. */
        OTHER
    }

    private static final int MESH_GPUS = 8;
    private static final int MESH_NEIGHBOURS = 4;

    private final GpuLink[][] links;
    private final List<String> unanswered;
    private final Kind kind;

    /**
     * Creates a topology.
     *
     * @param links the link of every pair (row, column), with {@link GpuLink.Kind#SELF} on the
     *     diagonal
     * @throws IllegalArgumentException if the matrix is empty, not square or not symmetric, or has
     *     another kind on the diagonal
     */
    public GpuTopology(GpuLink[][] links) {
        this(links, List.of());
    }

    /** Creates a topology with the queries that failed, each with its cause. */
    GpuTopology(GpuLink[][] links, List<String> unanswered) {
        this.unanswered = unanswered;
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
                                    "the link of GPUs %d and %d is %s in one direction, %s in the"
                                            + " other",
                                    i, j, link, links[j][i]));
                }
                if (i == j && link.kind() != GpuLink.Kind.SELF) {
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
                if (!isSelf(a, b) && !links[a][b].isNvLink()) {
                    return false;
                }
            }
        }
        return true;
    }

    private boolean isSelf(int a, int b) {
        return links[a][b].kind() == GpuLink.Kind.SELF;
    }

    /**
     * If every GPU has four neighbours and there are two disjoint cliques of four, every GPU has
     * exactly one link to the other clique.
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

    /** Returns GPU 0 and its neighbours except {@code across}. */
    private int[] groupOfFirst(int across) {
        IntStream others = IntStream.of(neighbours(0)).filter(gpu -> gpu != across);
        return IntStream.concat(IntStream.of(0), others).toArray();
    }

    private int[] others(int[] group) {
        return IntStream.range(0, links.length)
                .filter(gpu -> IntStream.of(group).noneMatch(member -> member == gpu))
                .toArray();
    }

    /** Queries the topology of GPUs, in the order of the matrix; a GPU may occur repeatedly. */
    public static GpuTopology query(List<CudaDevice> devices) {
        return queryBus(devices.stream().map(CudaDevice::pciBusId).toList());
    }

    /**
     * Queries the topology of GPUs, including GPUs that this process cannot use.
     *
     * <p>NVML is queried first. If NVML does not answer, as in many virtual machines, the driver is
     * queried for GPUs that this process can use. A pair without an answer has a link of kind
     * {@link GpuLink.Kind#UNKNOWN}; {@link #summary} names the queries that failed.
     *
     * @param busIds the PCI bus ids of the GPUs, see {@link CudaDevice#pciBusId}, in the order of
     *     the matrix; a GPU may occur repeatedly
     */
    public static GpuTopology queryBus(List<String> busIds) {
        return LinkQuery.ofHost().topology(busIds);
    }

    /** {@return the topology in one line: how the GPUs are linked, and which queries failed} */
    public String summary() {
        String found =
                switch (kind) {
                    case FULLY_CONNECTED_NVLINK -> "every two GPUs are one GPU or linked by NVLink";
                    case HYBRID_CUBE_MESH -> "the GPUs form a hybrid cube mesh of NVLinks";
                    case OTHER -> "not every two GPUs are linked by NVLink";
                };
        String labels =
                Arrays.stream(links)
                        .flatMap(Arrays::stream)
                        .map(GpuLink::label)
                        .distinct()
                        .sorted()
                        .collect(Collectors.joining(" "));
        String failed = unanswered.isEmpty() ? "" : "; failed: " + String.join(", ", unanswered);
        return found + " (" + labels + failed + ")";
    }

    public Kind kind() {
        return kind;
    }

    public int size() {
        return links.length;
    }

    public GpuLink link(int a, int b) {
        return links[a][b];
    }

    /** Returns the GPUs to which a GPU is linked by NVLink, ascending. */
    public int[] neighbours(int gpu) {
        return IntStream.range(0, links.length)
                .filter(other -> links[gpu][other].isNvLink())
                .toArray();
    }

    /** Returns the matrix as nvidia-smi shows it, with a line for each GPU. */
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
