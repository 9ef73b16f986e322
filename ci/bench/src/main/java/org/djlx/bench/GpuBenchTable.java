/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import static org.djlx.bench.GpuBenchRow.COMMUNICATION;
import static org.djlx.bench.GpuBenchRow.MATMUL;
import static org.djlx.bench.GpuBenchRow.NCCL;
import static org.djlx.bench.GpuBenchRow.NCCL_WINDOWS;
import static org.djlx.bench.GpuBenchRow.OURS;
import static org.djlx.bench.GpuBenchRow.TORCH;
import static org.djlx.bench.GpuBenchRow.TORCH_ONE_SHOT;
import static org.djlx.bench.GpuBenchRow.TORCH_TWO_SHOT;

import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.function.Function;
import java.util.stream.Stream;
import org.djlx.samples.common.TextTable;

/** The table that {@code bench-gpu} prints. */
final class GpuBenchTable {

    private GpuBenchTable() {}

    /** Returns a line for each row: replayed times, then those of host calls. */
    static TextTable of(List<GpuBenchRow> rows) {
        TextTable table =
                new TextTable(
                        "operation",
                        "size",
                        "matmul",
                        "comm.",
                        "nccl",
                        "windows",
                        "torch",
                        "ours",
                        "eager:",
                        "nccl",
                        "torch",
                        "ours",
                        "host",
                        "alone",
                        "first 20",
                        "driver",
                        "native",
                        "error",
                        "");
        for (GpuBenchRow row : rows) {
            CallTimes ours = row.columns().get(OURS);
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
                    number(ours.firstHostMicros()),
                    number(ours.driverCalls()),
                    number(ours.otherNativeCalls()),
                    String.format(Locale.ROOT, "%.1e", row.error()),
                    row.correct() ? "" : "WRONG");
        }
        return table;
    }

    private static Double micros(GpuBenchRow row, String name) {
        CallTimes times = row.columns().get(name);
        return times == null ? null : times.gpuMicros();
    }

    /** Returns the best time of PyTorch's operators; null without any. */
    static Double best(Function<String, Double> micros) {
        return Stream.of(TORCH, TORCH_ONE_SHOT, TORCH_TWO_SHOT)
                .map(micros)
                .filter(Objects::nonNull)
                .min(Double::compare)
                .orElse(null);
    }

    private static String number(Double value) {
        return value == null ? "-" : String.format(Locale.ROOT, "%.1f", value);
    }
}
