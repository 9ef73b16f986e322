// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal.alltoall;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.Optional;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.Work;
import org.djlx.collectives.p2p.KernelSignals;
import org.djlx.collectives.p2p.P2pBuffers;
import org.djlx.collectives.spi.OpType;
import org.djlx.collectives.spi.Operation.Agreed;
import org.djlx.fusedops.FallbackReason;
import org.djlx.fusedops.VariableAllToAll;
import org.djlx.fusedops.cost.Path;
import org.djlx.fusedops.internal.alltoall.HostSplits.Chunk;
import org.djlx.fusedops.internal.path.Fallbacks;
import org.djlx.fusedops.internal.path.GroupPlans;
import org.djlx.fusedops.internal.path.OperandChecks;
import org.djlx.fusedops.internal.path.Usage;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.torch.NoGradient;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.TensorInfo;
import org.djlx.nativeops.torch.Torch;

/** A call of {@link VariableAllToAll}: one kernel, or on the host with the group's all-to-all. */
public final class DeviceAllToAll {

    public static final OpType VDEV = new OpType("allToAllVdev");
    public static final OpType VDEV_2D = new OpType("allToAllVdev2d");
    public static final OpType VDEV_2D_OFFSET = new OpType("allToAllVdev2dOffset");

    private final OpType type;
    private final OperandChecks checks;
    private final ProcessGroup group;
    private final NDArray output;
    private final NDArray input;
    private final NDArray inSplits;
    private final NDArray outSplitsOffsets;
    private final boolean combine; // the input has offsets
    private final int majorAlign;
    private final TensorInfo in;
    private final TensorInfo out;
    private final TensorInfo splits;
    private final TensorInfo outSplits;
    private final int experts; // of each rank

    private DeviceAllToAll(
            OpType type,
            ProcessGroup group,
            NDArray output,
            NDArray input,
            NDArray inSplits,
            NDArray outSplitsOffsets,
            int majorAlign) {
        this.type = type;
        this.group = group;
        this.output = output;
        this.input = input;
        this.inSplits = inSplits;
        this.outSplitsOffsets = outSplitsOffsets;
        this.majorAlign = majorAlign;
        combine = type == VDEV_2D_OFFSET;
        checks = new OperandChecks(type.toString());
        checks.checkNotNull("the group", group);
        out = array("output", output);
        in = array("input", input);
        String role = combine ? "inSplitsOffsets" : "inSplits";
        splits = array(role, inSplits);
        outSplits = array("outSplitsOffsets", outSplitsOffsets);
        checkRows();
        experts = checkSplits(role);
        if (majorAlign < 0) {
            throw checks.wrong("majorAlign is %d, but must be 0 or more", majorAlign);
        }
        if (NoGradient.isRecorded(input)) {
            throw checks.wrong(
                    "the input requires a gradient, which would be lost: switch gradients off, or"
                            + " pass input.stopGradient()");
        }
    }

    private TensorInfo array(String role, NDArray array) {
        checks.checkNotNull(role, array);
        TensorInfo info = Torch.info(array);
        if (!info.isContiguous()) {
            throw checks.wrong("%s is not contiguous: copy it", role);
        }
        checks.checkDevice(role, array, group.device());
        return info;
    }

    private void checkRows() {
        if (in.sizes().length == 0 || out.sizes().length == 0) {
            throw checks.wrong(
                    "the input has shape %s and the output %s, but both must have a first"
                            + " dimension, of rows",
                    input.getShape(), output.getShape());
        }
        if (in.type() != out.type() || !Arrays.equals(row(in), row(out))) {
            throw checks.wrong(
                    "the input is %s of shape %s and the output %s of shape %s, but both must have"
                            + " the same type and the same sizes after the first dimension",
                    in.type(), input.getShape(), out.type(), output.getShape());
        }
        if (out.overlaps(in)) {
            throw checks.wrong("the output and the input overlap: pass another output");
        }
    }

