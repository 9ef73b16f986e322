// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import org.djlx.collectives.CudaP2pOptions;
import org.djlx.collectives.internal.cudap2p.AllReduceKernels.Algorithm;
import org.djlx.collectives.p2p.KernelSignals;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.GpuTopology;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;

/**
 * The layout of a rank's region of GPU memory, the same on all ranks. Offsets are in bytes.
 *
 * <pre>
 *   all-reduce   the control block; two halves for the mesh; two halves for one-shot and two-shot,
 *                filled with {@link #ABSENT} bytes. See all_reduce.cu
 *   signals      rows of words, one word for each source rank, 64 bytes apart:
 *                  a row for each channel
 *                  row ENTERED: the epochs that the peers have entered; this rank's own count
 *                  row MET: a struct Meeting of signals.cu for each peer, for barriers
 *   counters     zeros; kernels that use them reset them
 *   flags        words for each source rank; zeros, after the probes that the ranks write there
 *   buffer       the P2P buffer and the heap
 * </pre>
 *
 * <p>Buffer and heap are empty unless every pair of ranks is linked: a rank could not write to the
 * buffers of all others.
 */
final class RegionLayout {

    static final int MAX_RANKS = 8;
    static final int CHANNELS = 8;
    static final int ENTERED = CHANNELS; // the row after the channels
    static final int MET = ENTERED + 1;
    static final int ROWS = MET + 1;

    private static final long PAGE = 4096;

    private static final KernelConstants KERNEL =
            new KernelConstants(
                    KernelSource.ofResource(NativeLibrary.class, "all_reduce/all_reduce.cu"));

    /** The size of the control block, in whole pages. */
    private static final long CONTROL = align(KERNEL.struct("Control").byteSize());

    /** The distance between the words of a row, in bytes. */
    static final long LINE = 64;

    /** The number of flags of each source rank; a fused matmul uses two for each tile of a part. */
    static final int FLAGS = 65536;

    /** The value of each byte of a one-shot or two-shot slot before its data arrives. */
    static final byte ABSENT = (byte) 0xff;

    // A tensor larger than a slot takes several launches, of some 2 us each. A slot of this size
    // holds 32 MiB and the escape words of collectives.cu.
    private static final long MAX_SLOT = 40 << 20;
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
        // Two-shot needs space for a part and for its sum.
        long twoShotBytes = options.twoShotBytes(worldSize, false);
        long partBytes =
                twoShotBytes > oneShotBytes ? align((twoShotBytes + worldSize - 1) / worldSize) : 0;
        long wanted = Math.max(oneShotBytes, 2 * partBytes);
        int others = Math.max(1, worldSize - 1);
        slot = align(Math.min(wanted, Math.min(MAX_SLOT, MAX_HALF / others)));
        // Sums are float32, elements may be half as large. A slot for each rank, and one for the
        // sum.
        meshSlot = 2 * align(options.meshBytes());
        meshHalf = mesh ? (worldSize + 1) * meshSlot : 0;
        oneShot = CONTROL + 2 * meshHalf;
        oneShotHalf = mesh ? 0 : (worldSize - 1) * slot;
        signals = oneShot + 2 * oneShotHalf;
        counters = signals + ROWS * MAX_RANKS * LINE;
        flags = align(counters + KernelSignals.COUNTERS * Integer.BYTES);
        buffer = flags + (long) worldSize * FLAGS * Long.BYTES;
        bufferSize = links.isComplete() ? options.bufferSize() : 0;
        heapSize = links.isComplete() ? options.heapSize() : 0;
    }

    private static long align(long bytes) {
        return (bytes + PAGE - 1) / PAGE * PAGE;
    }

    long byteSize() {
        return buffer + align(bufferSize + heapSize);
    }

    long begin(Algorithm algorithm) {
        return algorithm == Algorithm.MESH ? CONTROL : oneShot;
    }

    long half(Algorithm algorithm) {
        return algorithm == Algorithm.MESH ? meshHalf : oneShotHalf;
    }

    long slot(Algorithm algorithm) {
        return algorithm == Algorithm.MESH ? meshSlot : slot;
    }

    /** Returns the most bytes that one launch reduces. */
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

    long counters() {
        return counters;
    }

    long flags() {
        return flags(0);
    }

    long flags(int source) {
        return flags + (long) source * FLAGS * Long.BYTES;
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
