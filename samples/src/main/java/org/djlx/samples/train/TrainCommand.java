/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.train;

import ai.djl.Device;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.samples.Main;
import org.djlx.samples.Ranks;
import org.djlx.samples.launch.Launcher;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** {@code train}: a language model of a text, trained on several ranks with DJL. */
@Command(
        name = "train",
        description = {
            "Trains an MLP that tells the next byte of a text from the 16 before it, with DJL's"
                    + " trainer on the engine PyTorch-P2P, and lets it write.",
            "Ranks are threads that share each batch, or processes with a part of it each; losses"
                    + " are the same either way. In a process started by 'launch' or torchrun it"
                    + " runs that process's rank."
        })
public final class TrainCommand implements Callable<Integer> {

    /** Where the model is. */
    enum DeviceKind {
        cpu("shm"),
        gpu("cuda_p2p");

        private final String backend;

        DeviceKind(String backend) {
            this.backend = backend;
        }
    }

    private static final int DEFAULT_RANKS = 2;

    @Spec private CommandSpec spec;

    @Option(
            names = "--data-parallel",
            paramLabel = "N",
            description = "Number of ranks; 2 if not given.")
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
            description = "The text; the README if not given.")
    private Path text;

    @Option(
            names = "--steps",
            defaultValue = "2000",
            description = "How many batches to train on; ${DEFAULT-VALUE} if not given.")
    private int steps;

    @Option(
            names = "--batch",
            defaultValue = "128",
            description = "The size of a batch, of all ranks; ${DEFAULT-VALUE} if not given.")
    private int batch;

    @Option(
            names = "--seed",
            defaultValue = "1",
            description = "From which what is random follows; ${DEFAULT-VALUE} if not given.")
    private long seed;

    private TrainCommand() {}

    @Override
    public Integer call() throws Exception {
        if (text == null) {
            text = Path.of(System.getProperty("djlx.home", "."), "README.md");
        }
        Ranks.check(spec, "--data-parallel", ranks, processes);
        if (steps < 1 || batch < 1) {
            throw new ParameterException(
                    spec.commandLine(),
                    "--steps and --batch must be 1 or more, not " + steps + " and " + batch);
        }
        byte[] bytes = readText();
        if (processes) {
            return launch();
        }
        Ranks all = Ranks.of(ranks, DEFAULT_RANKS);
        if (batch % all.worldSize() != 0) {
            throw new ParameterException(
                    spec.commandLine(),
                    String.format(
                            "--batch %d cannot be divided among %s",
                            batch, Ranks.count(all.worldSize())));
        }
        if (System.getenv("RANK") == null) {
            Device[] devices =
                    device == DeviceKind.cpu
                            ? new Device[] {Device.cpu()}
                            : IntStream.range(0, all.worldSize())
                                    .mapToObj(Device::gpu)
                                    .toArray(Device[]::new);
            run(bytes, all.worldSize(), null, devices);
            return 0;
        }
        try (ProcessGroup group = ProcessGroups.init(device.backend)) {
            run(bytes, 1, group, new Device[] {group.device()});
        }
        return 0;
    }

    private byte[] readText() throws IOException {
        if (!Files.isRegularFile(text) || !Files.isReadable(text)) {
            throw new ParameterException(
                    spec.commandLine(), "cannot read the text file " + text.toAbsolutePath());
        }
        byte[] bytes = Files.readAllBytes(text);
        if (bytes.length < TrainJob.shortest()) {
            throw new ParameterException(
                    spec.commandLine(),
                    String.format(
                            "the text file %s has %d bytes; it takes %d to learn from",
                            text, bytes.length, TrainJob.shortest()));
        }
        return bytes;
    }

    private int launch() throws IOException, InterruptedException {
        return Launcher.builder()
                .setProcesses(ranks == null ? DEFAULT_RANKS : ranks)
                .setMainClass(Main.class.getName())
                .optArgs(
                        List.of(
                                spec.name(),
                                "--text",
                                text.toAbsolutePath().toString(),
                                "--device",
                                device.name(),
                                "--steps",
                                Integer.toString(steps),
                                "--batch",
                                Integer.toString(batch),
                                "--seed",
                                Long.toString(seed)))
                .build()
                .launch();
    }

    private void run(byte[] bytes, int here, ProcessGroup group, Device[] devices) {
        PrintWriter out = spec.commandLine().getOut();
        boolean reports = group == null || group.rank() == 0;
        TrainJob.Settings settings =
                new TrainJob.Settings(here, group, devices, steps, batch, seed);
        TrainJob job =
                new TrainJob(
                        bytes,
                        settings,
                        line -> {
                            if (reports) {
                                out.println(line);
                                out.flush();
                            }
                        });
        if (reports) {
            out.printf(
                    "Training on %d bytes of %s, %s, %s, device %s%n",
                    bytes.length,
                    text.getFileName(),
                    Ranks.count(group == null ? here : group.worldSize()),
                    group == null ? "threads" : "processes",
                    device);
        }
        TrainJob.Result result = job.run();
        if (reports) {
            out.printf("%nWhat it writes:%n%s%n", result.text());
            out.flush();
        }
    }
}
