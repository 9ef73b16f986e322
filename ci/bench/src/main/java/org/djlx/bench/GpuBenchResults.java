/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import java.io.IOException;
import java.io.PrintWriter;
import java.io.UncheckedIOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.djlx.bench.GpuBenchCase.Operation;

/** What rank 0 gathers of a benchmark for GPUs: our rows, with PyTorch's figures beside them. */
final class GpuBenchResults implements AutoCloseable {

    private final BenchReport report;
    private final Path json;
    private final TorchPeer torch;
    private final int rounds;
    private final PrintWriter progress;
    private final List<GpuBenchRow> rows = new ArrayList<>();

    /**
     * Begins.
     *
     * @param json where the report is stored; null for nowhere
     * @param torch measures PyTorch; closed with this; null if nobody wants to know
     * @param progress gets a line for each row
     */
    GpuBenchResults(
            BenchReport report, Path json, TorchPeer torch, int rounds, PrintWriter progress) {
        this.report = report;
        this.json = json;
        this.torch = torch;
        this.rounds = rounds;
        this.progress = progress;
        if (torch != null) {
            report.put("torch", torch.version().isEmpty() ? torch.cause() : torch.version());
        }
    }

    /** Tells how long it took until all ranks had a group. */
    void began(double seconds) {
        report.put("groupSeconds", seconds);
    }

    /** Adds a row, to which PyTorch adds its figures now: the ranks have nothing to do. */
    void add(GpuBenchCase measured, GpuBenchRow row) {
        // Without PyTorch the report says so once. It has no all-reduce + RMSNorm.
        boolean both =
                torch != null
                        && !torch.version().isEmpty()
                        && measured.operation() != Operation.allReduceRmsNorm;
        rows.add(both ? torch.measure(row, measured.turns(row.ranks()), rounds) : row);
        report.put("rows", rows);
        try {
            if (json != null) {
                // After each: an hour on the machine is not lost with the last row.
                report.store(json);
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        progress.println(measured);
        progress.flush();
    }

    void print(PrintWriter out) {
        out.printf("bfloat16, microseconds, replayed and eager%n%n%s", GpuBenchTable.of(rows));
        out.flush();
    }

    @Override
    public void close() {
        if (torch != null) {
            torch.close();
        }
    }
}
