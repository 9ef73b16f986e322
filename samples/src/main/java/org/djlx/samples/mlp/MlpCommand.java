/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.mlp;

import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import org.djlx.collectives.ProcessGroup;
import org.djlx.nativeops.ScalarType;
import org.djlx.samples.Main;
import org.djlx.samples.Ranks;
import org.djlx.samples.launch.Launcher;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** {@code mlp}: a tensor-parallel MLP, compared with the same computed without sharding. */
@Command(
        name = "mlp",
        description = {
            "Runs a tensor-parallel two-layer MLP, y = gelu(x W1) W2, on the bytes of a text: W1 is"
                    + " split by columns (all-gather + matmul), W2 by rows (matmul +"
                    + " reduce-scatter), activations by tokens.",
            "Compares it with the unsharded MLP in plain DJL and fails if the error is too large.",
            "Ranks are threads, or processes; in a process started by 'launch' or torchrun it runs"
                    + " that process's rank."
        })
public final class MlpCommand implements Callable<Integer> {

    /** The type of the tensors, by the names users know. */
    enum DataType {
        float32(ScalarType.FLOAT32, 1e-5),
        bfloat16(ScalarType.BFLOAT16, 2e-2);

        private final ScalarType scalarType;
        // How far from the float64 reference a result may be, relative to the largest magnitude:
        // some hundred roundings of float32, five of bfloat16.
        private final double tolerance;

        DataType(ScalarType scalarType, double tolerance) {
            this.scalarType = scalarType;
            this.tolerance = tolerance;
        }
    }

    /** Where the tensors are. */
    enum DeviceKind {
        cpu("shm"),
        gpu("cuda_p2p");

        private final String backend;

        DeviceKind(String backend) {
            this.backend = backend;
        }
    }

    private static final int DEFAULT_RANKS = 4;

    @Spec private CommandSpec spec;

    @Option(names = "--ranks", paramLabel = "N", description = "Number of ranks; 4 if not given.")
    private Integer ranks;

    @Option(names = "--processes", description = "Runs the ranks as processes, not threads.")
    private boolean processes;

    @Option(
            names = "--device",
            defaultValue = "cpu",
            description =
                    "One of ${COMPLETION-CANDIDATES}; ${DEFAULT-VALUE} if not given. With gpu every"
                            + " rank has a GPU of its own.")
    private DeviceKind device;

    @Option(
            names = "--text",
            paramLabel = "FILE",
            description = "The text whose bytes are the input; the README if not given.")
    private Path text;

    @Option(
            names = "--dtype",
            defaultValue = "float32",
            description = "One of ${COMPLETION-CANDIDATES}; ${DEFAULT-VALUE} if not given.")
    private DataType dtype;

    @Option(
            names = "--tolerance",
            paramLabel = "ERROR",
            description =
                    "The largest error allowed, relative to the largest magnitude; 1e-5 for float32"
                            + " and 2e-2 for bfloat16 if not given.")
    private Double tolerance;

    @Option(
            names = "--train",
            paramLabel = "STEPS",
            description =
                    "Trains instead, so many steps, through the operators' gradients; for float32."
                            + " Losses and weights are compared.")
    private Integer train;

    private MlpCommand() {}

    @Override
    public Integer call() throws Exception {
        if (text == null) {
            text = Path.of(System.getProperty("djlx.home", "."), "README.md");
        }
        Ranks.check(spec, "--ranks", ranks, processes);
        if (!(tolerance() >= 0)) {
            throw new ParameterException(
                    spec.commandLine(), "--tolerance must be 0 or more, not " + tolerance);
        }
        if (train != null && (train < 1 || dtype != DataType.float32)) {
            throw new ParameterException(
                    spec.commandLine(),
                    String.format(
                            "--train takes 1 step or more and --dtype float32, not %d and %s",
                            train, dtype));
        }
        if (processes) {
            return launch();
        }
        byte[] bytes = readText();
        return Ranks.of(ranks, DEFAULT_RANKS)
                .run(device.backend, group -> run(group, bytes))
                .get(0);
    }

    private double tolerance() {
        return tolerance == null ? dtype.tolerance : tolerance;
    }

    private byte[] readText() throws IOException {
        if (!Files.isRegularFile(text) || !Files.isReadable(text)) {
            throw new ParameterException(
                    spec.commandLine(), "cannot read the text file " + text.toAbsolutePath());
        }
        byte[] bytes = Files.readAllBytes(text);
        if (bytes.length == 0) {
            throw new ParameterException(spec.commandLine(), "the text file " + text + " is empty");
        }
        return bytes;
    }

    private int launch() throws IOException, InterruptedException {
        readText();
        List<String> args = new ArrayList<>(List.of(spec.name()));
        args.addAll(List.of("--text", text.toAbsolutePath().toString()));
        args.addAll(List.of("--dtype", dtype.name(), "--device", device.name()));
        args.addAll(List.of("--tolerance", Double.toString(tolerance())));
        if (train != null) {
            args.addAll(List.of("--train", train.toString()));
        }
        return Launcher.builder()
                .setProcesses(ranks == null ? DEFAULT_RANKS : ranks)
                .setMainClass(Main.class.getName())
                .optArgs(args)
                .build()
                .launch();
    }

    /** Runs one rank; rank 0 reports. */
    private int run(ProcessGroup group, byte[] bytes) {
        if (train != null) {
            return train(group, bytes);
        }
        MlpJob.Result result;
        try (MlpJob job = new MlpJob(group, bytes, dtype.scalarType)) {
            result = job.run();
        }
        // NaN is not within the tolerance either.
        boolean good = result.largestError() <= tolerance();
        if (group.rank() == 0) {
            PrintWriter out = spec.commandLine().getOut();
            out.printf(
                    "MLP on %d tokens of %s, %s, %s, device %s, backend %s%n%n%s%n",
                    result.tokens(),
                    text.getFileName(),
                    dtype,
                    Ranks.count(group.worldSize()),
                    device,
                    device.backend,
                    result.table());
            out.printf(
                    "%s: the largest error relative to the unsharded MLP in float64 is %.1e,"
                            + " allowed are %.0e%n",
                    good ? "PASSED" : "FAILED", result.largestError(), tolerance());
            out.flush();
        }
        return good ? 0 : 1;
    }

    private int train(ProcessGroup group, byte[] bytes) {
        MlpTraining.Result result;
        try (MlpJob job = new MlpJob(group, bytes, dtype.scalarType)) {
            result = job.train(train);
        }
        List<Double> losses = result.losses();
        List<Double> expected = result.expected();
        double error = result.error();
        if (group.rank() == 0) {
            PrintWriter out = spec.commandLine().getOut();
            out.printf(
                    "MLP trained on %s, %s, device %s, backend %s%n%n",
                    text.getFileName(), Ranks.count(group.worldSize()), device, device.backend);
            for (int i = 0; i < losses.size(); i++) {
                error = Math.max(error, Math.abs(losses.get(i) / expected.get(i) - 1));
                out.printf(
                        "step %3d   loss %.4f, without sharding %.4f%n",
                        i + 1, losses.get(i), expected.get(i));
            }
            out.printf(
                    "%n%s: the largest error of losses and weights, relative to plain DJL's in"
                            + " float64, is %.1e, allowed are %.0e%n",
                    error <= tolerance() ? "PASSED" : "FAILED", error, tolerance());
            out.flush();
        }
        return error <= tolerance() ? 0 : 1;
    }
}
