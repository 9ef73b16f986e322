// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import org.djlx.bench.GpuBenchCase.Operation;
import org.djlx.collectives.launch.cli.TextTable;

/** Collects the rows of {@code bench-gpu} on rank 0, and adds PyTorch's times to them. */
final class GpuBenchResults {

    private static final Set<Operation> OURS_ONLY =
            EnumSet.of(Operation.allReduceRmsNorm, Operation.allGather, Operation.reduceScatter);

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
    TextTable table() {
        return Columns.printed("bench-gpu", rows);
    }
}
