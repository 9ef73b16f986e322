// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.djlx.bench.GpuBenchRow.COMMUNICATION;
import static org.djlx.bench.GpuBenchRow.MATMUL;
import static org.djlx.bench.GpuBenchRow.NCCL;
import static org.djlx.bench.GpuBenchRow.NCCL_WINDOWS;
import static org.djlx.bench.GpuBenchRow.OURS;
import static org.djlx.bench.GpuBenchRow.TORCH;
import static org.djlx.bench.GpuBenchRow.TORCH_ONE_SHOT;
import static org.djlx.bench.GpuBenchRow.TORCH_TWO_SHOT;

import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.function.Function;
import java.util.stream.Stream;
import org.djlx.bench.GpuBenchCase.Operation;
import org.djlx.collectives.launch.cli.TextTable;

/** Collects the rows of {@code bench-gpu} on rank 0, and adds PyTorch's times to them. */
final class GpuBenchResults {

    private static final Set<Operation> OURS_ONLY =
            EnumSet.of(Operation.allReduceRmsNorm, Operation.allGather, Operation.reduceScatter);

    private static final String COLUMNS =
            "operation,size,matmul,comm.,nccl,windows,torch,ours,eager:,nccl,torch,ours,host,alone,"
                    + "launch,launches,first 20,first,next 19,driver,native,error,";

    private final ReportCommand report;
    private final TorchPeer torch;
    private final int rounds;
    private final List<GpuBenchRow> rows = new ArrayList<>();

    /** {@code torch} measures PyTorch; null for none. */
    GpuBenchResults(ReportCommand report, TorchPeer torch, int rounds) {
        this.report = report;
        this.torch = torch;
        this.rounds = rounds;
    }

    /** Adds a row. Measures PyTorch's times for it now, while the ranks are idle. */
    void add(GpuBenchCase measured, GpuBenchRow row) {
        // Without PyTorch, the entry "torch" of the report has the cause. The peer has no
        // all-reduce
        // + RMSNorm, no other collectives, and no paths.
        boolean both =
                torch != null
                        && !torch.version().isEmpty()
                        && measured.path() == null
                        && !OURS_ONLY.contains(measured.operation());
        rows.add(both ? torch.measure(row, measured.turns(row.ranks()), rounds) : row);
        report.put("rows", rows);
        report.store(); // After each row, so a later failure loses nothing.
        report.progress("%s", measured);
    }

    /** Returns a line for each row: the replayed times, then the times of calls from the host. */
    static TextTable table(List<GpuBenchRow> rows) {
        TextTable table = new TextTable(COLUMNS.split(",", -1));
        for (GpuBenchRow row : rows) {
            CallTimes ours = row.columns().get(OURS);
            CallTimes launch = row.columns().get(GpuBenchRow.BARE_LAUNCH);
            table.add(
                    row.operation(),
                    row.size(),
                    number(row.replay().get(MATMUL)),
                    number(row.replay().get(COMMUNICATION)),
                    number(row.replay().get(NCCL)),
                    number(row.replay().get(NCCL_WINDOWS)),
                    number(best(row.replay()::get)),
                    number(row.replay().get(OURS)),
                    "",
                    number(micros(row, NCCL)),
                    number(best(name -> micros(row, name))),
                    number(ours.gpuMicros()),
                    number(ours.hostMicros()),
                    number(ours.aloneHostMicros()),
                    number(launch == null ? null : launch.hostMicros()),
                    number(row.launches()),
                    number(ours.firstHostMicros()),
                    number(ours.firstCallMicros()),
                    number(ours.nextCallsMaxMicros()),
                    number(ours.driverCalls()),
                    number(ours.otherNativeCalls()),
                    ReportCommand.number("%.1e", row.error()),
                    row.correct() ? "" : "WRONG");
        }
        return table;
    }

    private static String number(Double value) {
        return ReportCommand.number("%.1f", value);
    }

    private static Double micros(GpuBenchRow row, String name) {
        CallTimes times = row.columns().get(name);
        return times == null ? null : times.gpuMicros();
    }

    /** Returns the best time of PyTorch's operators; null if there are none. */
    static Double best(Function<String, Double> micros) {
        return Stream.of(TORCH, TORCH_ONE_SHOT, TORCH_TWO_SHOT)
                .map(micros)
                .filter(Objects::nonNull)
                .min(Double::compare)
                .orElse(null);
    }

    TextTable table() {
        return table(rows);
    }
}
