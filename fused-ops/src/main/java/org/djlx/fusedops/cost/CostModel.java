/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
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
 * What a fused operator takes by each path, and which one is taken: a pure function of the sizes
 * and of a {@link Machine}'s constants, in double arithmetic, so that all ranks that know the same
 * find the same.
 *
 * <pre>
 *   one launch   {@link FusedMatmulModel}
 *   whole        an exchange by kernels, and one matmul before or behind it
 *   scheduled    all-gather: the own shard's matmul, then each other's when its copy has arrived;
 *                reduce-scatter: a part's matmul while the one before is copied, then the reduction
 *   plain        the matmul, and NCCL's collective
 * </pre>
 *
 * <p>Immutable.
 */
public final class CostModel {

    // What all ranks together are assumed to have of the size in which they may differ. An inner
    // dimension is as wide as A in attention, 3.5 times that in the MLP behind it.
    private static final long USUAL_COLUMNS = 8192;
    private static final long USUAL_INNER = 16384;

    /**
     * How much faster a path must be predicted to be for each that is named before it in {@link
     * Path}: less, predictions do not tell apart. NCCL, which rounds sums otherwise, is last.
     */
    static final double HANDICAP = 0.03;

    // Ways in which ranks may multiply the same shards.
    private static final Set<Path> PUSHING = EnumSet.of(Path.FUSED, Path.PIPELINED);

    private static final int FLAGS = 1 << 16; // of each rank
    private static final int ALIGNMENT = 256; // of what lies in P2P buffers, in bytes
    private static final int PACK = 16; // bytes that are exchanged at once

    private final Machine machine;
    private final Network network;

    /**
     * Creates a model.
     *
     * @param machine the GPUs
     * @param network what joins hosts, for more ranks than a host has
     * @throws IllegalArgumentException if an argument is null
     */
    public CostModel(Machine machine, Network network) {
        if (machine == null || network == null) {
            throw new IllegalArgumentException("a cost model needs a machine and a network");
        }
        this.machine = machine;
        this.network = network;
    }

    /**
     * Creates a model of GPUs of one host.
     *
     * @param machine the GPUs
     * @throws IllegalArgumentException if the machine is null
     */
    public CostModel(Machine machine) {
        this(machine, Network.NDR);
    }

    /**
     * Returns what the matmul takes alone, by a library.
     *
     * @param work the operator
     * @return microseconds
     */
    public double matmul(Workload work) {
        requireNotNull("an operator", work);
        return matmul(work, work.ranks() * work.rows());
    }

