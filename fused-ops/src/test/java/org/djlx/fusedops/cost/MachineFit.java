// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.cost;

import java.math.BigDecimal;
import java.math.MathContext;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.OptionalDouble;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.function.ToDoubleFunction;
import java.util.stream.Stream;
import org.djlx.nativeops.torch.ScalarType;

/**
 * Fits the constants of a machine to the measurements, one part of the model after the other, each
 * to the rows that depend on it most. Matmuls differ in speed between machines of one kind and
 * between runs; so each source has a pace, relative to the project's own benchmark.
 *
 * <p>The search changes one constant at a time, by ever smaller steps. It minimises a Huber loss of
 * log(predicted / measured), so that outliers do not dominate. It is deterministic.
 */
final class MachineFit {

    private static final String REFERENCE = "@5fc1732"; // suffix of the sources of pace 1
    private static final double NEAR = 0.05; // how closely a row of a run repeats
    // GB/s of a pushing block, timed in the kernel. While the other blocks multiply, 8 blocks push
    // 200 to 246 GB/s on 2 H200s and 260 on 4. The fit cannot find this rate: any rate from 24 to
    // 62
    // explains the times of operators equally well.
    private static final double BLOCK_RATE = 32;
    private static final double CLOSE =
            0.1; // paths whose times differ less are hard to choose between
    private static final double HOST_BOUND = 0.8; // the host's part of the time
    private static final int DIGITS = 3;

    private final List<Measurement> rows;
    private final Map<String, Double> paces = new TreeMap<>();

    // Initial values, replaced by fitted ones.
    private Machine.Library library = Machine.H200.library();
    private Machine.Fused fused = Machine.H200.fused();
    private Machine.Copies copies = Machine.H200.copies();
    private Machine.Exchange exchange = Machine.H200.exchange();
    private Machine.Nccl nccl = Machine.H200.nccl();
    private Machine.Host host = Machine.H200.host();

    MachineFit(List<Measurement> rows) {
        this.rows = rows;
    }

    /** Returns the machine fitted to all rows. */
    Machine fit() {
        fitLibrary();
        fitNccl();
        fitCopies();
        fitLaunch();
        fitPipeline();
        fitExchange();
        fitHost();
        return machine(library);
    }

    private Machine machine(Machine.Library library) {
        Machine h200 = Machine.H200;
        return new Machine(
                h200.name(), h200.multiprocessors(), library, fused, copies, exchange, nccl, host);
    }

    /** Returns the time of matmuls relative to the project's benchmark. */
    double pace(String source) {
        return paces.entrySet().stream()
                .filter(entry -> source.startsWith(entry.getKey()))
                .mapToDouble(Map.Entry::getValue)
                .findFirst()
                .orElse(1);
    }

    /** Returns the machine with the pace of the source of a row. */
    Machine machineOf(Measurement row) {
        return machine(paced(library, pace(row.source())));
    }

    private static Machine.Library paced(Machine.Library library, double pace) {
        return new Machine.Library(
                library.start(), library.teraflops() / pace, library.memoryRate());
    }

    static boolean isOperator(Measurement row) {
        return Arrays.stream(FusedOperator.values())
                .anyMatch(operator -> operator.toString().equals(row.operator()));
    }

    static Workload workload(Measurement row) {
        FusedOperator operator =
                row.operator().equals(FusedOperator.ALL_GATHER_MATMUL.toString())
                        ? FusedOperator.ALL_GATHER_MATMUL
                        : FusedOperator.MATMUL_REDUCE_SCATTER;
        ScalarType type = ScalarType.valueOf(row.type().toUpperCase());
        return Workload.unsharded(operator, type, row.ranks(), row.m(), row.n(), row.k());
    }

    /** Tells whether GPU time dominates a row, not host time. */
    private static boolean isOfDevice(Measurement row) {
        return row.host().orElse(0) < HOST_BOUND * row.micros();
    }

