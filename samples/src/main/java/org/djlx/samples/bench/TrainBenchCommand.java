/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.bench;

import ai.djl.Device;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.stream.IntStream;
import org.djlx.nativeops.CudaDevice;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.NativeVersions;
import org.djlx.samples.TextTable;
import picocli.CommandLine.Command;
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

    @Option(
            names = "--ranks",
            paramLabel = "N",
            description = "Number of ranks; all GPUs, or 2 on the CPU, if not given.")
    private Integer ranks;

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

    @Option(names = "--json", paramLabel = "FILE", description = "Where to keep the figures.")
    private Path json;

    @Option(names = "--commit", paramLabel = "ID", description = "What is measured.")
    private String commit;

    private TrainBenchCommand() {}

    @Override
    public Integer call() throws Exception {
        int gpus = NativeLibrary.CUDA.isAvailable() ? CudaDevice.count() : 0;
        int count = ranks != null ? ranks : gpus > 0 ? gpus : 2;
        if (count < 1 || steps < 1 || gpus > 0 && count > gpus) {
            throw new ParameterException(
                    spec.commandLine(),
                    String.format(
                            "--ranks %d and --steps %d must be 1 or more, and there are %d GPUs",
                            count, steps, gpus));
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
        out.printf("%d ranks on %s%n%s%n", count, gpus > 0 ? "GPUs" : "the CPU", table);
        out.flush();
        return 0;
    }

    private void store(int count, int gpus, List<Map<String, Object>> figures) throws IOException {
        if (json == null) {
            return;
        }
        BenchReport report =
                new BenchReport(
                        "a data-parallel training step, SGD, float32, median",
                        commit,
                        NativeVersions.query());
        report.put("gpus", gpus);
        report.put("ranks", count);
        report.put("layers", layers);
        report.put("width", width);
        report.put("hidden", hidden);
        report.put("steps", figures);
        report.store(json);
    }
}
