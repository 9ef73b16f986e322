// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.alltoall;

import ai.djl.ndarray.NDArray;
import java.util.HashMap;
import java.util.Map;
import org.djlx.collectives.p2p.KernelSignals;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.p2p.P2pStream;
import org.djlx.collectives.spi.Operation;
import org.djlx.fusedops.internal.path.Slots;
import org.djlx.fusedops.kernel.Compute;
import org.djlx.fusedops.kernel.KernelLauncher;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CudaKernel;
import org.djlx.nativeops.cuda.CudaModule;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelArguments;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.cuda.KernelConstants;
import org.djlx.nativeops.cuda.KernelSource;
import org.djlx.nativeops.cuda.KernelStruct;
import org.djlx.nativeops.cuda.LaunchSize;

/**
 * Launches the kernels of {@code all_to_all_vdev.cu}: all-to-all of rows with splits in GPU memory.
 * An operation is one launch, whatever the sizes. Not thread-safe: call its methods in the order of
 * the group's operations.
 */
final class VdevKernels implements KernelLauncher {

    /** The largest number of splits of a rank. */
    public static final int MAX_SPLITS;

    private static final KernelSource SOURCE =
            KernelSource.ofResource(NativeLibrary.class, "all_to_all_vdev/all_to_all_vdev.cu");
    private static final int THREADS;
    private static final int STAGES;
    private static final KernelConstants.Layout LAUNCH;

    static {
        KernelConstants constants = new KernelConstants(SOURCE);
        MAX_SPLITS = constants.value("MAX_SPLITS");
        THREADS = constants.value("VDEV_THREADS");
        STAGES = constants.value("VDEV_STAGES");
        LAUNCH = constants.struct("VdevLaunch");
    }

    private static final int[] UNITS = {16, 4, 1}; // bytes; one kernel each
    private static final int MAX_BLOCKS = 64; // half of the SMs of an H100
    private static final int MIN_BLOCKS = 3; // one each to copy, send and receive
    private static final long MAX_STAGE = 256 << 10; // bytes
    private static final long GOOD_STAGE = 4 << 10;
    private static final long MIN_STAGE = 256;
    private static final int PACK = 16;

    private final CurrentStreams streams;
    private final CudaModule module;
    private final Map<Integer, CudaKernel> kernels = new HashMap<>(); // by unit
    private final KernelArguments arguments = new KernelArguments();
    private final KernelStruct struct = new KernelStruct(LAUNCH.byteSize());

    static VdevKernels of(Compute compute) {
        return compute.launcher(
                        VdevKernels.class,
                        (device, streams, compiler, ranks) ->
                                new VdevKernels(device, streams, compiler))
                .orElseThrow();
    }

    private VdevKernels(CudaDevice device, CurrentStreams streams, KernelCompiler compiler) {
        this.streams = streams;
        module = compiler.load(device, SOURCE);
        for (int unit : UNITS) {
            kernels.put(unit, module.kernel("all_to_all_vdev_" + unit));
        }
    }

    /**
     * The arrays of a call, by address. All are contiguous.
     *
     * @param inOffsets where the chunks begin in the input, in rows; 0 if they follow each other
     * @param outSplits receives the splits of the output, then its offsets
     * @param combine whether the chunks go back to the ranks that they came from
     * @param majorAlign pads the rows of each expert in the output to a multiple; 0 for none
     */
    public record Rows(
            long input,
            long output,
            long inSplits,
            long inOffsets,
            long outSplits,
            long inputRows,
            long outputRows,
            long rowBytes,
            int experts,
            boolean combine,
            int majorAlign) {

        private int unit() {
            for (int unit : UNITS) {
                if ((input | output | rowBytes) % unit == 0) {
                    return unit;
                }
            }
            throw new AssertionError();
        }
    }

    /**
     * The division of the blocks and of a half of the buffer, the same on all ranks. A lane is a
     * sender and a receiver for one peer at a time.
     *
     * @param own the number of blocks that copy what the rank sends itself
     * @param lanes the number of lanes of a peer
     * @param groups the number of peers that are served at the same time
     * @param words the offset of the words in a half, in bytes
     * @param slots the offset of the stages
     * @param stage the size of a stage; less than {@link #MIN_STAGE} if the buffer is too small
     */
    private record Division(int own, int lanes, int groups, long words, long slots, long stage) {

