// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.p2p;

import java.time.Duration;
import org.djlx.nativeops.host.Required;

/**
 * Memory for a GPU kernel that exchanges data the way a one-shot all-reduce does, within an
 * operation on {@link P2pBuffers}. Available only if the GPUs of all ranks have the same
 * architecture.
 *
 * <p>The group's one-shot all-reduces use the same slots, before and after the kernel and also in
 * CUDA graphs; {@code one_shot.cuh} defines the protocol. A kernel pushes data to every peer, waits
 * for the peers' data, restores the empty slots, and increments the launch count. No barrier is
 * needed, not even in a graph.
 *
 * <pre>
 *   slot on rank q for the data from rank r, in launch number e
 *       regions[q] + begin + e % 2 * half + (r &lt; q ? r : r - 1) * slot
 * </pre>
 *
 * @param blocks the maximum number of thread blocks that a rank may launch, if each block takes an
 *     SM. With this limit the blocks of all ranks are resident at the same time; on a shared GPU
 *     half of the SMs stay free for other kernels. The same on all ranks
 * @param status the address of two words in host memory, as {@link KernelSignals#status}
 * @param regions by rank, as addressed by this GPU: the all-reduce memory, which starts with {@code
 *     struct Control} of {@code one_shot.cuh}
 * @param begin the offset of the first half of the slots, in bytes
 * @param half the size of each half, in bytes
 * @param slot the size of a slot, in bytes
 */
public record OneShotSlots(
        int blocks, long status, long[] regions, long begin, long half, long slot) {

    private static final int MAX_RANKS = 8;

    /** {@return the kernel argument: the struct {@code Launch} of {@code one_shot.cuh}} */
    public long[] launch(int rank, Duration timeout) {
        Required.argument("launch: timeout", timeout);
        long[] launch = new long[MAX_RANKS + 6];
        System.arraycopy(regions, 0, launch, 0, regions.length);
        launch[MAX_RANKS] = status;
        launch[MAX_RANKS + 1] = timeout.toNanos();
        launch[MAX_RANKS + 2] = begin;
        launch[MAX_RANKS + 3] = half;
        launch[MAX_RANKS + 4] = slot;
        launch[MAX_RANKS + 5] = rank;
        return launch;
    }
}
