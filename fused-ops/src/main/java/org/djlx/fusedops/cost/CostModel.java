// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.cost;

import java.util.Comparator;
import java.util.EnumSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Predicts the time of a fused operator on each {@link Path}, and chooses the path. A pure function
 * of the sizes and of the constants of a {@link Machine}, in double arithmetic: ranks with the same
 * inputs get the same choice.
 *
 * <pre>
 *   fused        {@link FusedMatmulModel}
 *   gathered     an exchange by kernels, and one matmul before or after it
 *   pipelined    all-gather: the matmul of the own shard, then of each other shard after its copy;
 *                reduce-scatter: the matmul of a part during the copy of the previous part, then the
 *                reduction
 *   nccl         the matmul, and NCCL's collective
 * </pre>
 *
 * <p>Immutable.
 */
public final class CostModel {

    // The usual sum over all ranks of the size that may differ between ranks. The inner dimension
    // lies between attention (as wide as A) and an MLP (3.5 times as wide).
    private static final long USUAL_COLUMNS = 8192;
    private static final long USUAL_INNER = 16384;

    /**
     * A path must be predicted faster by this share for each path that comes before it in {@link
     * Path}. Smaller differences are within the error of predictions. NCCL is last, because it
     * rounds sums differently.
     */
    static final double HANDICAP = 0.03;

    // Paths that push the same data and signals: ranks may mix them in one call.
    private static final Set<Path> PUSHING = EnumSet.of(Path.FUSED, Path.PIPELINED);

    private static final int FLAGS = 1 << 16; // signal flags of each rank
    private static final int ALIGNMENT = 256; // of slots in P2P buffers, in bytes
    private static final int PACK =
            16; // bytes that a thread of the exchange kernel stores at a time

    private static final double ROUND_HOST = 12; // us of the host, for four launches

    private final Machine machine;
    private final Network network;
    private final long bufferSize;

    /**
     * Creates a model.
     *
     * @param network the network between hosts, used if there are more ranks than a host has GPUs
     */
    public CostModel(Machine machine, Network network) {
        if (machine == null || network == null) {
            throw new IllegalArgumentException(
                    "a cost model needs a machine and a network; one of them is null");
        }
        this.machine = machine;
        this.network = network;
        this.bufferSize = Long.MAX_VALUE;
    }

    private CostModel(CostModel other, long bufferSize) {
        this.machine = other.machine;
        this.network = other.network;
        this.bufferSize = bufferSize;
    }

    /**
     * {@return a model of the same GPUs with P2P buffers of a given size} Without a size, the
     * buffers are large enough for every operator.
     *
     * @param byteSize the size of each rank's buffer, at least 1 KiB for the path PIPELINED
     */
    public CostModel withBufferSize(long byteSize) {
        return new CostModel(this, byteSize);
    }

    public CostModel(Machine machine) {
        this(machine, Network.NDR);
    }

    /** {@return the time of the matmul alone, by a library, in microseconds} */
    public double matmul(Workload work) {
        requireNotNull("the operator", work);
        return matmul(work, work.ranks() * work.rows());
    }

    private static void requireNotNull(String what, Object value) {
        if (value == null) {
            throw new IllegalArgumentException(what + " is null, but a cost model needs it");
        }
    }

    private double matmul(Workload work, long rows) {
        double sum = 0;
        for (long n : work.columns()) {
            sum += machine.library().micros(work.type(), rows, n, work.inner());
        }
        return sum;
    }

    /**
     * {@return the time of an operator in microseconds that hides one of its two parts: the matmul
     * alone or the transfer into each GPU at the best rate, whichever takes longer} Both are
     * predicted, so a prediction or a measurement may be shorter by their error.
     */
    public double limit(Workload work) {
        return Math.max(matmul(work), work.bytesIn() / bestRate(work.ranks()) / 1e3);
    }