        static Division of(P2pBuffers buffers, KernelSignals signals, int splits) {
            int ranks = buffers.worldSize();
            int blocks = Math.min(signals.blocks(), MAX_BLOCKS);
            // On 2 H100s a block copies 40 GB/s within the GPU, and all senders together 300.
            int own = Math.max(1, blocks / (4 * ranks));
            int workers = Math.max(1, (blocks - own) / 2);
            int groups = Math.max(1, Math.min(ranks - 1, workers));
            long half = Slots.halfSize(buffers.bufferSize());
            Division division = null;
            for (int lanes = workers / groups; lanes > 0; lanes /= 2) {
                long words = Slots.align((long) splits * Long.BYTES);
                long slots = Slots.align(words + 2L * ranks * lanes * Long.BYTES);
                long stage = (half - slots) / ((long) ranks * lanes * STAGES) / PACK * PACK;
                division =
                        new Division(own, lanes, groups, words, slots, Math.min(stage, MAX_STAGE));
                if (stage >= GOOD_STAGE) {
                    break;
                }
            }
            return division;
        }

        boolean isPossible() {
            return stage >= MIN_STAGE;
        }
    }

    /**
     * The blocks of a launch, which may differ between ranks.
     *
     * @param own the number of blocks that copy what the rank sends itself
     * @param pairs the number of blocks that send, and of those that receive
     */
    record Blocks(int own, int pairs) {

        /** Returns the same division of fewer blocks: at most so many, but at least 3. */
        Blocks atMost(int limit) {
            int most = Math.max(MIN_BLOCKS, limit);
            if (own + 2 * pairs <= most) {
                return this;
            }
            int fewer = Math.max(1, Math.min(own, most / 4));
            return new Blocks(fewer, (most - fewer) / 2);
        }
    }

    /** Returns whether the buffers have room for the kernels; the same on all ranks. */
    public static boolean fit(P2pBuffers buffers, KernelSignals signals, int splits) {
        return signals.blocks() >= MIN_BLOCKS && Division.of(buffers, signals, splits).isPossible();
    }

    /**
     * Enqueues an all-to-all on the current stream, within the operation.
     *
     * @param buffers the group's buffers, with kernel signals; the splits {@linkplain #fit fit}
     */
    public void run(Operation operation, P2pBuffers buffers, Rows rows, NDArray... used) {
        KernelSignals signals = buffers.kernelSignals().orElseThrow();
        int ranks = buffers.worldSize();
        Division division = Division.of(buffers, signals, ranks * rows.experts());
        put("input", rows.input());
        put("output", rows.output());
        put("in_splits", rows.inSplits());
        put("in_offsets", rows.inOffsets());
        put("out_splits", rows.outSplits());
        put("input_rows", rows.inputRows());
        put("output_rows", rows.outputRows());
        put("row_bytes", rows.rowBytes());
        put("experts", rows.experts());
        put("combine", rows.combine() ? 1 : 0);
        put("major_align", rows.majorAlign());
        put("rank", buffers.rank());
        put("ranks", ranks);
        put("lanes", division.lanes());
        Blocks blocks = new Blocks(division.own(), division.lanes() * division.groups());
        blocks = blocks.atMost(buffers.waitingBlocks());
        put("own_blocks", blocks.own());
        put("words_begin", division.words());
        put("slots_begin", division.slots());
        put("stage_bytes", division.stage());
        put("timeout", operation.timeout().toNanos());
        put("status", signals.status());
        put("counters", signals.counters());
        put("distance", signals.rankDistance());
        long half = Slots.halfSize(buffers.bufferSize()); // the second: the first is reserved
        for (int peer = 0; peer < ranks; peer++) {
            int place = peer * Long.BYTES;
            struct.put(LAUNCH.offset("entered") + place, signals.entered()[peer])
                    .put(LAUNCH.offset("signals") + place, signals.words()[peer])
                    .put(LAUNCH.offset("half") + place, buffers.address(peer, half));
        }
        try (P2pStream current = buffers.currentStream(operation)) {
            kernels.get(rows.unit())
                    .launch(
                            streams.get(),
                            LaunchSize.of(blocks.own() + 2 * blocks.pairs(), THREADS),
                            arguments.clear().add(struct));
            current.keepAlive(used);
        }
    }

    private void put(String member, long value) {
        struct.put(LAUNCH.offset(member), value);
    }

    @Override
    public void close() {
        module.close();
    }
}
