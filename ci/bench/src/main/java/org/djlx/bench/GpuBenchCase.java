// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.djlx.bench.GpuBenchRow.BARE_LAUNCH;
import static org.djlx.bench.GpuBenchRow.COMMUNICATION;
import static org.djlx.bench.GpuBenchRow.MATMUL;
import static org.djlx.bench.GpuBenchRow.NCCL;
import static org.djlx.bench.GpuBenchRow.NCCL_WINDOWS;
import static org.djlx.bench.GpuBenchRow.OURS;
import static org.djlx.bench.GpuBenchRow.OURS_APART;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.function.IntConsumer;
import java.util.function.IntFunction;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.djlx.collectives.ReduceOp;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.NormedResidual;
import org.djlx.fusedops.UsageCounter;
import org.djlx.fusedops.VariableAllToAll;
import org.djlx.fusedops.cost.Path;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;

/**
 * An operation at one size in bfloat16: its contenders, and the expected result. The sizes are
 *
 * <ul>
 *   <li>of a matmul: A is (m, k), unsharded B (k, n)
 *   <li>of an all-reduce + RMSNorm: m rows of n elements
 *   <li>of an expert exchange: m tokens of all ranks together, n elements each; k experts of a
 *       token
 * </ul>
 *
 * @param path the forced path of a fused operator; null if the operator chooses
 * @param bytes for all-reduce and broadcast the size of the tensor; for all-gather and
 *     reduce-scatter the size of a rank's part; for all-to-all the bytes that a rank sends to each
 *     rank; 0 for other operations
 */
record GpuBenchCase(Operation operation, Path path, long bytes, int m, int n, int k) {

    enum Operation {
        allReduce,
        allGather,
        reduceScatter,
        allToAll,
        broadcast,
        allGatherMatmul,
        matmulReduceScatter,
        allReduceRmsNorm,
        expertExchange
    }

    private static final int EXPERTS = 128; // Qwen3-MoE's; rounded down to a multiple of ranks
    private static final int ALIGNMENT = 8; // an expert's received rows are padded to a multiple
    private static final float EPSILON = 1e-5f; // of an RMSNorm
    private static final int WARM_UP = 200; // calls; a column reports the first calls
    private static final int TIMED = 5; // calls per round
    private static final double HALF_ULP = 1 / 256.0;
    // The inputs of all turns exceed the GPU's L2 cache, 50 MB on Hopper.
    private static final long ROTATED_BYTES = 256 << 20;
    private static final int MIN_TURNS = 2;
    private static final int MAX_TURNS = 20;

    static GpuBenchCase collective(Operation operation, long bytes) {
        return new GpuBenchCase(operation, null, bytes, 0, 0, 0);
    }

    static GpuBenchCase fused(Operation operation, int m, int n, int k) {
        return new GpuBenchCase(operation, null, 0, m, n, k);
    }

    static GpuBenchCase norm(int rows, int hidden) {
        return new GpuBenchCase(Operation.allReduceRmsNorm, null, 0, rows, hidden, 0);
    }

    GpuBenchCase by(Path forced) {
        return new GpuBenchCase(operation, forced, bytes, m, n, k);
    }

    /** Returns the number of rotating inputs; inputs of small sizes all stay in the cache. */
    int turns(int worldSize) {
        long turns = 1 + ROTATED_BYTES / turnBytes(worldSize);
        return (int) Math.max(MIN_TURNS, Math.min(MAX_TURNS, turns));
    }

    /** Returns the bytes of a rank's operands and results of one turn. */
    private long turnBytes(int worldSize) {
        long mk = (long) m * k;
        long kn = (long) k * n / worldSize;
        long mn = (long) m * n;
        return switch (operation) {
            case allReduce, broadcast -> bytes;
            case allGather, reduceScatter -> bytes * (worldSize + 1);
            case allToAll -> 2 * bytes * worldSize;
            case allGatherMatmul -> 2 * (mk + kn + mn / worldSize);
            case matmulReduceScatter -> 2 * (mk / worldSize + kn + mn);
            case allReduceRmsNorm -> 2 * (4 * mn + n);
            case expertExchange -> 4 * mn * k / worldSize;
        };
    }

