/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.train;

import ai.djl.training.util.ProgressBar;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import java.util.zip.CRC32C;
import java.util.zip.Checksum;
import org.djlx.collectives.ProcessGroup;
import org.djlx.samples.common.DeviceKind;
import org.djlx.samples.common.ElementType;
import org.djlx.samples.common.RankOptions;
import org.djlx.samples.common.Ranks;
import org.djlx.samples.launch.Launcher;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.Spec;

/** {@code train}: a language model of a text, trained on several ranks with DJL. */
@Command(
        name = "train",
        description = {
            "Trains a small Llama that tells the next byte of a text from the 64 before it, with"
                    + " DJL's trainer on the engine PyTorch-P2P, and lets it write. With --resume a"
                    + " job that was ended goes on.",
            "Ranks that share a model divide its layers, and groups of them divide each batch;"
                    + " losses are the same either way. In a process started by 'launch' or"
                    + " torchrun it runs that process's rank."
        })
public final class TrainCommand implements Callable<Integer> {

    private static final int DEFAULT_RANKS = 2;
    private static final int MOST_CONTEXT = 4096;
    private static final Duration SILENCE = Duration.ofSeconds(10);

    @Spec private CommandSpec spec;

    @Option(
            names = "--data-parallel",
            paramLabel = "N",
            description =
                    "Number of copies of the model, each with a part of every batch; 2 ranks in all"
                            + " if not given.")
    private Integer dataParallel;

    @Option(
            names = "--tensor-parallel",
            paramLabel = "N",
            defaultValue = "1",
            description =
                    "Number of ranks that share a copy of the model; ${DEFAULT-VALUE} if not"
                            + " given.")
    private int tensorParallel;

    @Mixin
    private final RankOptions options =
            new RankOptions()
                    .processes()
                    .device()
                    .types(ElementType.float32, ElementType.float32, ElementType.bfloat16)
                    .typesOf("Element type of activations (parameters are float32)");

    @Option(
            names = "--text",
            paramLabel = "FILE",
            description = "The text; the README if not given.")
    private Path text;

    @Option(
            names = "--steps",
            defaultValue = "850",
            description = "How many batches to train on; ${DEFAULT-VALUE} if not given.")
    private int steps;

    @Option(
            names = "--context",
            defaultValue = "64",
            description =
                    "How many tokens a piece of text has, a byte each but the first, which begins"
                            + " every text: as many as the model can look back on;"
                            + " ${DEFAULT-VALUE} if not given.")
    private int context;

    @Option(
            names = "--batch",
            defaultValue = "16",
            description =
                    "The number of pieces of text in a batch, of all ranks; ${DEFAULT-VALUE} if not"
                            + " given.")
    private int batch;

    @Option(
            names = "--seed",
            defaultValue = "1",
            description = "From which what is random follows; ${DEFAULT-VALUE} if not given.")
    private long seed;

    @Option(
            names = "--resume",
            paramLabel = "FOLDER",
            description =
                    "Where checkpoints are: goes on from the newest, if there is one, with the"
                            + " losses that it would have had; text, seed, batch, context, dtype"
                            + " and tensor parallelism must be the same.")
    private Path checkpoints;

    @Option(
            names = "--checkpoint-every",
            paramLabel = "STEPS",
            description =
                    "With --resume: saves one after each so many steps, and at the end; a tenth of"
                            + " all steps if not given.")
    private Integer checkpointEvery;

    @Option(
            names = "--save-llama",
            paramLabel = "DIR",
            description =
                    "Writes the trained model there, for generate and serve, in Hugging Face's"
                            + " layout. It writes texts of --context tokens at most.")
    private Path llama;

    @Option(
            names = "--sample",
            paramLabel = "BYTES",
            defaultValue = "400",
            description =
                    "How much the trained model writes, one byte after the other;"
                            + " ${DEFAULT-VALUE} if not given.")
    private int sample;

    @Option(names = "--chart", paramLabel = "FILE", description = "Draws the losses, as PNG.")
    private Path chart;

    private ElementType type;
    private DeviceKind device;

    private TrainCommand() {}