    private List<Measurement> rows(String... paths) {
        return rows.stream()
                .filter(row -> Arrays.asList(paths).contains(row.path()) && isOfDevice(row))
                .toList();
    }

    /** Returns the row of the same operator and run on another path. */
    Measurement beside(Measurement row, String path) {
        return rows.stream()
                .filter(other -> other.path().equals(path) && other.recorded() == row.recorded())
                .filter(other -> isBeside(other, row))
                .findFirst()
                .orElse(null);
    }

    private static boolean isBeside(Measurement one, Measurement other) {
        return one.source().equals(other.source())
                && one.operator().equals(other.operator())
                && one.ranks() == other.ranks()
                && one.m() == other.m()
                && one.n() == other.n()
                && one.k() == other.k();
    }

    private void fitLibrary() {
        List<String> sources =
                rows("matmul").stream()
                        .map(Measurement::source)
                        .filter(source -> !source.endsWith(REFERENCE))
                        .distinct()
                        .toList();
        double[] start = new double[3 + sources.size()];
        Arrays.fill(start, 1);
        start[0] = 10;
        start[1] = 500;
        start[2] = 3000;
        double[] best =
                search(
                        start,
                        x -> {
                            Machine.Library tried = new Machine.Library(x[0], x[1], x[2]);
                            double sum = 0;
                            for (Measurement row : rows("matmul")) {
                                int source = sources.indexOf(row.source());
                                double pace = source < 0 ? 1 : x[3 + source];
                                sum += loss(matmul(tried, pace, row), row.micros());
                            }
                            return sum;
                        });
        for (int i = 0; i < sources.size(); i++) {
            paces.put(sources.get(i), best[3 + i]);
        }
        library = new Machine.Library(round(best[0]), round(best[1]), round(best[2]));
    }

    private double matmul(Machine.Library library, double pace, Measurement row) {
        Machine.Library paced = paced(library, pace);
        if (isOperator(row)) {
            return new CostModel(machine(paced)).matmul(workload(row));
        }
        ScalarType type = ScalarType.BFLOAT16;
        return row.ranks() * paced.micros(type, row.m() / row.ranks(), row.n(), row.k());
    }

    private void fitNccl() {
        List<Double> starts = new ArrayList<>();
        List<Double> rates = new ArrayList<>();
        List<Double> fewStarts = new ArrayList<>();
        List<Double> fewRates = new ArrayList<>();
        for (int ranks : new int[] {2, 4, 8}) {
            double[] best =
                    search(
                            new double[] {20, 300, 6, 100},
                            x -> {
                                double sum = 0;
                                for (Measurement row : rows("nccl", "collective")) {
                                    if (row.ranks() == ranks) {
                                        double micros = nccl(x, workload(row).bytesIn());
                                        sum += loss(micros + matmulBeside(row), row.micros());
                                    }
                                }
                                return sum;
                            });
            starts.add(round(best[0]));
            rates.add(round(best[1]));
            fewStarts.add(round(best[2]));
            fewRates.add(round(best[3]));
        }
        nccl = new Machine.Nccl(starts, rates, fewStarts, fewRates);
    }

    /** Fits fixed time and rate of NCCL, and those for few bytes. */
    private static double nccl(double[] x, long bytes) {
        return Math.min(x[0] + bytes / x[1] / 1e3, x[2] + bytes / x[3] / 1e3);
    }

    private double matmulBeside(Measurement row) {
        return row.path().equals("nccl") ? beside(row, "matmul").micros() : 0;
    }