    /** Measures on this rank; the row's error is the largest of its contenders. */
    @SuppressWarnings("try") // the scope is not named in the body
    GpuBenchRow measure(BenchRank rank, int gpus, int threads, int rounds) {
        if (path == null) {
            return measured(rank, gpus, threads, rounds);
        }
        // The scope is for all threads of the process: no rank calls before all have opened it.
        try (FusedOps.Scope scope = FusedOps.force(path);
                UsageCounter usage = FusedOps.countUsage()) {
            rank.meeting().await();
            GpuBenchRow row = measured(rank, gpus, threads, rounds);
            if (usage.calls(path) < usage.calls()) {
                row.notes().put(OURS, "not all calls took the path " + path);
            }
            rank.meeting().await();
            return row;
        }
    }

    private GpuBenchRow measured(BenchRank rank, int gpus, int threads, int rounds) {
        int worldSize = rank.worldSize();
        Map<String, Contender> contenders = new LinkedHashMap<>();
        Map<String, String> notes = new LinkedHashMap<>();
        int turns = turns(worldSize);
        Supplier<NDArray> expecting =
                switch (operation) {
                    case allReduce, broadcast -> addInPlace(rank, turns, contenders, notes);
                    case allGather, reduceScatter, allToAll -> addCopying(rank, turns, contenders);
                    case allGatherMatmul -> addGather(rank, turns, contenders);
                    case matmulReduceScatter -> addScatter(rank, turns, contenders);
                    case allReduceRmsNorm -> addNorm(rank, turns, contenders);
                    case expertExchange -> addExperts(rank, turns, contenders);
                };
        if (rank.lane().bareLaunch() != null) {
            contenders.put(BARE_LAUNCH, rank.lane().bareLaunch());
        }
        // NCCL rounds at each rank, and a product is rounded once before the reduction.
        double allowed = HALF_ULP * (worldSize + 1);
        double[] error = {0};
        SideBySide.Result result;
        SideBySide.Calls calls = new SideBySide.Calls(WARM_UP, TIMED, rounds, true);
        try (NDManager checks = rank.manager().newSubManager()) {
            // Before graphs are recorded, because replays may overwrite arrays that are created
            // later.
            NDArray expected = expecting.get();
            expected.attach(checks);
            result =
                    new SideBySide(rank, turns, turnBytes(worldSize), calls)
                            .measure(
                                    contenders,
                                    (name, array) -> {
                                        double own = error(array, expected);
                                        if (!(own <= allowed)) {
                                            notes.put(name, "wrong by " + own);
                                        }
                                        error[0] = Math.max(error[0], own);
                                    });
        }
        // All ranks are done with each other's memory. A failed rank does not get here.
        rank.meeting().await();
        contenders.values().forEach(Contender::close);
        notes.putAll(result.notes());
        return new GpuBenchRow(
                path == null ? operation.name() : operation + " " + path,
                sizes(),
                bytes > 0 ? bytes : null,
                worldSize,
                threads,
                gpus,
                error[0],
                allowed,
                result.columns(),
                result.replay(),
                notes);
    }

    private List<Integer> sizes() {
        return switch (operation) {
            case allReduce, allGather, reduceScatter, allToAll, broadcast -> null;
            case allReduceRmsNorm -> List.of(m, n);
            default -> List.of(m, n, k);
        };
    }

