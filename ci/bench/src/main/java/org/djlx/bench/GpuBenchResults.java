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

/** Collects the rows of {@code bench-gpu} on rank 0, and adds PyTorch's times to them. */
final class GpuBenchResults implements AutoCloseable {

    private final BenchReport report;
    private final Path json;
    private final TorchPeer torch;
    private final int rounds;
    private final PrintWriter progress;
    private final List<GpuBenchRow> rows = new ArrayList<>();

    /**
     * Creates empty results.
     *
     * @param json the file of the report; null for none
     * @param torch measures PyTorch, and is closed with this; null for none
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

    /** Sets the time until all ranks had created the group. */
    void began(double seconds) {
        report.put("groupSeconds", seconds);
    }

    /** Adds a row with PyTorch's times, which it measures now, while the ranks are idle. */
    void add(GpuBenchCase measured, GpuBenchRow row) {
        // Without PyTorch the report says so once. PyTorch has no all-reduce + RMSNorm.
        boolean both =
                torch != null
                        && !torch.version().isEmpty()
                        && measured.operation() != Operation.allReduceRmsNorm;
        rows.add(both ? torch.measure(row, measured.turns(row.ranks()), rounds) : row);
        report.put("rows", rows);
        try {
            if (json != null) {
                // After each row: a failure of the last one loses nothing.
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