    private static void requireNotNull(String what, Object value) {
        if (value == null) {
            throw new IllegalArgumentException(
                    "a cost model is asked of " + what + ", not of null");
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
     * Returns how long an operator takes at least: as long as the matmul alone, or as its bytes
     * into each GPU at the best rate.
     *
     * @param work the operator
     * @return microseconds
     */
    public double limit(Workload work) {
        return Math.max(matmul(work), work.bytesIn() / bestRate(work.ranks()) / 1e3);
    }

    private double bestRate(int ranks) {
        return ranks > machine.hostRanks()
                ? ncclRate(ranks)
                : Math.max(machine.copies().rate(), machine.launch().linkRate());
    }

    /**
     * Returns what NCCL's all-gather or reduce-scatter takes alone. Ranks on several hosts are as
     * fast as the network; that is an extrapolation.
     *
     * @param work the operator
     * @return microseconds
     */
    public double collective(Workload work) {
        requireNotNull("an operator", work);
        int ranks = work.ranks();
        return ranks == 1 ? 0 : machine.nccl().micros(ranks, work.bytesIn(), ncclRate(ranks));
    }

    private double ncclRate(int ranks) {
        double within = machine.nccl().rate(ranks);
        return ranks > machine.hostRanks() ? Math.min(within, network.rate()) : within;
    }

    /**
     * Predicts what a path takes.
     *
     * @param work the operator
     * @param path the path; whether it is possible is not asked
     * @return the prediction
     */
    public Prediction predict(Workload work, Path path) {
        requireNotNull("an operator", work);
        requireNotNull("a path", path);
        Machine.Host host = machine.host();
        return switch (path) {
            case FUSED ->
                    new Prediction(
                            path,
                            new FusedMatmulModel(machine, work).fastest().micros(),
                            host.launch());
            case PIPELINED -> new Prediction(path, pipelined(work), host.pipelined(work.ranks()));
            case GATHERED -> new Prediction(path, matmul(work) + exchange(work), host.gathered());
            case NCCL -> new Prediction(path, matmul(work) + collective(work), host.nccl());
        };
    }

    private double pipelined(Workload work) {
        Machine.Copies copies = machine.copies();
        double cut = 1 + copies.cut() * (work.ranks() - 1);
        double part = cut * matmul(work, work.rows());
        double copy = copies.micros(1, work.partBytes());
        double computed = part;
        double sent = 0;
        for (int step = 1; step < work.ranks(); step++) {
            // A shard is there when it has been sent; a part can be sent when it has been computed.
            sent = (work.isGather() ? sent : Math.max(sent, computed)) + copy;
            computed = (work.isGather() ? Math.max(computed, sent) : computed) + part;
        }
        return copies.schedule() + Math.max(computed, sent) + reduction(work);
    }

    private double exchange(Workload work) {
        Machine.Exchange exchange = machine.exchange();
        return exchange.start() + work.bytesIn() / exchange.rate() / 1e3;
    }

    /**
     * Returns an operator of which all ranks know all sizes: what follows from it is the same on
     * all of them.
     *
     * @param work the operator, as a rank has it
     * @return the same with a usual size instead of the columns of Bs or of the inner dimension,
     *     whichever is each rank's own
     */
    public static Workload agreed(Workload work) {
        requireNotNull("an operator", work);
        long usual = work.isGather() ? USUAL_COLUMNS : USUAL_INNER;
        // A rank's part has whole units, as real ones mostly have: otherwise 3 ranks could never
        // have one launch.
        long unit = FusedMatmulModel.UNIT;
        return work.withOwn((usual / work.ranks() + unit - 1) / unit * unit);
    }

    /** All parts are read, and the sum is written. */
    private double reduction(Workload work) {
        double bytes = (work.ranks() + 1.0) * work.partBytes();
        return work.isGather()
                ? 0
                : machine.library().start() + bytes / machine.copies().reduction() / 1e3;
    }

    /**
     * Returns the paths that the sizes of an operator allow, along the first dimension, on GPUs of
     * the Hopper architecture whose P2P buffers are large enough.
     *
     * @param work the operator
     * @return the paths; only the plain one for more ranks than a host has
     */
    public Set<Path> possible(Workload work) {
        requireNotNull("an operator", work);
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
     * Returns how large P2P buffers are to be for all but the plain path.
     *
     * @param work the operator
     * @return the size of a rank's buffer, in bytes: two halves of a slot for each rank
     */
    public static long bufferSize(Workload work) {
        requireNotNull("an operator", work);
        return 2L * work.ranks() * ((work.partBytes() + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    }

    /**
     * Chooses the path that is predicted to be the fastest, by a handicap of 3 % for those that are
     * named later in {@link Path}. No graph can hold what NCCL runs.
     *
     * <p>All ranks choose alike where they must: {@linkplain #agreed by the sizes that all know}.
     * Only when these ask neither for NCCL nor for an exchange as a whole, a rank chooses by its
     * own columns of B in which way it multiplies the shards of an all-gather + matmul, which all
     * ranks push alike.
     *
     * @param work the operator, as a rank has it
     * @param possible the paths that are possible for an operator of certain sizes
     * @param recorded whether the call is recorded into a graph
     * @return the choice, with the predictions that it rests on
     * @throws IllegalArgumentException if no path is possible
     */
    public Choice choose(Workload work, Function<Workload, Set<Path>> possible, boolean recorded) {
        requireNotNull("possible paths", possible);
        Workload agreed = agreed(work);
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
        return new Choice(path, "predicted us with " + own + ": " + micros);
    }

    private static String text(Prediction prediction, boolean recorded) {
        return String.format(
                Locale.ROOT, "%s %.1f", prediction.path(), prediction.micros(recorded));
    }

    private static double handicapped(Prediction prediction, boolean recorded) {
        return (1 + HANDICAP * prediction.path().ordinal()) * prediction.micros(recorded);
    }
}
