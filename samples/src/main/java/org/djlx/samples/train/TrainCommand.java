// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.train;

import static org.djlx.collectives.launch.cli.UsageException.refuseIf;

import java.io.IOException;
import java.io.PrintWriter;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.time.Duration;
import java.util.List;
import java.util.stream.Collectors;
import java.util.zip.CRC32C;
import java.util.zip.Checksum;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.launch.cli.CliCommand;
import org.djlx.collectives.launch.cli.DeviceKind;
import org.djlx.collectives.launch.cli.RankOptions;
import org.djlx.collectives.launch.cli.Ranks;
import org.djlx.nativeops.host.Durations;
import org.djlx.nativeops.host.FileWrites;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code train}: trains a language model of a text on several ranks with DJL. */
@Command(
        name = "train",
        description = {
            "Trains a small Llama to predict the next byte of a text, with DJL's trainer on the"
                    + " engine PyTorch-P2P. Prints the loss on batches and on a held-out tenth of"
                    + " the text, and samples of the model before, during and after the training.",
            "With --tensor-parallel, ranks divide the layers of a model; with --data-parallel,"
                    + " copies of the model divide each batch. The losses are the same either way.",
            "With --resume, a job that was stopped goes on. In a process started by 'launch' or"
                    + " torchrun, train runs that process's rank.",
            "Example: samples/run.sh train --data-parallel 2"
        })
public final class TrainCommand extends CliCommand {

    private static final int DEFAULT_RANKS = 2;
    private static final int MOST_CONTEXT = 4096;
    private static final Duration SILENCE = Duration.ofSeconds(10);

    @Option(
            names = "--data-parallel",
            description =
                    "Copies of the model, each with a part of every batch; 2 ranks in all if not"
                            + " given.")
    private Integer dataParallel;

    @Option(names = "--tensor-parallel", description = "Ranks that divide a copy of the model.")
    private int tensorParallel = 1;

    @Mixin
    private final RankOptions options =
            new RankOptions()
                    .processes()
                    .device()
                    .types("float32", "float32", "bfloat16")
                    .typesOf("Element type of activations (parameters are float32)");

    @Option(
            names = "--text",
            paramLabel = "FILE",
            description =
                    "The text; if not given, the licences in /usr/share/common-licenses and of"
                            + " the JDK.")
    private Path text;

    @Option(names = "--steps", description = "Batches to train on.")
    private int steps = 850;

    @Option(
            names = "--context",
            description =
                    "Tokens of a piece of text: one that begins every text, then bytes. The model"
                            + " looks back on as many.")
    private int context = 64;

    @Option(names = "--batch", description = "Pieces of text in a batch of all ranks.")
    private int batch = 16;

    @Option(names = "--seed", description = "Seed of weights, batches and samples.")
    private long seed = 1;

    @Option(
            names = "--resume",
            paramLabel = "FOLDER",
            description =
                    "Folder of checkpoints. The job goes on from the newest one, if there is any,"
                            + " with the losses of a job that was never stopped. Text, seed, batch,"
                            + " context, dtype and tensor parallelism must be the same.")
    private Path checkpoints;

    @Option(
            names = "--checkpoint-every",
            paramLabel = "STEPS",
            description =
                    "With --resume: steps between checkpoints; a tenth of all steps if not given."
                            + " The last step has one, too.")
    private Integer checkpointEvery;

    @Option(
            names = "--save-llama",
            paramLabel = "DIR",
            description =
                    "Writes the trained model to a folder in Hugging Face's layout, for generate"
                            + " and serve. Its longest text has --context tokens.")
    private Path llama;

    @Option(
            names = "--sample",
            paramLabel = "BYTES",
            description = "Bytes that the trained model writes at the end.")
    private int sample = 400;

    private String type;
    private DeviceKind device;
    private String name; // of the text

