/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import ai.djl.Device;
import java.io.IOException;
import java.io.PrintWriter;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.stream.IntStream;
import org.djlx.nativeops.NativeVersions;
import org.djlx.samples.TextTable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** {@code bench-train}: the time of a data-parallel training step. */
@Command(
        name = "bench-train",
        description = {
            "Measures a training step of 8 x (Linear, ReLU, Linear) in float32 by SGD: on one"
                    + " device without synchronisation, on all with DJL's engine, and on all with"
                    + " PyTorch-P2P.",
            "On the CPU all ranks are on one device, on which DJL's engine does not synchronise."
        })
public final class TrainBenchCommand implements Callable<Integer> {

    @Spec private CommandSpec spec;

    @Mixin private DeviceRanks ranks;

    @Option(
            names = "--rows",
            split = ",",
            defaultValue = "64,512",
            description = "Rows of each rank in a batch; ${DEFAULT-VALUE} if not given.")
    private int[] rows;

    @Option(names = "--layers", defaultValue = "8", description = "${DEFAULT-VALUE} if not given.")
    private int layers;

    @Option(
            names = "--width",
            defaultValue = "4096",
            description = "${DEFAULT-VALUE} if not given.")
    private int width;

    @Option(
            names = "--hidden",
            defaultValue = "8192",
            description = "${DEFAULT-VALUE} if not given.")
    private int hidden;

    @Option(names = "--steps", defaultValue = "30", description = "${DEFAULT-VALUE} if not given.")
    private int steps;

    @Mixin private ReportOptions reports;

    private TrainBenchCommand() {}

    @Override
    public Integer call() throws Exception {
        int gpus = ranks.gpus();
        int count = ranks.count();
        if (steps < 1) {
            throw new ParameterException(
                    spec.commandLine(), "--steps must be 1 or more, not " + steps);
        }
        Device[] devices =
                gpus == 0
                        ? new Device[] {Device.cpu()}
                        : IntStream.range(0, count).mapToObj(Device::gpu).toArray(Device[]::new);
        PrintWriter out = spec.commandLine().getOut();
        TextTable table = new TextTable("rows a rank", "who", "ms a step");
        List<Map<String, Object>> figures = new ArrayList<>();
        for (int size : rows) {
            TrainBench.Size model = new TrainBench.Size(layers, width, hidden, size);
            for (TrainBench.Contender who : TrainBench.Contender.values()) {
                if (who == TrainBench.Contender.DJL && gpus == 0) {
                    continue;
                }
                double time = TrainBench.milliseconds(who, model, devices, count, steps);
                table.add(size, who, String.format("%.2f", time));
                Map<String, Object> figure = new LinkedHashMap<>();
                figure.put("rows", size);
                figure.put("who", who.name());
                figure.put("milliseconds", time);
                figures.add(figure);
                store(count, gpus, figures);
            }
        }
        out.printf("%s%n%s%n", ranks.text(), table);
        out.flush();
        return 0;
    }

    private void store(int count, int gpus, List<Map<String, Object>> figures) throws IOException {
        if (reports.json() == null) {
            return;
        }
        BenchReport report =
                reports.report(
                        "a data-parallel training step, SGD, float32, median",
                        NativeVersions.query());
        report.put("gpus", gpus);
        report.put("ranks", count);
        report.put("layers", layers);
        report.put("width", width);
        report.put("hidden", hidden);
        report.put("steps", figures);
        report.store(reports.json());
    }
}