    private double bestRate(int ranks) {
        return ranks > machine.hostRanks()
                ? ncclRate(ranks)
                : Math.max(machine.copies().rate(), machine.fused().linkRate());
    }

    /**
     * {@return the time in microseconds of NCCL's all-gather or reduce-scatter alone} For ranks on
     * several hosts this is an extrapolation: NCCL is limited by the network.
     */
    public double collective(Workload work) {
        requireNotNull("the operator", work);
        int ranks = work.ranks();
        return ranks == 1 ? 0 : machine.nccl().micros(ranks, work.bytesIn(), ncclRate(ranks));
    }

    private double ncclRate(int ranks) {
        double within = machine.nccl().rate(ranks);
        return ranks > machine.hostRanks() ? Math.min(within, network.rate()) : within;
    }

    /**
     * Predicts the time of a path.
     *
     * @param path the path; need not be possible
     */
    public Prediction predict(Workload work, Path path) {
        requireNotNull("the operator", work);
        requireNotNull("the path", path);
        Machine.Host host = machine.host();
        return switch (path) {
            case FUSED ->
                    new Prediction(
                            path,
                            new FusedMatmulModel(machine, work).fastest().micros(),
                            host.fused());
            case PIPELINED ->
                    new Prediction(
                            path,
                            pipelined(work),
                            host.pipelined(work.ranks())
                                    + ROUND_HOST * (work.ranks() - 1) * rounds(work));
            case GATHERED -> new Prediction(path, matmul(work) + exchange(work), host.gathered());
            case NCCL -> new Prediction(path, matmul(work) + collective(work), host.nccl());
        };
    }

    private double pipelined(Workload work) {
        Machine.Copies copies = machine.copies();
        double cut = 1 + copies.cut() * (work.ranks() - 1);
        double part = cut * matmul(work, work.rows());
        double copy = copies.micros(1, work.partBytes());
        if (rounds(work) > 0) {
            // A round is a put and a copy out of the window; its barrier is in their fixed times.
            copy = 2 * (copy + copies.micros(rounds(work) - 1, 0));
        }
        double computed = part;
        double sent = 0;
        for (int step = 1; step < work.ranks(); step++) {
            // A gathered shard is multiplied after it has arrived; a part is sent after its matmul.
            sent = (work.isGather() ? sent : Math.max(sent, computed)) + copy;
            computed = (work.isGather() ? Math.max(computed, sent) : computed) + part;
        }
        return copies.pipeline() + Math.max(computed, sent) + reduction(work);
    }

    /** Returns the rounds in which a part is sent; 0 if the buffers have a slot for each rank. */
    private long rounds(Workload work) {
        long window = bufferSize / 4 / ALIGNMENT * ALIGNMENT;
        return work.ranks() == 1 || bufferSize >= bufferSize(work) || window == 0
                ? 0
                : (work.partBytes() + window - 1) / window;
    }

    private double exchange(Workload work) {
        Machine.Exchange exchange = machine.exchange();
        return exchange.start() + work.bytesIn() / exchange.rate() / 1e3;
    }

    /**
     * Replaces the size that may differ between ranks by a usual size: what all ranks know of an
     * operator without asking each other.
     */
    public static Workload usual(Workload work) {
        requireNotNull("the operator", work);
        // The inner dimension of a transformer's products is at most 4 times the model's width.
        long inner = Math.min(USUAL_INNER, 4 * work.allColumns());
        long usual = work.isGather() ? USUAL_COLUMNS : inner;
        // FUSED needs whole units: without rounding up, 3 ranks could never take FUSED.
        long unit = FusedMatmulModel.UNIT;
        return work.withOwn((usual / work.ranks() + unit - 1) / unit * unit);
    }

    /** Returns the time to read all parts and write the sum. */
    private double reduction(Workload work) {
        double bytes = (work.ranks() + 1.0) * work.partBytes();
        return work.isGather()
                ? 0
                : machine.library().start() + bytes / machine.copies().reduction() / 1e3;
    }