    @Override
    public Integer call() throws Exception {
        options.check();
        type = options.type();
        device = options.deviceKind();
        boolean processes = options.inProcesses();
        if (device == DeviceKind.cpu || dataParallel == null || dataParallel < 1) {
            Ranks.check("--data-parallel", dataParallel, processes);
        }
        refuseIf(
                tensorParallel < 1 || TrainJob.heads() % tensorParallel != 0,
                "--tensor-parallel must divide the model's %d heads, not be %d"
                        .formatted(TrainJob.heads(), tensorParallel));
        refuseIf(
                context < 2 || context > MOST_CONTEXT,
                "--context must be from 2 to %s, not %s".formatted(MOST_CONTEXT, context));
        refuseIf(
                context % tensorParallel != 0,
                "--context %d cannot be divided among --tensor-parallel %d"
                        .formatted(context, tensorParallel));
        refuseIf(
                steps < 1 || batch < 1,
                "--steps and --batch must be 1 or more, not %s and %s".formatted(steps, batch));
        refuseIf(sample < 0, "--sample must be 0 or more, not %s".formatted(sample));
        refuseIf(
                checkpointEvery != null && checkpoints == null,
                "--checkpoint-every needs --resume, which names the folder");
        if (checkpointEvery == null) {
            checkpointEvery = TrainJob.tenth(steps);
        }
        refuseIf(
                checkpointEvery < 1,
                "--checkpoint-every must be 1 or more, not %d".formatted(checkpointEvery));
        byte[] bytes = readText();
        Ranks all = processes ? null : Ranks.of(dataParallel == null ? null : wanted(), wanted());
        checkDivision(processes ? wanted() : all.worldSize());
        if (checkpoints != null) {
            checkJob(bytes);
        }
        Ranks.requireGpus(device.backend(), processes ? wanted() : all.here().size());
        // Create folders only after all arguments have been checked.
        if (llama != null) {
            Files.createDirectories(llama.toAbsolutePath());
        }
        if (checkpoints != null) {
            Files.createDirectories(checkpoints.toAbsolutePath());
            writeJob(bytes);
        }
        if (processes) {
            return Ranks.launch(spec(), wanted());
        }
        boolean threads = !all.areProcesses();
        return all.run(device.backend(), group -> run(bytes, group, threads)).get(0);
    }

    private void checkDivision(int worldSize) {
        refuseIf(
                worldSize % tensorParallel != 0,
                "%s cannot be divided into groups of --tensor-parallel %d"
                        .formatted(Ranks.count(worldSize), tensorParallel));
        int copies = worldSize / tensorParallel;
        refuseIf(
                batch % copies != 0,
                "--batch %d cannot be divided among %d copies of the model"
                        .formatted(batch, copies));
    }

    /** Returns the number of ranks of the job. */
    private int wanted() {
        int copies = Math.max(1, DEFAULT_RANKS / tensorParallel);
        return (dataParallel == null ? copies : dataParallel) * tensorParallel;
    }

    private byte[] readText() throws IOException {
        name = text == null ? "licence texts" : text.getFileName().toString();
        byte[] bytes = text == null ? LicenceTexts.read() : readFile(text);
        refuseIf(
                bytes.length < TrainJob.shortest(context),
                ("the text, %s, has %d bytes; --context %d takes %d or more: name a"
                                + " longer one by --text")
                        .formatted(name, bytes.length, context, TrainJob.shortest(context)));
        return bytes;
    }

    private Path jobFile() {
        return checkpoints.toAbsolutePath().resolve("job.txt");
    }

    /** Returns the settings that a job's losses depend on, one per line. */
    private List<String> job(byte[] bytes) {
        Checksum checksum = new CRC32C();
        checksum.update(bytes, 0, bytes.length);
        return List.of(
                "--context " + context,
                "--batch " + batch,
                "--seed " + seed,
                "--dtype " + type,
                "--tensor-parallel " + tensorParallel,
                "--text of %d bytes, CRC-32C %08x".formatted(bytes.length, checksum.getValue()));
    }

    /** Refuses checkpoints of a job with other settings. */
    private void checkJob(byte[] bytes) throws IOException {
        if (!Files.exists(jobFile())) {
            return;
        }
        List<String> begun = Files.readAllLines(jobFile());
        List<String> here = job(bytes);
        refuseIf(
                !begun.equals(here),
                "--resume %s was begun with %s, not %s: give the same, or another folder"
                        .formatted(checkpoints, without(begun, here), without(here, begun)));
    }

    private static String without(List<String> settings, List<String> others) {
        return settings.stream()
                .filter(setting -> !others.contains(setting))
                .collect(Collectors.joining(", "));
    }

    private void writeJob(byte[] bytes) throws IOException {
        Path file = jobFile();
        if (Files.exists(file)) {
            return;
        }
        Path part = Files.createTempFile(file.getParent(), "job", ".part");
        FileWrites.naming(file, () -> Files.write(part, job(bytes)));
        Files.move(
                part, file, StandardCopyOption.ATOMIC_MOVE); // Other ranks may write the same file.
    }

