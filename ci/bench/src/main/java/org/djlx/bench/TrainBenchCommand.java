// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import ai.djl.Device;
import ai.djl.training.optimizer.Optimizer;
import ai.djl.training.tracker.Tracker;
import ai.djl.translate.TranslateException;
import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.DoubleStream;
import java.util.stream.IntStream;
import org.djlx.collectives.launch.cli.Gpus;
import org.djlx.collectives.launch.cli.RankOptions;
import org.djlx.nativeops.NativeVersions;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code bench-train}: measures a data-parallel training step. */
@Command(
        name = "bench-train",
        description = {
            "Measures a training step of 8 x (Linear, ReLU, Linear) in float32, in turns: on"
                    + " one device, on all devices with DJL's engine, on all with PyTorch-P2P,"
                    + " fully sharded and, where PyTorch is found, by PyTorch alone, with"
                    + " DistributedDataParallel and, on GPUs, with fully_shard.",
            "On the CPU all ranks share one device, so DJL's engine has nothing to synchronize."
                    + " A run without GPUs sets CUDA_VISIBLE_DEVICES to nothing."
        })
final class TrainBenchCommand extends ReportCommand {

    @Mixin private final RankOptions options = new RankOptions().ranksOfGpus();

    @Option(
            names = "--rows",
            split = ",",
            defaultValue = "64,512",
            description = "Rows of each rank in a batch.")
    private int[] rows;

    @Option(names = "--layers", description = "Times (Linear, ReLU, Linear).")
    private int layers = 8;

    @Option(names = "--width", description = "Values of a row.")
    private int width = 4096;

    @Option(names = "--hidden", description = "Values between the Linears.")
    private int hidden = 8192;

    @Option(names = "--divided", description = "One device has as many rows as all ranks.")
    private boolean divided;

    @Option(
            names = "--optimizer",
            defaultValue = "SGD",
            description = "SGD or ADAM; default ${DEFAULT-VALUE}. PyTorch takes SGD.")
    private Rule optimizer;

    @Option(names = "--steps", description = "Steps of each in a turn.")
    private int steps = 10;

    @Option(names = "--rounds", description = "Turns of each.")
    private int rounds = 3;

    @Option(
            names = "--torch",
            paramLabel = "PYTHON",
            description = "A Python with PyTorch to compare with; none if not given.")
    private String torch;

    private static final int WARM_UP = 10; // untimed steps of each turn
    private static final int FIRST_WARM_UP = 60; // of the first turn, in which the JVM compiles
    private static final String THREADS = "OMP_NUM_THREADS"; // of each rank
    private static final String TORCH = "TORCH_DDP";
    private static final List<String> TORCHES =
            List.of("TORCH_ALONE", TORCH, "TORCH_DDP_TUNED", "TORCH_FSDP2");

    private final List<Step> figures = new ArrayList<>();
    private final Map<String, Double> errors = new LinkedHashMap<>(); // of float32 matmuls
    private final Map<String, String> notes = new LinkedHashMap<>(); // what PyTorch refuses
    private int gpus;

    private enum Rule {
        SGD,
        ADAM;

        Optimizer create() {
            Tracker rate = Tracker.fixed(1e-3f);
            return this == SGD
                    ? Optimizer.sgd().setLearningRateTracker(rate).build()
                    : Optimizer.adam().optLearningRateTracker(rate).build();
        }
    }

    private interface Turn {

        double[] milliseconds(int warmUp) throws TranslateException;
    }

    /** The median step time of a contender; {@code rows} are those of each rank in a batch. */
    record Step(int rows, String who, double milliseconds) {}