    /**
     * {@return the paths that are possible for an operator along the first dimension, on Hopper
     * GPUs with large enough P2P buffers; only NCCL for more ranks than a host has GPUs}
     */
    public Set<Path> possible(Workload work) {
        requireNotNull("the operator", work);
        Set<Path> possible = EnumSet.of(Path.NCCL);
        if (work.ranks() > machine.hostRanks()) {
            return possible;
        }
        possible.add(Path.PIPELINED);
        if (work.type() != ScalarType.FLOAT64 && work.partBytes() % PACK == 0) {
            possible.add(Path.GATHERED);
        }
        if (new FusedMatmulModel(machine, work).isPossible(FLAGS)) {
            possible.add(Path.FUSED);
        }
        return possible;
    }

    /**
     * {@return the size of P2P buffers with which the path PIPELINED needs no rounds and the path
     * FUSED is possible, in bytes: two halves, each with a slot for every rank}
     */
    public static long bufferSize(Workload work) {
        requireNotNull("the operator", work);
        return 2L * work.ranks() * ((work.partBytes() + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    }

    /**
     * Chooses the path with the shortest predicted time. Paths are compared in the order of {@link
     * Path}: a later path must be predicted 3 % faster for each step down the list. Calls recorded
     * into a graph take NCCL only if no other path is possible, because NCCL calls cannot be
     * recorded.
     *
     * <p>All ranks choose from the same agreed sizes. If that choice for an all-gather + matmul is
     * FUSED or PIPELINED, each rank chooses again between these two with its own columns: both push
     * the same data and signals.
     *
     * @param work the sizes of this rank
     * @param agreed sizes that are the same on all ranks: the largest, or {@linkplain #usual usual}
     *     ones
     * @param possible returns the paths that are possible for given sizes
     * @param recorded whether the call is recorded into a graph
     * @throws IllegalArgumentException if no path is possible
     */
    public Choice choose(
            Workload work,
            Workload agreed,
            Function<Workload, Set<Path>> possible,
            boolean recorded) {
        requireNotNull("the operator", work);
        requireNotNull("the agreed operator", agreed);
        requireNotNull("the function of possible paths", possible);
        Choice choice = fastest(agreed, possible.apply(agreed), recorded);
        if (!work.isGather() || !PUSHING.contains(choice.path())) {
            return choice;
        }
        Set<Path> own = EnumSet.copyOf(PUSHING);
        own.retainAll(possible.apply(work));
        return fastest(work, own, recorded);
    }

    private Choice fastest(Workload work, Set<Path> possible, boolean recorded) {
        List<Prediction> predictions =
                possible.stream().sorted().map(path -> predict(work, path)).toList();
        boolean others = possible.stream().anyMatch(path -> path != Path.NCCL);
        Path path =
                predictions.stream()
                        .filter(each -> each.path() != Path.NCCL || !others || !recorded)
                        .min(Comparator.comparingDouble(each -> handicapped(each, recorded)))
                        .orElseThrow(
                                () ->
                                        new IllegalArgumentException(
                                                work.operator() + ": no path is possible"))
                        .path();
        String micros =
                predictions.stream()
                        .map(each -> text(each, recorded))
                        .collect(Collectors.joining(", "));
        String own =
                work.isGather()
                        ? work.allColumns() + " columns"
                        : "an inner dimension of " + work.inner();
        String reason = "predicted us on " + machine.name() + " with " + own + ": " + micros;
        return new Choice(path, reason);
    }

    private static String text(Prediction prediction, boolean recorded) {
        return String.format(
                Locale.ROOT, "%s %.1f", prediction.path(), prediction.micros(recorded));
    }

    private static double handicapped(Prediction prediction, boolean recorded) {
        return (1 + HANDICAP * prediction.path().ordinal()) * prediction.micros(recorded);
    }
}
