// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import ai.djl.ndarray.NDArray;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ReduceOp;
import org.djlx.collectives.Work;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.samples.common.RankOptions;
import org.djlx.samples.common.Ranks;
import org.djlx.samples.common.TextTable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Parameters;

/** {@code bench-coalesced}: compares coalesced collectives with separate collectives. */
@Command(
        name = "bench-coalesced",
        description = {
            "Measures coalesced float32 collectives on CPU ranks and, in turns, separate"
                + " collectives on the same tensors: the median time of the slowest rank. Checks"
                + " the coalesced results.",
            "Ranks are threads; in a process started by 'launch' or torchrun, the command runs that"
                    + " process's rank."
        })
final class CoalescedBenchCommand extends ReportCommand {

    private static final List<BenchOp> OPERATIONS =
            List.of(BenchOp.ALL_REDUCE, BenchOp.ALL_GATHER, BenchOp.REDUCE_SCATTER);
    private static final int[] TENSORS = {2, 20};
    private static final long BYTES = 100L << 20; // approximate bytes of a rank per row
    private static final int MIN_TURNS = 40;
    private static final int MAX_TURNS = 4000;
    private static final int WARM_UPS = 4;

    @Mixin private final RankOptions options = new RankOptions().ranks(2);

    @Parameters(paramLabel = "SIZE", description = "Bytes of a rank's part of a tensor.")
    private List<String> sizes = List.of("4", "4K", "64K", "256K", "1M", "4M");

    /**
     * A row of the results.
     *
     * @param operation the collective
     * @param tensors the tensors of a call
     * @param bytes the size of a rank's part of a tensor
     * @param turns the timed calls of each kind
     * @param separateMicros one call per tensor, and the wait for all calls
     * @param coalescedMicros one coalesced call, and its wait
     * @param ratio of coalesced to separate time
     * @param wrong the wrong elements of the last coalesced call on all ranks
     */
    record Row(
            String operation,
            int tensors,
            long bytes,
            int turns,
            double separateMicros,
            double coalescedMicros,
            double ratio,
            long wrong) {}

    @Override
    public Integer call() throws Exception {
        options.check();
        Ranks here = options.here();
        int most = Arrays.stream(TENSORS).max().orElseThrow();
        int tensors = most * (here.worldSize() + 1) * here.worldSize();
        List<BenchCase> cases = BenchCase.parse(sizes, Float.BYTES, tensors);
        List<Row> rows = here.run("shm", group -> measure(group, cases)).get(0);
        if (here.here().contains(0)) {
            TextTable table =
                    new TextTable(
                            "operation,tensors,bytes,separate,coalesced,ratio,wrong".split(","));
            for (Row row : rows) {
                table.add(
                        row.operation,
                        row.tensors,
                        row.bytes,
                        number("%.2f", row.separateMicros),
                        number("%.2f", row.coalescedMicros),
                        number("%.2f", row.ratio),
                        row.wrong);
            }
            print("# %s, microseconds%n%s", Ranks.count(here.worldSize()), table);
            begin("float32 coalesced and separate, on one host", Map.of());
            put("ranks", here.worldSize());
            put("rows", rows);
            store();
        }
        return rows.stream().allMatch(row -> row.wrong == 0) ? 0 : 1;
    }

    /** Measures on one rank; returns the same rows on all ranks. */
    private static List<Row> measure(ProcessGroup group, List<BenchCase> cases) {
        // Warms up the JVM, which compiles during the first 20,000 calls or so.
        for (int i = 0; i < WARM_UPS; i++) {
            for (BenchOp op : OPERATIONS) {
                measure(group, op, 2, 1);
            }
        }
        List<Row> rows = new ArrayList<>();
        for (BenchOp op : OPERATIONS) {
            for (int tensors : TENSORS) {
                for (BenchCase wanted : cases) {
                    rows.add(measure(group, op, tensors, wanted.size() / Float.BYTES));
                }
            }
        }
        return rows;
    }

    private static Row measure(ProcessGroup group, BenchOp op, int tensors, long elements) {
        int worldSize = group.worldSize();
        long bytes = elements * Float.BYTES;
        int turns = (int) Math.max(MIN_TURNS, Math.min(MAX_TURNS, BYTES / tensors / bytes));
        try (BenchJob job = new BenchJob(group, op, ScalarType.FLOAT32)) {
            List<NDArray> outputs = new ArrayList<>();
            List<NDArray> inputs = new ArrayList<>();
            for (int i = 0; i < tensors; i++) {
                outputs.add(job.tensor(elements * op.outputParts(worldSize)));
                inputs.add(
                        op.inPlace()
                                ? outputs.get(i)
                                : job.tensor(elements * op.inputParts(worldSize)));
            }
            Random order = new Random(turns); // the same on all ranks
            double[] separate = new double[turns];
            double[] coalesced = new double[turns];
            for (int turn = -turns / 4; turn < turns; turn++) { // Negative turns warm up.
                // Random order, because caches depend on the previous call.
                boolean first = order.nextBoolean();
                for (boolean together : new boolean[] {first, !first}) {
                    group.barrier().await();
                    long start = System.nanoTime();
                    if (together) {
                        coalesced(group, op, outputs, inputs).await();
                    } else {
                        separate(group, op, outputs, inputs);
                    }
                    if (turn >= 0) {
                        double micros = (System.nanoTime() - start) / 1e3;
                        (together ? coalesced : separate)[turn] = micros;
                    }
                }
            }
            // Tensors have different values, so the check detects swapped tensors.
            for (int i = 0; i < tensors; i++) {
                int factor = i + 1;
                job.fill(inputs.get(i), at -> factor * BenchOp.input(group.rank(), at));
            }
            coalesced(group, op, outputs, inputs).await();
            double wrong = 0;
            for (int i = 0; i < tensors; i++) {
                int factor = i + 1;
                wrong +=
                        job.wrong(
                                outputs.get(i),
                                at -> factor * op.expected(group.rank(), worldSize, elements, at));
            }
            // The median over turns of the slowest rank's time.
            double apart = Stats.median(job.reduce(separate, ReduceOp.MAX));
            double together = Stats.median(job.reduce(coalesced, ReduceOp.MAX));
            long wrongOfAll = (long) job.reduce(new double[] {wrong}, ReduceOp.SUM)[0];
            return new Row(
                    op.toString(),
                    tensors,
                    bytes,
                    turns,
                    apart,
                    together,
                    together / apart,
                    wrongOfAll);
        }
    }

    private static void separate(
            ProcessGroup group, BenchOp op, List<NDArray> outputs, List<NDArray> inputs) {
        IntStream.range(0, outputs.size())
                .mapToObj(i -> op.issue(group, outputs.get(i), inputs.get(i)))
                .toList()
                .forEach(Work::await);
    }

    private static Work coalesced(
            ProcessGroup group, BenchOp op, List<NDArray> outputs, List<NDArray> inputs) {
        return switch (op) {
            case ALL_REDUCE -> group.allReduceCoalesced(outputs, ReduceOp.SUM);
            case ALL_GATHER -> group.allGatherCoalesced(outputs, inputs);
            case REDUCE_SCATTER -> group.reduceScatterCoalesced(outputs, inputs, ReduceOp.SUM);
            default -> throw new AssertionError(op);
        };
    }
}