    /** Runs one rank; returns the exit code. */
    private int run(byte[] bytes, ProcessGroup group, boolean threads) throws IOException {
        TrainJob.Settings settings =
                new TrainJob.Settings(
                        group,
                        tensorParallel,
                        type.equals("bfloat16"),
                        steps,
                        context,
                        batch,
                        seed,
                        checkpoints,
                        checkpointEvery,
                        llama,
                        sample);
        PrintWriter out = settings.isFirst() ? out() : new PrintWriter(Writer.nullWriter());
        out.printf(
                "Training on %d bytes of %s, a tenth held out, %s, %s, data parallel %d, tensor"
                        + " parallel %d, %s, device %s%n",
                bytes.length,
                name,
                Ranks.count(group.worldSize()),
                threads ? "threads" : "processes",
                group.worldSize() / tensorParallel,
                tensorParallel,
                type,
                device);
        out.flush();
        Progress progress = new Progress(out);
        Thread stopped = new Thread(progress::stopped, "train-stopped");
        if (settings.isFirst()) {
            Runtime.getRuntime().addShutdownHook(stopped);
        }
        String written = new TrainJob(bytes, settings, progress).run();
        if (settings.isFirst()) {
            Runtime.getRuntime().removeShutdownHook(stopped);
        }
        if (llama != null) {
            out.printf("%nWrote a Llama of %d tokens of context to %s%n", context, llama);
        }
        out.printf("%nWhat it writes:%n%s%n", written);
        out.flush();
        return 0;
    }

    /** Formats a duration, rounded to seconds from one second on. */
    private static String text(long nanos) {
        long millis = nanos / 1_000_000;
        return Durations.text(
                Duration.ofMillis(millis < 1000 ? millis : (millis + 500) / 1000 * 1000));
    }

    /** Prints the progress: ten lines, and one after ten seconds without output. */
    private final class Progress implements TrainJob.Listener {

        private final PrintWriter out;
        private final long start = System.nanoTime();
        private long printed = start;
        private String losses = ""; // the latest losses
        private long firstStep; // the step of the checkpoint that the job resumed from
        private long warm; // when the first step ended
        private volatile long saved;
        private volatile long done;

        Progress(PrintWriter out) {
            this.out = out;
        }

        private void print(String line) {
            out.println(line);
            out.flush();
            printed = System.nanoTime();
        }

        /** Returns the elapsed time and an estimate of the remaining time. */
        private String times(long step) {
            long now = System.nanoTime();
            long nanos = now - start;
            // The estimate excludes the first step, in which the JVM loads classes and libtorch
            // allocates.
            if (step == firstStep + 1) {
                warm = now;
            }
            long left = (now - warm) / Math.max(1, step - firstStep - 1) * (steps - step);
            String elapsed = text(nanos);
            return step == steps || step == firstStep + 1
                    ? elapsed
                    : elapsed + ", " + text(left) + " left";
        }

        /** Prints how to resume the job, when the process is being stopped. */
        void stopped() {
            if (done == 0) {
                return;
            }
            PrintWriter err = err();
            if (checkpoints == null) {
                err.printf(
                        "%nStopped after step %d of %d; nothing is saved. With --resume FOLDER a"
                                + " job can go on.%n",
                        done, steps);
            } else {
                err.printf(
                        "%nStopped after step %d of %d. The same command, with --resume %s, goes on"
                                + " from step %d.%n",
                        done, steps, checkpoints, saved);
            }
            err.flush();
        }

        @Override
        public void restored(long step) {
            firstStep = step;
            saved = step;
            print(
                    step < steps
                            ? "Going on from step " + step
                            : "Step " + step + " is reached already: there is nothing to train");
        }

        @Override
        public void saved(long step) {
            saved = step;
        }

        @Override
        public void sampled(int percent, String text) {
            // Control characters would disturb the terminal.
            String shown = text.replaceAll("[\\p{Cc}&&[^\n]]", "·");
            String when = percent == 0 ? "Untrained" : "After " + percent + " % of the steps";
            print(String.format("%s it writes:%n%s%n", when, shown));
        }

        @Override
        public void trained(int step, float loss, float heldOut) {
            losses = String.format("loss %.3f   held out %.3f", loss, heldOut);
        }

        @Override
        public void stepped(int step, double tokensPerSecond) {
            done = step;
            String times = times(step);
            boolean reported = step == 1 || step == steps || step % TrainJob.tenth(steps) == 0;
            if (reported || System.nanoTime() - printed > SILENCE.toNanos()) {
                print(
                        String.format(
                                "step %6d   %s   %.0f tokens/s   %s",
                                step,
                                reported ? losses : "last " + losses,
                                tokensPerSecond,
                                times));
            }
        }
    }
}
