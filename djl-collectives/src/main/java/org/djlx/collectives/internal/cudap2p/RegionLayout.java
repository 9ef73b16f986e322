/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.collectives.internal.cudap2p;

import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.p2p.KernelSignals;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;

/**
 * How a rank's region of GPU memory is divided, the same on all ranks. Offsets are in bytes.
 *
 * <pre>
 *   all-reduce   control block, then two halves for the mesh, then two for one-shot and two-shot,
 *                where there is not zero but what nobody sends; see all_reduce.cu
 *   signals      a word for each channel and each rank that raises it, 64 bytes apart; behind them, a
 *                row in which the others tell which operation they have entered, and the rank counts;
 *                and one for barriers within operations
 *   probe        a word for each rank, written when the group is created
 *   counters     zeros, for kernels that leave them so
 *   flags        words for each rank that raises them
 *   buffer       the P2P buffer, and the heap
 * </pre>
 *
 * <p>There is no buffer and no heap unless every pair of ranks is linked: a rank could not write
 * into the other ranks' buffers.
 */
final class RegionLayout {

    static final int MAX_RANKS = 8;
    static final int CHANNELS = 8;
    static final int ENTERED = CHANNELS; // behind the channels
    static final int MET = ENTERED + 1;
    static final int ROWS = MET + 1;

    private static final long PAGE = 4096;

    private static final KernelConstants KERNEL =
            new KernelConstants(
                    KernelSource.ofResource(NativeLibrary.class, "all_reduce/all_reduce.cu"));

    /** The size of the control block, in whole pages. */
    private static final long CONTROL = align(KERNEL.struct("Control").byteSize());

    /** From a signal of one rank to that of the next on the same channel, in bytes. */
    static final long LINE = 64;

    /**
     * How many flags each rank may raise here: of a fused matmul, two for each tile of its part.
     */
    static final int FLAGS = 65536;

    /** Each byte of a one-shot half whose data is not there yet; of two-shot as well. */
    static final byte ABSENT = (byte) 0xff;

    // What does not fit into a slot is several launches. Each costs some 2 us more.
    private static final long MAX_SLOT = 32 << 20;
    private static final long MAX_HALF = 48 << 20;

    private final int worldSize;
    private final long slot;
    private final long meshSlot;
    private final long meshHalf;
    private final long oneShot;
    private final long oneShotHalf;
    private final long signals;
    private final long counters;
    private final long flags;
    private final long buffer;
    private final long bufferSize;
    private final long heapSize;

    RegionLayout(CudaP2pOptions options, P2pLinks links) {
        worldSize = links.ranks();
        boolean mesh = links.kind() == GpuTopology.Kind.HYBRID_CUBE_MESH;
        long oneShotBytes = options.oneShotBytes(worldSize);
        // Two-shot needs room for a part and for the sum of one.
        long twoShotBytes = options.twoShotBytes(worldSize, false);
        long partBytes =
                twoShotBytes > oneShotBytes ? align((twoShotBytes + worldSize - 1) / worldSize) : 0;
        long wanted = Math.max(oneShotBytes, 2 * partBytes);
        int others = Math.max(1, worldSize - 1);
        slot = align(Math.min(wanted, Math.min(MAX_SLOT, MAX_HALF / others)));
        // Of float32 where elements have half that size; a slot for each rank, and one more.
        meshSlot = 2 * align(oneShotBytes);
        meshHalf = mesh ? (worldSize + 1) * meshSlot : 0;
        oneShot = CONTROL + 2 * meshHalf;
        oneShotHalf = mesh ? 0 : (worldSize - 1) * slot;
        signals = oneShot + 2 * oneShotHalf;
        counters = signals + (ROWS + 1) * MAX_RANKS * LINE; // the last row is for probes
        flags = align(counters + KernelSignals.COUNTERS * Integer.BYTES);
        buffer = flags + (long) worldSize * FLAGS * Integer.BYTES;
        bufferSize = links.isComplete() ? options.bufferSize() : 0;
        heapSize = links.isComplete() ? options.heapSize() : 0;
    }

    private static long align(long bytes) {
        return (bytes + PAGE - 1) / PAGE * PAGE;
    }

    long byteSize() {
        return buffer + align(bufferSize + heapSize);
    }

    /** Where the halves of an algorithm begin. */
    long begin(Algorithm algorithm) {
        return algorithm == Algorithm.MESH ? CONTROL : oneShot;
    }

    /** The size of a half. */
    long half(Algorithm algorithm) {
        return algorithm == Algorithm.MESH ? meshHalf : oneShotHalf;
    }

    /** The size of a slot in it. */
    long slot(Algorithm algorithm) {
        return algorithm == Algorithm.MESH ? meshSlot : slot;
    }

    /** The most bytes of a tensor that are one launch. */
    long most(Algorithm algorithm) {
        return switch (algorithm) {
            case ONE_SHOT -> slot;
            case TWO_SHOT -> slot / 2 * worldSize;
            case MESH, DIRECT -> Long.MAX_VALUE;
        };
    }

    long signal(int channel, int source) {
        return signals + ((long) channel * MAX_RANKS + source) * LINE;
    }

    long probe(int source) {
        return signal(ROWS, source);
    }

    long counters() {
        return counters;
    }

    long flags() {
        return flags;
    }

    long buffer() {
        return buffer;
    }

    long bufferSize() {
        return bufferSize;
    }

    long heapSize() {
        return heapSize;
    }
}