    private int checkSplits(String role) {
        if (splits.type() != ScalarType.INT64 || outSplits.type() != ScalarType.INT64) {
            throw checks.wrong(
                    "%s is %s and outSplitsOffsets %s, but both must be INT64",
                    role, splits.type(), outSplits.type());
        }
        int ranks = group.worldSize();
        long[] sizes = outSplits.sizes();
        long count = sizes.length == 2 && sizes[0] == 2 ? sizes[1] : 0;
        boolean known = type == VDEV ? count == ranks : count > 0 && count % ranks == 0;
        if (!known || count > VdevKernels.MAX_SPLITS) {
            throw checks.wrong(
                    "outSplitsOffsets has shape %s, but must have (2, %s), with at most %d splits",
                    outSplitsOffsets.getShape(),
                    type == VDEV ? ranks : "a multiple of " + ranks,
                    VdevKernels.MAX_SPLITS);
        }
        long[] wanted = combine ? sizes : new long[] {count};
        if (!Arrays.equals(wanted, splits.sizes())) {
            throw checks.wrong(
                    "%s has shape %s, but must have %s, as outSplitsOffsets has %s",
                    role, inSplits.getShape(), new Shape(wanted), outSplitsOffsets.getShape());
        }
        if (outSplits.overlaps(splits)) {
            throw checks.wrong("outSplitsOffsets and %s overlap: pass another array", role);
        }
        return (int) (count / ranks);
    }

    /** Returns the sizes after the first dimension. */
    private static long[] row(TensorInfo info) {
        return Arrays.copyOfRange(info.sizes(), 1, info.sizes().length);
    }

    /**
     * Checks and runs a call.
     *
     * @param inSplits the splits; with the offsets of the chunks for {@link #VDEV_2D_OFFSET}
     * @param majorAlign pads the rows of each expert; 0 for no padding
     */
    public static Work run(
            OpType type,
            ProcessGroup group,
            NDArray output,
            NDArray input,
            NDArray inSplits,
            NDArray outSplitsOffsets,
            int majorAlign) {
        return new DeviceAllToAll(
                        type, group, output, input, inSplits, outSplitsOffsets, majorAlign)
                .run();
    }

    private Work run() {
        FallbackReason reason = fallbackReason().orElse(null);
        Usage.count(type, Path.FUSED, reason);
        return reason == null ? runOnDevice() : NoGradient.get(this::runOnHost);
    }

    /** Returns why the host reads the splits, the same on all ranks; empty if a kernel does. */
    private Optional<FallbackReason> fallbackReason() {
        if (Fallbacks.isForced(type)) {
            return Optional.of(FallbackReason.FORCED);
        }
        Optional<P2pBuffers> buffers = group.p2pBuffers();
        Optional<KernelSignals> signals = buffers.flatMap(P2pBuffers::kernelSignals);
        if (signals.isEmpty()) {
            return Optional.of(FallbackReason.NO_P2P_BUFFERS);
        }
        return VdevKernels.fit(buffers.get(), signals.get(), count())
                ? Optional.empty()
                : Optional.of(FallbackReason.BUFFER_TOO_SMALL);
    }

    private int count() {
        return group.worldSize() * experts;
    }

    private long rowCount(TensorInfo info) {
        return info.sizes()[0];
    }

    private long rowBytes() {
        return Arrays.stream(row(in)).reduce(in.type().itemSize(), Math::multiplyExact);
    }

    private Work runOnDevice() {
        VdevKernels kernels =
                VdevKernels.of(GroupPlans.of(group).compute()); // compiles: before any wait
        P2pBuffers buffers = group.requireP2pBuffers();
        VdevKernels.Rows rows =
                new VdevKernels.Rows(
                        in.address(),
                        out.address(),
                        splits.address(),
                        combine ? splits.address() + (long) count() * Long.BYTES : 0,
                        outSplits.address(),
                        rowCount(in),
                        rowCount(out),
                        rowBytes(),
                        experts,
                        combine,
                        majorAlign);
        Agreed agreed = new Agreed(in.type(), new long[] {rowBytes(), experts}, null, majorAlign);
        return group.execute(
                type,
                agreed,
                operation -> {
                    operation.setAlgorithm(Path.FUSED.toString());
                    kernels.run(
                            operation, buffers, rows, output, input, inSplits, outSplitsOffsets);
                });
    }