    /**
     * Adds the contenders of an all-reduce or a broadcast; returns the first turn's expected result
     * in float64, computed later.
     */
    private Supplier<NDArray> addInPlace(
            BenchRank rank,
            int turns,
            Map<String, Contender> contenders,
            Map<String, String> notes) {
        long count = bytes / 2;
        List<NDArray> inputs = arrays(turns, i -> rank.input(rank.ours().rank(), i, 0, count));
        List<NDArray> own = arrays(turns, i -> rank.empty(count));
        contenders.put(OURS, inPlace(inputs, own, i -> ours(rank, own.get(i), null), own.get(0)));
        if (rank.baseline() != null) {
            List<NDArray> plain = arrays(turns, i -> rank.empty(count));
            IntConsumer call = i -> nccl(rank, plain.get(i), null);
            contenders.put(NCCL, inPlace(inputs, plain, call, plain.get(0)));
        }
        if (operation == Operation.broadcast) {
            return () -> doubles(rank.input(0, 0, 0, count));
        }
        if (rank.baseline() != null) {
            String failure = putWindows(rank, contenders, inputs);
            if (!failure.isEmpty()) {
                notes.put(NCCL_WINDOWS, failure);
            }
        }
        return () -> sum(rank.worldSize(), r -> doubles(rank.input(r, 0, 0, count)));
    }

    /**
     * Adds the contenders of an all-gather, a reduce-scatter or an all-to-all; returns the first
     * turn's expected result in float64, computed later.
     */
    private Supplier<NDArray> addCopying(
            BenchRank rank, int turns, Map<String, Contender> contenders) {
        long count = bytes / 2;
        int worldSize = rank.worldSize();
        int own = rank.ours().rank();
        long inRows = operation == Operation.allGather ? 1 : worldSize;
        long outRows = operation == Operation.reduceScatter ? 1 : worldSize;
        List<NDArray> inputs = arrays(turns, i -> rank.input(own, i, 0, inRows, count));
        List<NDArray> outputs = arrays(turns, i -> rank.empty(outRows, count));
        contenders.put(
                OURS, intoArrays(i -> ours(rank, outputs.get(i), inputs.get(i)), outputs.get(0)));
        if (rank.baseline() != null) {
            List<NDArray> plain = arrays(turns, i -> rank.empty(outRows, count));
            contenders.put(
                    NCCL, intoArrays(i -> nccl(rank, plain.get(i), inputs.get(i)), plain.get(0)));
        }
        IntFunction<NDArray> part =
                r -> {
                    try (NDArray whole = doubles(rank.input(r, 0, 0, inRows, count));
                            NDArray row = whole.get(inRows == 1 ? "0:1" : own + ":" + (own + 1))) {
                        return row.duplicate();
                    }
                };
        return outRows == 1
                ? () -> sum(worldSize, part)
                : () -> stacked(rank, new Shape(outRows, count), part);
    }

    /** Runs this case's collective with this project. In-place collectives ignore {@code from}. */
    private void ours(BenchRank rank, NDArray to, NDArray from) {
        switch (operation) {
            case allReduce -> rank.ours().allReduce(to, ReduceOp.SUM, false);
            case broadcast -> rank.ours().broadcast(to, 0, false);
            case allGather -> rank.ours().allGatherIntoTensor(to, from, false);
            case reduceScatter -> rank.ours().reduceScatterTensor(to, from, ReduceOp.SUM, false);
            default -> rank.ours().allToAllSingle(to, from, false);
        }
    }

    /** Runs this case's collective with NCCL. In-place collectives ignore {@code from}. */
    private void nccl(BenchRank rank, NDArray to, NDArray from) {
        switch (operation) {
            case allReduce -> rank.baseline().allReduce(to);
            case broadcast -> rank.baseline().broadcast(to);
            case allGather -> rank.baseline().allGather(to, from);
            case reduceScatter -> rank.baseline().reduceScatter(to, from);
            default -> rank.baseline().allToAll(to, from);
        }
    }

    /**
     * Adds the baseline on a window, if supported; returns the cause if no window can be created.
     */
    private String putWindows(
            BenchRank rank, Map<String, Contender> contenders, List<NDArray> inputs) {
        // Aligned like an allocation.
        long distance = (bytes + 255) / 256 * 256;
        Baseline.Window window = null;
        String own = "";
        try {
            window = rank.baseline().window(distance * inputs.size());
        } catch (RuntimeException e) {
            own = String.valueOf(e.getMessage());
        }
        String failure = rank.meeting().failureOfAny(own);
        if (window == null) {
            return failure;
        }
        if (!failure.isEmpty()) {
            window.free().run();
            return failure;
        }
        Baseline.Window made = window;
        Shape shape = inputs.get(0).getShape();
        List<NDArray> views =
                arrays(inputs.size(), i -> made.view(rank.manager(), i * distance, shape));
        IntConsumer reduce = i -> rank.baseline().allReduce(views.get(i));
        Contender reducing = inPlace(inputs, views, reduce, views.get(0));
        contenders.put(
                NCCL_WINDOWS,
                new Contender.IntoArrays(
                        reduce,
                        views.get(0),
                        reducing::reset,
                        () -> {
                            views.forEach(NDArray::close);
                            made.free().run();
                        }));
        return "";
    }