    private void fitCopies() {
        double[] best =
                search(
                        new double[] {10, 300},
                        x -> {
                            double sum = 0;
                            for (Measurement row : rows("copy")) {
                                if (row.operator().equals("call")) {
                                    continue;
                                }
                                long bytes =
                                        isOperator(row) ? workload(row).bytesIn() : row.bytes();
                                int peers = row.ranks() - 1;
                                double micros =
                                        new Machine.Copies(x[0], x[1], 0, 0, 1)
                                                .micros(peers, bytes / peers);
                                sum += loss(micros, row.micros());
                            }
                            return sum;
                        });
        copies =
                new Machine.Copies(
                        round(best[0]),
                        round(best[1]),
                        copies.pipeline(),
                        copies.cut(),
                        copies.reduction());
    }

    /** Predicts a row, with its tiles and pushers if they are known. */
    Prediction predict(Measurement row) {
        Path path = Path.valueOf(row.path().toUpperCase(Locale.ROOT));
        Machine then = machineOf(row);
        Workload work = workload(row);
        Prediction prediction = new CostModel(then).predict(work, path);
        if (row.tile() == 0) {
            return prediction;
        }
        int tile = FusedMatmulModel.TILE_COLUMNS.indexOf(row.tile());
        double device = new FusedMatmulModel(then, work).tiling(tile, row.pushers()).micros();
        return new Prediction(path, device, prediction.host());
    }

    private void fitLaunch() {
        double[] link =
                search(
                        new double[] {10, 300},
                        x -> {
                            double sum = 0;
                            for (Measurement row : rows("blocks")) {
                                sum += loss(x[0] + row.bytes() / x[1] / 1e3, row.micros());
                            }
                            return sum;
                        });
        List<Measurement> now =
                rows("fused").stream()
                        .filter(row -> row.source().endsWith(REFERENCE) && row.recorded())
                        .toList();
        double[] weights = now.stream().mapToDouble(this::weight).toArray();
        double[] best =
                search(
                        new double[] {15, 0.7, 0.4, 0.25, 4},
                        x -> {
                            setLaunch(x, link[1], fused.crowdedRate(), Function.identity());
                            double sum = 0;
                            for (int i = 0; i < weights.length; i++) {
                                Measurement row = now.get(i);
                                sum += weights[i] * loss(predict(row).device(), row.micros());
                            }
                            return sum;
                        });
        double[] crowded =
                search(
                        new double[] {250},
                        x -> {
                            setLaunch(best, link[1], x[0], MachineFit::round);
                            return rows("fused").stream()
                                    .filter(row -> row.ranks() > 4 && row.pushers() > 0)
                                    .mapToDouble(row -> loss(predict(row).device(), row.micros()))
                                    .sum();
                        });
        setLaunch(best, link[1], round(crowded[0]), MachineFit::round);
    }

    /**
     * Returns the weight of a FUSED row: 1 if the fastest other path of the same run takes as long,
     * less the more the times differ. Where times are close, a small error of the prediction
     * changes the choice.
     */
    private double weight(Measurement row) {
        double other =
                rows("gathered", "pipelined", "nccl").stream()
                        .filter(each -> isBeside(each, row) && each.recorded() == row.recorded())
                        .mapToDouble(Measurement::micros)
                        .min()
                        .orElse(row.micros());
        double apart = StrictMath.log(row.micros() / other) / CLOSE;
        return 1 / (1 + apart * apart);
    }

    private void setLaunch(
            double[] x, double linkRate, double crowdedRate, Function<Double, Double> rounding) {
        List<Double> steps =
                List.of(rounding.apply(x[1]), rounding.apply(x[2]), rounding.apply(x[3]));
        fused =
                new Machine.Fused(
                        rounding.apply(x[0]),
                        steps,
                        rounding.apply(x[4]),
                        BLOCK_RATE,
                        round(linkRate),
                        crowdedRate);
    }

    private double lossOf(String... paths) {
        double sum = 0;
        for (Measurement row : rows(paths)) {
            sum += loss(predict(row).device(), row.micros());
        }
        return sum;
    }