    private Work runOnHost() {
        if (group.device().isGpu() && GroupPlans.of(group).compute().isRecorded()) {
            throw new IllegalStateException(
                    type
                            + " cannot be recorded into a CUDA graph here: the host reads the"
                            + " splits, because the group has no P2P buffers that a kernel can use,"
                            + " they are too small, or the fallback is forced");
        }
        try (NDManager manager = NDManager.newBaseManager(group.device(), "PyTorch")) {
            HostSplits all =
                    new HostSplits(checks, exchange(manager), group.rank(), experts, combine);
            Chunk[] received = all.received();
            long[] result = new long[2 * received.length];
            for (int i = 0; i < received.length; i++) {
                result[i] = received[i].rows();
                result[received.length + i] = received[i].begin();
            }
            Torch.copy(outSplitsOffsets, manager.create(result, outSplitsOffsets.getShape()));
            return exchangeRows(manager, all.sent(), received);
        }
    }

    /** Exchanges sizes and splits; returns them by rank. */
    private long[][] exchange(NDManager manager) {
        int words = HostSplits.HEADER + (int) splits.count();
        NDArray own = Torch.empty(manager, new Shape(words), ScalarType.INT64);
        long[] header = {rowCount(in), rowCount(out), majorAlign};
        Torch.copy(Torch.narrow(own, 0, 0, header.length), manager.create(header));
        Torch.copy(
                Torch.narrow(own, 0, header.length, splits.count()).reshape(inSplits.getShape()),
                inSplits);
        NDArray all = Torch.empty(manager, new Shape(group.worldSize(), words), ScalarType.INT64);
        group.allGatherIntoTensor(all, own).await();
        CurrentStreams.await(group.device());
        long[] flat = all.toLongArray();
        long[][] rows = new long[group.worldSize()][];
        for (int rank = 0; rank < rows.length; rank++) {
            rows[rank] = Arrays.copyOfRange(flat, rank * words, (rank + 1) * words);
        }
        return rows;
    }

    private Work exchangeRows(NDManager manager, Chunk[] sent, Chunk[] received) {
        long[] inCounts = new long[group.worldSize()];
        long[] outCounts = new long[group.worldSize()];
        Arrays.stream(sent).forEach(chunk -> inCounts[chunk.rank()] += chunk.rows());
        Arrays.stream(received).forEach(chunk -> outCounts[chunk.rank()] += chunk.rows());
        boolean direct = isDense(received);
        NDArray to = direct ? part(output, received) : staging(manager, outCounts);
        Work work;
        try (NDArray from = isDense(sent) ? part(input, sent) : gathered(manager, sent, inCounts)) {
            work = group.allToAllSingle(to, from, outCounts, inCounts);
            work.await();
        }
        if (direct) {
            to.close();
            return work;
        }
        // The rows of a source follow each other in the order of the experts.
        long[] next = new long[outCounts.length];
        for (int rank = 1; rank < next.length; rank++) {
            next[rank] = next[rank - 1] + outCounts[rank - 1];
        }
        for (Chunk chunk : received) {
            copyRows(output, chunk.begin(), to, next[chunk.rank()], chunk.rows());
            next[chunk.rank()] += chunk.rows();
        }
        return work;
    }

    /** Returns whether chunks follow each other without gaps, in the order of their ranks. */
    private static boolean isDense(Chunk[] chunks) {
        for (int i = 1; i < chunks.length; i++) {
            if (chunks[i].rank() < chunks[i - 1].rank()
                    || chunks[i].begin() != chunks[i - 1].begin() + chunks[i - 1].rows()) {
                return false;
            }
        }
        return true;
    }

    private static NDArray part(NDArray array, Chunk[] chunks) {
        long rows = Arrays.stream(chunks).mapToLong(Chunk::rows).sum();
        return Torch.narrow(array, 0, rows == 0 ? 0 : chunks[0].begin(), rows);
    }

    private NDArray gathered(NDManager manager, Chunk[] chunks, long[] counts) {
        NDArray staged = staging(manager, counts);
        long place = 0;
        for (Chunk chunk : chunks) {
            copyRows(staged, place, input, chunk.begin(), chunk.rows());
            place += chunk.rows();
        }
        return staged;
    }

    private NDArray staging(NDManager manager, long[] counts) {
        long[] sizes = in.sizes().clone();
        sizes[0] = Arrays.stream(counts).sum();
        return Torch.empty(manager, new Shape(sizes), in.type());
    }

    private static void copyRows(NDArray to, long place, NDArray from, long begin, long rows) {
        if (rows > 0) {
            try (NDArray target = Torch.narrow(to, 0, place, rows);
                    NDArray source = Torch.narrow(from, 0, begin, rows)) {
                Torch.copy(target, source);
            }
        }
    }
}