    @Override
    public Integer call() throws Exception {
        options.check();
        gpus = options.gpus();
        int count = options.count();
        refuseIf(
                IntStream.of(rows).anyMatch(size -> size < 1)
                        || IntStream.of(layers, width, hidden, steps, rounds)
                                .anyMatch(size -> size < 1),
                "--rows, --layers, --width, --hidden, --steps and --rounds must be 1 or more");
        refuseIf(
                torch != null && (divided || optimizer != Rule.SGD),
                "--torch measures SGD with as many rows on one device as on a rank");
        Device[] devices =
                gpus == 0
                        ? new Device[] {Device.cpu()}
                        : IntStream.range(0, count).mapToObj(Device::gpu).toArray(Device[]::new);
        begin(
                "a data-parallel training step, %s, float32, median".formatted(optimizer),
                NativeVersions.query());
        String device = gpus == 0 ? "cpu" : "cuda";
        try (TorchPeer peer = TorchPeer.start(torch, "train_peer.py", count, "--device", device)) {
            if (gpus > 0) {
                put("gpus", Gpus.names().subList(0, count));
            } else {
                put("threads", Objects.requireNonNullElse(System.getenv(THREADS), "default"));
            }
            put("ranks", count);
            put("layers", layers);
            put("width", width);
            put("hidden", hidden);
            put("divided", divided);
            errors.put("djl", TrainBench.matmulError(devices[0]));
            put("float32MatmulError", errors);
            put("steps", figures);
            put("notes", notes);
            for (int size : rows) {
                measure(size, devices, count, peer)
                        .forEach((who, time) -> figures.add(new Step(size, who, time)));
                if (peer != null) {
                    put("torch", peer.description());
                }
                store();
            }
            if (peer != null && !peer.cause().isEmpty()) {
                progress("PyTorch: %s", peer.cause());
            }
        }
        print("%s%n", options.placement());
        printTables();
        return 0;
    }

    private boolean isMeasured(TrainBench.Contender who, int count) {
        return switch (who) {
            case DJL -> gpus > 0 && count > 1;
            case P2P -> count > 1;
            default -> true;
        };
    }

    /**
     * Returns the median of each contender. The contenders take turns; each round starts with
     * another contender.
     */
    private Map<String, Double> measure(int size, Device[] devices, int count, TorchPeer peer)
            throws TranslateException {
        TrainBench.Size model = new TrainBench.Size(layers, width, hidden, size, divided);
        Map<String, Turn> turns = new LinkedHashMap<>();
        List<TrainBench> benches = new ArrayList<>();
        try {
            for (TrainBench.Contender who : TrainBench.Contender.values()) {
                if (isMeasured(who, count)) {
                    TrainBench bench =
                            new TrainBench(who, model, optimizer.create(), devices, count);
                    benches.add(bench);
                    turns.put(who.name(), warmUp -> bench.milliseconds(warmUp, steps));
                }
            }
            if (peer != null) {
                TORCHES.stream()
                        .filter(who -> gpus > 0 || !who.contains("FSDP"))
                        .forEach(
                                who -> turns.put(who, warmUp -> askPeer(peer, who, model, warmUp)));
            }
            List<String> order = new ArrayList<>(turns.keySet());
            Map<String, DoubleStream.Builder> times = new LinkedHashMap<>();
            order.forEach(who -> times.put(who, DoubleStream.builder()));
            for (int round = 0; round < rounds; round++) {
                int warmUp = round == 0 ? FIRST_WARM_UP : WARM_UP;
                for (String who : order) {
                    DoubleStream.of(turns.get(who).milliseconds(warmUp)).forEach(times.get(who));
                }
                Collections.rotate(order, 1);
            }
            if (peer != null) {
                JsonObject forget = new JsonObject();
                forget.addProperty("forget", true);
                peer.ask(forget);
            }
            Map<String, Double> medians = new LinkedHashMap<>();
            times.forEach(
                    (who, all) -> {
                        double[] millis = all.build().toArray();
                        if (millis.length > 0) {
                            medians.put(who, Stats.median(millis));
                        }
                    });
            return medians;
        } finally {
            benches.forEach(TrainBench::close);
        }
    }

    private double[] askPeer(TorchPeer peer, String who, TrainBench.Size size, int warmUp) {
        JsonObject request = new Gson().toJsonTree(size).getAsJsonObject();
        request.addProperty("who", who);
        request.addProperty("warmUp", Math.min(warmUp, WARM_UP)); // There is no JVM.
        request.addProperty("steps", steps);
        JsonObject answer = peer.ask(request);
        if (answer == null) {
            return new double[0];
        }
        if (answer.has("refused")) {
            notes.put(who, answer.get("refused").getAsString());
            return new double[0];
        }
        errors.put("torch", answer.get("matmulError").getAsDouble());
        return new Gson().fromJson(answer.get("milliseconds"), double[].class);
    }
}
