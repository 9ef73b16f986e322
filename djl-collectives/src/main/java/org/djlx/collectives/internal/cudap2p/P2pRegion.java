// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import java.util.Arrays;
import org.djlx.nativeops.host.NativeMemory;

/**
 * The regions of GPU memory of all ranks, with the addresses at which this rank accesses them. A
 * region is accessible to the GPUs of all linked ranks; {@link RegionLayout} has its layout.
 *
 * <p>The memory comes from the driver's virtual memory management. With memory of {@code
 * cudaMalloc} there could be a deadlock: a copy into it blocks the host while another thread is in
 * {@code cudaFree} on that GPU, and this call may wait for the copy.
 */
final class P2pRegion implements AutoCloseable {

    private final RegionLayout layout;
    private final P2pLinks links;
    private final int rank;
    private final boolean direct;
    private final AutoCloseable own;
    private final NativeMemory[] memory; // of each rank; null if not linked
    private final long[] addresses; // of each rank; 0 if not linked

    /**
     * Wraps the memory of each rank, null if not linked; {@link #closePeers} closes that of the
     * peers. {@code direct}: this rank's kernels can access the tensors of all ranks.
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

    /** Returns whether all-reduces can be direct, as far as this rank knows. */
    boolean isDirect() {
        return direct;
    }

    NativeMemory memory(int peer) {
        return memory[peer];
    }

    /** Returns the address of a rank's memory; 0 if not linked. */
    long address(int peer) {
        return addresses[peer];
    }

    void closePeers() {
        for (int peer = 0; peer < memory.length; peer++) {
            if (peer != rank && memory[peer] != null) {
                memory[peer].close();
            }
        }
    }

    /** Frees this rank's memory. No peer may access it any more. */
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