    /**
     * Returns a contender that reduces in place. Its reset restores the inputs, because sums of
     * sums would overflow. {@code kept} is the first turn's result; null if it is not checked.
     */
    private static Contender inPlace(
            List<NDArray> inputs, List<NDArray> tensors, IntConsumer reduce, NDArray kept) {
        Runnable restore =
                () -> {
                    for (int i = 0; i < tensors.size(); i++) {
                        Torch.copy(tensors.get(i), inputs.get(i));
                    }
                };
        restore.run();
        return new Contender.IntoArrays(reduce, kept, restore, () -> {});
    }

    private Supplier<NDArray> addGather(
            BenchRank rank, int turns, Map<String, Contender> contenders) {
        int rows = m / rank.worldSize();
        int columns = n / rank.worldSize();
        int own = rank.ours().rank();
        List<NDArray> as = arrays(turns, i -> rank.input(own, i, 0, rows, k));
        List<NDArray> bs = arrays(turns, i -> rank.input(own, i, 1, k, columns));
        List<NDArray> gathered = arrays(turns, i -> rank.input(own, i, 2, m, k));
        List<NDArray> outs = arrays(turns, i -> rank.empty(m, columns));
        contenders.put(
                OURS,
                turn ->
                        FusedOps.allGatherMatmul(
                                        as.get(turn), List.of(bs.get(turn)), 0, rank.ours(), false)
                                .outputs()
                                .get(0));
        IntConsumer gather = i -> rank.baseline().allGather(gathered.get(i), as.get(i));
        IntConsumer matmul = i -> Torch.mmOut(outs.get(i), gathered.get(i), bs.get(i));
        putBaselines(rank, contenders, gather, matmul, gather.andThen(matmul), outs.get(0));
        return () -> {
            try (NDArray b = doubles(rank.input(own, 0, 1, k, columns))) {
                return stacked(
                        rank,
                        new Shape(m, columns),
                        r -> {
                            try (NDArray a = doubles(rank.input(r, 0, 0, rows, k))) {
                                return a.matMul(b);
                            }
                        });
            }
        };
    }

    private Supplier<NDArray> addScatter(
            BenchRank rank, int turns, Map<String, Contender> contenders) {
        int rows = m / rank.worldSize();
        int inner = k / rank.worldSize();
        int own = rank.ours().rank();
        List<NDArray> as = arrays(turns, i -> rank.input(own, i, 0, m, inner));
        List<NDArray> bs = arrays(turns, i -> rank.input(own, i, 1, inner, n));
        List<NDArray> products = arrays(turns, i -> rank.empty(m, n));
        List<NDArray> parts = arrays(turns, i -> rank.empty(rows, n));
        contenders.put(
                OURS,
                turn ->
                        FusedOps.matmulReduceScatter(
                                as.get(turn), bs.get(turn), ReduceOp.SUM, 0, rank.ours()));
        IntConsumer matmul = i -> Torch.mmOut(products.get(i), as.get(i), bs.get(i));
        IntConsumer scatter = i -> rank.baseline().reduceScatter(parts.get(i), products.get(i));
        putBaselines(rank, contenders, scatter, matmul, matmul.andThen(scatter), parts.get(0));
        String range = own * rows + ":" + (own + 1) * rows;
        IntFunction<NDArray> product =
                r -> {
                    try (NDArray a = rank.input(r, 0, 0, m, inner);
                            NDArray mine = doubles(a.get(range));
                            NDArray b = doubles(rank.input(r, 0, 1, inner, n))) {
                        return mine.matMul(b);
                    }
                };
        return () -> sum(rank.worldSize(), product);
    }

