/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import ai.djl.Device;
import ai.djl.translate.TranslateException;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.IOException;
import java.io.PrintWriter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.stream.IntStream;
import org.djlx.nativeops.NativeVersions;
import org.djlx.samples.common.Gpus;
import org.djlx.samples.common.RankOptions;
import org.djlx.samples.common.Ranks;
import org.djlx.samples.common.TextTable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** {@code bench-train}: measures a data-parallel training step. */
@Command(
        name = "bench-train",
        description = {
            "Measures a training step of 8 x (Linear, ReLU, Linear) in float32 by SGD, in turns: on"
                    + " one device, on all devices with DJL's engine, on all with PyTorch-P2P and,"
                    + " where PyTorch is found, by PyTorch alone and with DistributedDataParallel.",
            "On the CPU all ranks share one device, so DJL's engine has nothing to synchronize."
        })
public final class TrainBenchCommand implements Callable<Integer> {

    @Spec private CommandSpec spec;

    @Mixin private final RankOptions options = new RankOptions().ranksOfGpus();

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

    @Option(
            names = "--steps",
            defaultValue = "10",
            description = "Steps of each in a turn; ${DEFAULT-VALUE} if not given.")
    private int steps;

    @Option(names = "--rounds", defaultValue = "3", description = "${DEFAULT-VALUE} if not given.")
    private int rounds;

    @Option(
            names = "--torch",
            paramLabel = "PYTHON",
            description = "A Python with PyTorch to compare with; none if not given.")
    private String torch;

    @Mixin private ReportOptions reports;

    private TrainBenchCommand() {}

    private static final int WARM_UP = 10; // uncounted steps of each turn
    private static final int FIRST_WARM_UP = 60; // of the first turn, in which the JVM compiles
    private static final Duration TORCH_PATIENCE = Duration.ofSeconds(120);
    private static final String OURS = TrainBench.Contender.P2P.name();
    private static final String TORCH = "TORCH_DDP";
    private static final List<String> TORCHES = List.of("TORCH_ALONE", TORCH, "TORCH_DDP_TUNED");

    /** A contender of a turn. */
    private interface Turn {
        double[] milliseconds(int warmUp) throws TranslateException;
    }

    @Override
    public Integer call() throws Exception {
        options.check();
        int gpus = Gpus.count();
        int count = options.count();
        if (gpus > 0) {
            Gpus.require(count);
        }
        if (IntStream.of(rows).anyMatch(size -> size < 1)
                || IntStream.of(layers, width, hidden, steps, rounds).anyMatch(size -> size < 1)) {
            throw new ParameterException(
                    spec.commandLine(),
                    "--rows, --layers, --width, --hidden, --steps and --rounds must be 1 or more");
        }
        Device[] devices =
                gpus == 0
                        ? new Device[] {Device.cpu()}
                        : IntStream.range(0, count).mapToObj(Device::gpu).toArray(Device[]::new);
        PrintWriter out = spec.commandLine().getOut();
        TextTable table =
                new TextTable("rows a rank", "who", "ms a step", "of " + TORCH, "ms over alone");
        List<Map<String, Object>> figures = new ArrayList<>();
        try (TorchPeer peer = torch == null ? null : startPeer(count)) {
            Map<String, Object> errors = new LinkedHashMap<>();
            errors.put("djl", TrainBench.matmulError(devices[0]));
            for (int size : rows) {
                TrainBench.Size model = new TrainBench.Size(layers, width, hidden, size);
                Map<String, Double> medians = measure(model, devices, count, gpus, peer, errors);
                medians.forEach(
                        (who, time) -> {
                            Double theirs = medians.get(TORCH);
                            Map<String, Object> figure = new LinkedHashMap<>();
                            figure.put("rows", size);
                            figure.put("who", who);
                            figure.put("milliseconds", time);
                            if (theirs != null) {
                                figure.put("ofTorchDdp", time / theirs);
                            }
                            // TORCH_DDP and TORCH_DDP_TUNED have one step of theirs alone.
                            Double alone = medians.get(who.replaceFirst("_DDP.*", "") + "_ALONE");
                            if (alone != null) {
                                figure.put("millisecondsOverAlone", time - alone);
                            }
                            figures.add(figure);
                            table.add(
                                    size,
                                    who,
                                    String.format("%.2f", time),
                                    theirs == null ? "-" : String.format("%.2f", time / theirs),
                                    alone == null ? "-" : String.format("%.2f", time - alone));
                        });
                store(count, gpus, figures, errors, peer);
            }
            if (peer != null && !peer.cause().isEmpty()) {
                spec.commandLine().getErr().println("PyTorch: " + peer.cause());
            }
        }
        out.printf(
                "%s%n%s%n", Ranks.count(count) + " on " + (gpus > 0 ? "GPUs" : "the CPU"), table);
        out.flush();
        return 0;
    }

