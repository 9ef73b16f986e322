/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import java.util.List;
import org.djlx.nativeops.NativeMemory;

/**
 * Memory of each rank's GPU that the GPUs of all ranks address, as this rank does; see {@link
 * RegionLayout} on what is where.
 *
 * <p>It is memory mapped by virtual memory management, not {@code cudaMalloc}'s: a copy into the
 * latter blocks the host while another thread stands in {@code cudaFree} on that GPU, which may
 * wait for the very copy. So no host has to know what the others do before it lets a stream wait.
 */
final class P2pRegion implements AutoCloseable {

    private final RegionLayout layout;
    private final int rank;
    private final AutoCloseable own;
    private final List<NativeMemory> memory; // of each rank
    private final long[] addresses;

    /**
     * Creates it.
     *
     * @param layout how it is divided
     * @param rank this rank
     * @param own what frees this rank's memory
     * @param memory that of each rank; the others' are closed by {@link #closePeers}
     */
    P2pRegion(RegionLayout layout, int rank, AutoCloseable own, List<NativeMemory> memory) {
        this.layout = layout;
        this.rank = rank;
        this.own = own;
        this.memory = List.copyOf(memory);
        this.addresses = memory.stream().mapToLong(NativeMemory::address).toArray();
    }

    RegionLayout layout() {
        return layout;
    }

    int rank() {
        return rank;
    }

    int ranks() {
        return addresses.length;
    }

    /** A rank's memory. */
    NativeMemory memory(int peer) {
        return memory.get(peer);
    }

    long address(int peer) {
        return addresses[peer];
    }

    /** Unmaps the memory of the others, which this rank uses no more. */
    void closePeers() {
        for (int peer = 0; peer < memory.size(); peer++) {
            if (peer != rank) {
                memory.get(peer).close();
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