    @Override
    public Integer call() throws Exception {
        if (text == null) {
            text = Path.of(System.getProperty("djlx.home", "."), "README.md");
        }
        options.check();
        type = options.type();
        device = options.deviceKind();
        boolean processes = options.inProcesses();
        Ranks.check(spec, "--data-parallel", dataParallel, processes);
        if (tensorParallel < 1 || TrainJob.heads() % tensorParallel != 0) {
            throw new ParameterException(
                    spec.commandLine(),
                    String.format(
                            "--tensor-parallel must divide the model's %d heads, not be %d",
                            TrainJob.heads(), tensorParallel));
        }
        if (context < 2 || context > MOST_CONTEXT) {
            throw new ParameterException(
                    spec.commandLine(),
                    "--context must be from 2 to " + MOST_CONTEXT + ", not " + context);
        }
        if (context % tensorParallel != 0) {
            throw new ParameterException(
                    spec.commandLine(),
                    String.format(
                            "--context %d cannot be divided among --tensor-parallel %d",
                            context, tensorParallel));
        }
        if (steps < 1 || batch < 1) {
            throw new ParameterException(
                    spec.commandLine(),
                    "--steps and --batch must be 1 or more, not " + steps + " and " + batch);
        }
        if (sample < 0) {
            throw new ParameterException(
                    spec.commandLine(), "--sample must not be negative: " + sample);
        }
        if (checkpointEvery == null) {
            checkpointEvery = TrainJob.tenth(steps);
        } else if (checkpoints == null || checkpointEvery < 1) {
            throw new ParameterException(
                    spec.commandLine(),
                    "--checkpoint-every must be 1 or more, and takes --resume, which says where");
        }
        if (chart != null) {
            checkChart();
        }
        byte[] bytes = readText();
        Ranks all = processes ? null : Ranks.of(dataParallel == null ? null : wanted(), wanted());
        checkDivision(processes ? wanted() : all.worldSize());
        if (checkpoints != null) {
            checkJob(bytes);
        }
        Ranks.requireGpus(device.backend(), processes ? wanted() : all.here().size());
        // Nothing is refused from here on: what is made now stays.
        if (llama != null) {
            Files.createDirectories(llama.toAbsolutePath());
        }
        if (checkpoints != null) {
            Files.createDirectories(checkpoints.toAbsolutePath());
            writeJob(bytes);
        }
        if (processes) {
            return Launcher.launchRanksOf(spec, wanted());
        }
        boolean threads = System.getenv("RANK") == null;
        all.run(
                device.backend(),
                group -> {
                    run(bytes, group, threads);
                    return group.rank();
                });
        return 0;
    }

    /** Refuses before the training what could not be written behind it. */
    private void checkChart() {
        if (Files.isDirectory(chart)) {
            throw new ParameterException(
                    spec.commandLine(), "--chart " + chart + " is a folder, not a file");
        }
        Path parent = chart.toAbsolutePath().getParent();
        if (!Files.isDirectory(parent)) {
            throw new ParameterException(
                    spec.commandLine(),
                    "--chart " + chart + ": there is no such folder as " + parent);
        }
    }

    private void checkDivision(int worldSize) {
        if (worldSize % tensorParallel != 0) {
            throw new ParameterException(
                    spec.commandLine(),
                    String.format(
                            "%s cannot be divided into groups of --tensor-parallel %d",
                            Ranks.count(worldSize), tensorParallel));
        }
        int copies = worldSize / tensorParallel;
        if (batch % copies != 0) {
            throw new ParameterException(
                    spec.commandLine(),
                    String.format(
                            "--batch %d cannot be divided among %d copies of the model",
                            batch, copies));
        }
    }

    /** Returns the number of ranks that the user asks for. */
    private int wanted() {
        int copies = Math.max(1, DEFAULT_RANKS / tensorParallel);
        return (dataParallel == null ? copies : dataParallel) * tensorParallel;
    }

    private byte[] readText() throws IOException {
        if (!Files.isRegularFile(text) || !Files.isReadable(text)) {
            throw new ParameterException(
                    spec.commandLine(), "cannot read the text file " + text.toAbsolutePath());
        }
        byte[] bytes = Files.readAllBytes(text);
        if (bytes.length < TrainJob.shortest(context)) {
            throw new ParameterException(
                    spec.commandLine(),
                    String.format(
                            "the text file %s has %d bytes; it takes %d to learn from",
                            text, bytes.length, TrainJob.shortest(context)));
        }
        return bytes;
    }

    private Path jobFile() {
        return checkpoints.toAbsolutePath().resolve("job.txt");
    }

    /** Says of what job checkpoints are: what its losses depend on. */
    private String job(byte[] bytes) {
        return String.format(
                "--context %d --batch %d --seed %d --dtype %s --tensor-parallel %d, text of"
                        + " %d bytes, CRC-32C %08x",
                context, batch, seed, type, tensorParallel, bytes.length, checksum(bytes));
    }

    /** Refuses to go on from checkpoints of another job, whose losses would be those of neither. */
    private void checkJob(byte[] bytes) throws IOException {
        if (!Files.exists(jobFile())) {
            return;
        }
        String begun = Files.readString(jobFile());
        String job = job(bytes);
        if (!begun.equals(job)) {
            throw new ParameterException(
                    spec.commandLine(),
                    String.format(
                            "--resume %s was begun with other settings: %s: give the same, or"
                                    + " another folder",
                            checkpoints, differences(settings(begun), settings(job))));
        }
    }

