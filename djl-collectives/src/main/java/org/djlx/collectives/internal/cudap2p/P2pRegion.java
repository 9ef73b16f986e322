/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import java.util.Arrays;
import org.djlx.nativeops.host.NativeMemory;

/**
 * Memory of each rank's GPU that the GPUs of all ranks linked to it address, as this rank does; see
 * {@link RegionLayout} on what is where.
 *
 * <p>It is memory mapped by virtual memory management, not {@code cudaMalloc}'s: a copy into the
 * latter blocks the host while another thread stands in {@code cudaFree} on that GPU, which may
 * wait for the very copy. So no host has to know what the others do before it lets a stream wait.
 */
final class P2pRegion implements AutoCloseable {

    private final RegionLayout layout;
    private final P2pLinks links;
    private final int rank;
    private final boolean direct;
    private final AutoCloseable own;
    private final NativeMemory[] memory; // of each rank; null if it is not linked
    private final long[] addresses; // 0 there

    /**
     * Creates it.
     *
     * @param layout how it is divided
     * @param links which ranks address each other's
     * @param rank this rank
     * @param direct whether all-reduces may read and write the tensors of all ranks, as far as this
     *     one can tell
     * @param own what frees this rank's memory
     * @param memory that of each rank, null where it is not linked; the others' are closed by
     *     {@link #closePeers}
     */
    P2pRegion(
            RegionLayout layout,
            P2pLinks links,
            int rank,
            boolean direct,
            AutoCloseable own,
            NativeMemory[] memory) {
        this.layout = layout;
        this.links = links;
        this.rank = rank;
        this.direct = direct;
        this.own = own;
        this.memory = memory.clone();
        this.addresses =
                Arrays.stream(memory).mapToLong(one -> one == null ? 0 : one.address()).toArray();
    }

    RegionLayout layout() {
        return layout;
    }

    P2pLinks links() {
        return links;
    }

    int rank() {
        return rank;
    }

    int ranks() {
        return addresses.length;
    }

    /** Tells whether all-reduces may be direct, as far as this rank can tell. */
    boolean isDirect() {
        return direct;
    }

    /** The memory of a rank, which must be linked to this one. */
    NativeMemory memory(int peer) {
        return memory[peer];
    }

    /** Where the memory of a rank begins; 0 if it is not linked to this one. */
    long address(int peer) {
        return addresses[peer];
    }

    /** Unmaps the memory of the others, which this rank uses no more. */
    void closePeers() {
        for (int peer = 0; peer < memory.length; peer++) {
            if (peer != rank && memory[peer] != null) {
                memory[peer].close();
            }
        }
    }

    /** Unmaps this rank's memory, which nobody uses any more. */
    @Override
    public void close() {
        try {
            own.close();
        } catch (RuntimeException e) {
            throw e;
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }
}