    private Supplier<NDArray> addNorm(
            BenchRank rank, int turns, Map<String, Contender> contenders) {
        List<NDArray> partials = arrays(turns, i -> rank.input(rank.ours().rank(), i, 0, m, n));
        List<NDArray> residuals = arrays(turns, i -> rank.input(0, i, 1, m, n));
        List<NDArray> weights = arrays(turns, i -> rank.input(0, i, 2, n));
        NDArray epsilon = rank.manager().create(EPSILON);
        Contender ours =
                turn -> {
                    NormedResidual result =
                            FusedOps.allReduceRmsNorm(
                                    partials.get(turn),
                                    residuals.get(turn),
                                    weights.get(turn),
                                    EPSILON,
                                    rank.ours());
                    result.residual().close();
                    return result.norm();
                };
        contenders.put(OURS, ours);
        if (rank.baseline() != null) {
            // Must not be the last contender: ranks meet before the next contender, outside this
            // scope.
            contenders.put(OURS_APART, turn -> notFused(ours, turn));
            List<NDArray> sums = arrays(turns, i -> rank.empty(m, n));
            List<NDArray> norms = arrays(turns, i -> rank.empty(m, n));
            IntConsumer collective = i -> rank.baseline().allReduce(sums.get(i));
            IntConsumer norm =
                    i -> {
                        try (NDArray wide = Torch.cast(sums.get(i), ScalarType.FLOAT32)) {
                            norm(wide, residuals.get(i), weights.get(i), epsilon);
                            Torch.copy(norms.get(i), wide);
                        }
                    };
            contenders.put(NCCL, inPlace(partials, sums, collective.andThen(norm), norms.get(0)));
            contenders.put(COMMUNICATION, inPlace(partials, sums, collective, null));
        }
        return () -> {
            NDArray sum = sum(rank.worldSize(), r -> doubles(rank.input(r, 0, 0, m, n)));
            return norm(sum, residuals.get(0), weights.get(0), epsilon);
        };
    }

    /**
     * Adds an expert exchange: an all-to-all sends the tokens to their experts, which are random,
     * and a second one sends the same rows back. A token has a row for each of its experts.
     */
    private Supplier<NDArray> addExperts(
            BenchRank rank, int turns, Map<String, Contender> contenders) {
        int worldSize = rank.worldSize();
        int own = rank.ours().rank();
        int tokens = m / worldSize;
        long rows = (long) tokens * k;
        long[][] splits = new long[worldSize][];
        int experts = EXPERTS / worldSize * worldSize;
        Arrays.setAll(splits, r -> splits(r, tokens, experts));
        NDManager manager = rank.manager();
        NDArray sent = manager.create(splits[own]); // rows for each expert
        NDArray routed = manager.zeros(new Shape(2, experts), DataType.INT64);
        NDArray returned = manager.zeros(new Shape(2, experts), DataType.INT64);
        NDArray forExperts = rank.empty(capacity(splits), n);
        List<NDArray> inputs = arrays(turns, i -> rank.input(own, i, 0, rows, n));
        List<NDArray> backs = arrays(turns, i -> rank.empty(rows, n));
        IntConsumer exchange =
                i -> {
                    VariableAllToAll.allToAllVdev2d(
                            rank.ours(), forExperts, inputs.get(i), sent, routed, ALIGNMENT);
                    VariableAllToAll.allToAllVdev2dOffset(
                            rank.ours(), backs.get(i), forExperts, routed, returned);
                };
        contenders.put(OURS, intoArrays(exchange, backs.get(0)));
        return () -> doubles(rank.input(own, 0, 0, rows, n));
    }

    /** Returns the number of rows that a rank sends to each expert. */
    private long[] splits(int rank, int tokens, int experts) {
        SplittableRandom random = new SplittableRandom(rank);
        long[] rows = new long[experts];
        for (int token = 0; token < tokens; token++) {
            random.ints(0, experts).distinct().limit(k).forEach(expert -> rows[expert]++);
        }
        return rows;
    }