    /** Splits what {@link #job} returns into options and their values. */
    private static Map<String, String> settings(String job) {
        String[] parts = job.split(", text ", 2);
        String[] words = parts[0].split(" ");
        Map<String, String> settings = new LinkedHashMap<>();
        for (int i = 0; i + 1 < words.length; i += 2) {
            settings.put(words[i], words[i + 1]);
        }
        if (parts.length > 1) {
            settings.put("--text", parts[1]);
        }
        return settings;
    }

    private static String differences(Map<String, String> begun, Map<String, String> here) {
        return here.keySet().stream()
                .filter(option -> !here.get(option).equals(begun.get(option)))
                .map(
                        option ->
                                String.format(
                                        "%s %s, here %s",
                                        option,
                                        begun.getOrDefault(option, "unknown"),
                                        here.get(option)))
                .collect(Collectors.joining("; "));
    }

    private void writeJob(byte[] bytes) throws IOException {
        Path file = jobFile();
        if (Files.exists(file)) {
            return;
        }
        Path part = Files.createTempFile(file.getParent(), "job", ".part");
        Files.writeString(part, job(bytes));
        Files.move(part, file, StandardCopyOption.ATOMIC_MOVE); // Other ranks may do the same.
    }

    private static long checksum(byte[] bytes) {
        Checksum checksum = new CRC32C();
        checksum.update(bytes, 0, bytes.length);
        return checksum.getValue();
    }

    private void run(byte[] bytes, ProcessGroup group, boolean threads) throws IOException {
        TrainJob.Settings settings =
                new TrainJob.Settings(
                        group,
                        tensorParallel,
                        type == ElementType.bfloat16,
                        steps,
                        context,
                        batch,
                        seed,
                        checkpoints,
                        checkpointEvery,
                        llama,
                        sample);
        PrintWriter out =
                settings.isFirst()
                        ? spec.commandLine().getOut()
                        : new PrintWriter(Writer.nullWriter());
        out.printf(
                "Training on %d bytes of %s, %s, %s, data parallel %d, tensor parallel %d, %s,"
                        + " device %s%n",
                bytes.length,
                text.getFileName(),
                Ranks.count(group.worldSize()),
                threads ? "threads" : "processes",
                group.worldSize() / tensorParallel,
                tensorParallel,
                type,
                device);
        out.flush();
        TrainJob.Result result =
                new TrainJob(bytes, settings, new Progress(out, settings.isFirst())).run();
        if (llama != null) {
            out.printf("%nWrote a Llama of %d tokens of context to %s%n", context, llama);
        }
        if (settings.isFirst() && chart != null) {
            result.curve().draw(chart);
        }
        out.printf("%nWhat it writes:%n%s%n", result.text());
        out.flush();
    }

    /** A bar on a terminal; otherwise ten lines, and one where there has been none for a while. */
    private final class Progress implements TrainJob.Listener {

        private final PrintWriter out;
        private final ProgressBar bar; // null if the output is no terminal
        private long printed = System.nanoTime();
        private String last = ""; // what is known of the loss

        Progress(PrintWriter out, boolean reports) {
            this.out = out;
            bar = reports && isTerminal() ? new ProgressBar("Training", steps) : null;
        }

        private static boolean isTerminal() {
            try {
                String output = Path.of("/proc/self/fd/1").toRealPath().toString();
                return output.startsWith("/dev/pts/") || output.startsWith("/dev/tty");
            } catch (IOException e) {
                return false; // A pipe has no path.
            }
        }

        private void print(String line) {
            out.println(line);
            out.flush();
            printed = System.nanoTime();
        }

        @Override
        public void restored(long step) {
            print(
                    step < steps
                            ? "Going on from step " + step
                            : "Step " + step + " is reached already: there is nothing to train");
        }

        @Override
        public void untrained(String text) {
            // Among random bytes are some that terminals obey.
            print(String.format("Untrained it writes:%n%s%n", text.replaceAll("\\p{Cc}", "·")));
        }

        @Override
        public void trained(int step, float loss, double tokensPerSecond) {
            String numbers = String.format("loss %.3f   %.0f tokens/s", loss, tokensPerSecond);
            last = String.format(", the loss was %.3f in step %d", loss, step);
            if (bar != null) {
                bar.update(step - 1L, numbers + "   ");
            } else if (step == 1 || step == steps || step % TrainJob.tenth(steps) == 0) {
                print(String.format("step %6d   %s", step, numbers));
            }
        }

        @Override
        public void stepped(int step, double tokensPerSecond) {
            if (bar == null && System.nanoTime() - printed > SILENCE.toNanos()) {
                print(String.format("step %6d   %.0f tokens/s%s", step, tokensPerSecond, last));
            }
        }
    }
}