    private TorchPeer startPeer(int count) {
        return TorchPeer.start(
                torch,
                TorchPeer.script("train_peer.py"),
                List.of("--ranks", Integer.toString(count)),
                TORCH_PATIENCE);
    }

    /**
     * Returns the median of each contender. They take turns; each round starts with another one.
     */
    private Map<String, Double> measure(
            TrainBench.Size size,
            Device[] devices,
            int count,
            int gpus,
            TorchPeer peer,
            Map<String, Object> errors)
            throws TranslateException {
        Map<String, Turn> turns = new LinkedHashMap<>();
        List<TrainBench> benches = new ArrayList<>();
        try {
            for (TrainBench.Contender who : TrainBench.Contender.values()) {
                if (who != TrainBench.Contender.DJL || gpus > 0) {
                    TrainBench bench = new TrainBench(who, size, devices, count);
                    benches.add(bench);
                    turns.put(who.name(), warmUp -> bench.milliseconds(warmUp, steps));
                }
            }
            if (peer != null) {
                TORCHES.forEach(
                        who -> turns.put(who, warmUp -> askPeer(peer, who, size, warmUp, errors)));
            }
            List<String> order = new ArrayList<>(turns.keySet());
            Map<String, List<Double>> times = new LinkedHashMap<>();
            order.forEach(who -> times.put(who, new ArrayList<>()));
            for (int round = 0; round < rounds; round++) {
                int warmUp = round == 0 ? FIRST_WARM_UP : WARM_UP;
                for (String who : order) {
                    for (double time : turns.get(who).milliseconds(warmUp)) {
                        times.get(who).add(time);
                    }
                }
                Collections.rotate(order, 1);
            }
            if (peer != null) {
                JsonObject forget = new JsonObject();
                forget.addProperty("forget", true);
                peer.ask(forget);
            }
            times.values().removeIf(List::isEmpty);
            Map<String, Double> medians = new LinkedHashMap<>();
            times.forEach(
                    (who, all) ->
                            medians.put(
                                    who,
                                    Stats.median(
                                            all.stream()
                                                    .mapToDouble(Double::doubleValue)
                                                    .toArray())));
            return medians;
        } finally {
            benches.forEach(TrainBench::close);
        }
    }

    private double[] askPeer(
            TorchPeer peer,
            String who,
            TrainBench.Size size,
            int warmUp,
            Map<String, Object> errors) {
        JsonObject request = new JsonObject();
        request.addProperty("who", who);
        request.addProperty("rows", size.rows());
        request.addProperty("layers", size.layers());
        request.addProperty("width", size.width());
        request.addProperty("hidden", size.hidden());
        request.addProperty("warmUp", warmUp);
        request.addProperty("steps", steps);
        JsonObject answer = peer.ask(request);
        if (answer == null) {
            return new double[0];
        }
        errors.put("torch", answer.get("matmulError").getAsDouble());
        return answer.getAsJsonArray("milliseconds").asList().stream()
                .mapToDouble(JsonElement::getAsDouble)
                .toArray();
    }

    private void store(
            int count,
            int gpus,
            List<Map<String, Object>> figures,
            Map<String, Object> errors,
            TorchPeer peer)
            throws IOException {
        if (reports.json() == null) {
            return;
        }
        BenchReport report =
                reports.report(
                        "a data-parallel training step, SGD, float32, median",
                        NativeVersions.query());
        if (peer != null) {
            report.put("torch", peer.version().isEmpty() ? peer.cause() : peer.version());
        }
        report.put("gpus", gpus);
        report.put("ranks", count);
        report.put("layers", layers);
        report.put("width", width);
        report.put("hidden", hidden);
        report.put("float32MatmulError", errors);
        report.put("steps", figures);
        report.store(reports.json());
    }
}