    /** Returns the largest number of rows that a rank receives, with each expert's padding. */
    private static long capacity(long[][] splits) {
        int experts = splits[0].length;
        long[] padded = new long[splits.length];
        for (int expert = 0; expert < experts; expert++) {
            long rows = 0;
            for (long[] ofRank : splits) {
                rows += ofRank[expert];
            }
            padded[expert * splits.length / experts] +=
                    Math.max(1, (rows + ALIGNMENT - 1) / ALIGNMENT) * ALIGNMENT;
        }
        return Arrays.stream(padded).max().orElseThrow();
    }

    /** Calls a contender with forced fallback, which affects all threads of the process. */
    @SuppressWarnings("try") // the scope is not named in the body
    private static NDArray notFused(Contender contender, int turn) {
        try (FusedOps.Scope scope = FusedOps.forceFallback()) {
            return contender.call(turn);
        }
    }

    /**
     * Replaces a sum by the RMSNorm of sum and residual, in the sum's type. A graph can record it,
     * because all operands are arrays.
     */
    private static NDArray norm(NDArray sum, NDArray residual, NDArray weight, NDArray epsilon) {
        ScalarType type = Torch.scalarType(sum);
        try (NDArray addend = Torch.cast(residual, type);
                NDArray factors = Torch.cast(weight, type)) {
            sum.addi(addend);
            try (NDArray squares = sum.square();
                    NDArray mean = squares.mean(new int[] {1}, true);
                    NDArray root = mean.addi(epsilon).sqrt()) {
                return sum.divi(root).muli(factors);
            }
        }
    }

    /** Adds the baselines: NCCL and a matmul in sequence, and each alone. */
    private static void putBaselines(
            BenchRank rank,
            Map<String, Contender> contenders,
            IntConsumer collective,
            IntConsumer matmul,
            IntConsumer both,
            NDArray kept) {
        if (rank.baseline() != null) {
            contenders.put(NCCL, intoArrays(both, kept));
        }
        contenders.put(MATMUL, intoArrays(matmul, null));
        if (rank.baseline() != null) {
            contenders.put(COMMUNICATION, intoArrays(collective, null));
        }
    }

    private static Contender intoArrays(IntConsumer body, NDArray kept) {
        return new Contender.IntoArrays(body, kept, () -> {}, () -> {});
    }

    private static List<NDArray> arrays(int turns, IntFunction<NDArray> maker) {
        return IntStream.range(0, turns).mapToObj(maker).toList();
    }

    /** Returns a float64 array of the given shape: the rows of all ranks' parts, in rank order. */
    private static NDArray stacked(BenchRank rank, Shape shape, IntFunction<NDArray> part) {
        NDArray all = Torch.empty(rank.manager(), shape, ScalarType.FLOAT64);
        long rows = shape.get(0) / rank.worldSize();
        for (int r = 0; r < rank.worldSize(); r++) {
            try (NDArray each = part.apply(r);
                    NDArray place = all.get(r * rows + ":" + (r + 1) * rows)) {
                Torch.copy(place, each);
            }
        }
        return all;
    }

    private static NDArray sum(int ranks, IntFunction<NDArray> part) {
        NDArray sum = part.apply(0);
        for (int r = 1; r < ranks; r++) {
            try (NDArray next = part.apply(r)) {
                sum.addi(next);
            }
        }
        return sum;
    }

    /** Returns the largest error relative to the largest magnitude. */
    private static double error(NDArray result, NDArray expected) {
        try (NDArray difference = Torch.cast(result, ScalarType.FLOAT64)) {
            difference.subi(expected);
            return magnitude(difference) / magnitude(expected);
        }
    }

    private static double magnitude(NDArray array) {
        try (NDArray max = array.max();
                NDArray min = array.min()) {
            return Math.max(Math.abs(max.getDouble()), Math.abs(min.getDouble()));
        }
    }

    /** Casts an array to float64, and closes the original. */
    private static NDArray doubles(NDArray array) {
        try (array) {
            return Torch.cast(array, ScalarType.FLOAT64);
        }
    }
}