    private void fitPipeline() {
        double start = copies.start();
        double rate = copies.rate();
        double[] best =
                search(
                        new double[] {8, 0.02, 3000},
                        x -> {
                            copies = new Machine.Copies(start, rate, x[0], x[1], x[2]);
                            double sum = lossOf("pipelined");
                            for (Measurement row : rows("reduction")) {
                                double bytes = (row.ranks() + 1.0) * workload(row).partBytes();
                                double reduction = library.start() + bytes / x[2] / 1e3;
                                sum += loss(reduction, row.micros());
                            }
                            return sum;
                        });
        copies = new Machine.Copies(start, rate, round(best[0]), round(best[1]), round(best[2]));
    }

    private void fitExchange() {
        double[] best =
                search(
                        new double[] {3, 300},
                        x -> {
                            exchange = new Machine.Exchange(x[0], x[1]);
                            return lossOf("gathered");
                        });
        exchange = new Machine.Exchange(round(best[0]), round(best[1]));
    }

    private void fitHost() {
        double ncclHost =
                median(
                        rows.stream()
                                .filter(row -> row.path().equals("nccl"))
                                .map(Measurement::host)
                                .flatMapToDouble(OptionalDouble::stream)
                                .toArray());
        host =
                new Machine.Host(
                        round(ncclHost * hostRatio("fused")),
                        round(ncclHost),
                        round(ncclHost * hostRatio("gathered")),
                        Stream.of(2, 4, 8).map(this::hostOfPipeline).toList());
    }

    /**
     * Returns the third quartile of the measurements, which are 215 to 355 us for 8 ranks. A
     * pipeline makes many calls, which are slow before the JVM has compiled them, and the GPU waits
     * for the slowest rank.
     */
    private double hostOfPipeline(int ranks) {
        return round(
                quantile(
                        0.75,
                        rows.stream()
                                .filter(row -> row.path().equals("pipelined"))
                                .filter(row -> row.ranks() == ranks)
                                .map(Measurement::host)
                                .flatMapToDouble(OptionalDouble::stream)
                                .toArray()));
    }

    /**
     * Returns the host time relative to that of NCCL and a matmul, because hosts and JVM warm-up
     * differ.
     */
    private double hostRatio(String... paths) {
        return median(
                rows.stream()
                        .filter(row -> Arrays.asList(paths).contains(row.path()))
                        .filter(row -> row.host().isPresent() && beside(row, "nccl") != null)
                        .mapToDouble(
                                row ->
                                        row.host().getAsDouble()
                                                / beside(row, "nccl").host().getAsDouble())
                        .toArray());
    }

    private static double loss(double predicted, double measured) {
        double ratio = StrictMath.log(predicted / measured) / NEAR;
        return Math.sqrt(1 + ratio * ratio) - 1;
    }

    private static double[] search(double[] start, ToDoubleFunction<double[]> loss) {
        double[] best = start.clone();
        double least = loss.applyAsDouble(best);
        for (double step = 0.5; step > 1e-5; step /= 2) {
            boolean better = true;
            for (int turn = 0; better && turn < 200; turn++) {
                better = false;
                for (int i = 0; i < best.length; i++) {
                    for (double factor : new double[] {1 + step, 1 / (1 + step)}) {
                        double[] next = best.clone();
                        next[i] *= factor;
                        double value = loss.applyAsDouble(next);
                        if (value < least) {
                            least = value;
                            best = next;
                            better = true;
                        }
                    }
                }
            }
        }
        return best;
    }

    private static double round(double value) {
        return new BigDecimal(value).round(new MathContext(DIGITS)).doubleValue();
    }

    private static double median(double[] values) {
        return quantile(0.5, values);
    }

    /** Returns a quantile, interpolated between two values. */
    private static double quantile(double part, double[] values) {
        double[] sorted = values.clone();
        Arrays.sort(sorted);
        double place = part * (sorted.length - 1);
        int below = (int) place;
        int above = Math.min(below + 1, sorted.length - 1);
        return sorted[below] + (place - below) * (sorted[above] - sorted[below]);
    }
}
