// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.train;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.collectives.launch.Launch;
import org.djlx.samples.CommandTest;
import org.djlx.samples.Main;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(200)
@Tag("slow")
class TrainCommandTest extends CommandTest {

    /** Bytes of a sample with its prompt: more than the context. */
    private static final int SAMPLE = 36;

    @TempDir private Path folder;
    private Path text;

    @BeforeEach
    void writeText() throws IOException {
        text = folder.resolve("text.txt");
        Files.writeString(text, "The quick brown fox jumps over the lazy dog. ".repeat(20));
    }

    private static List<String> words(Object... args) {
        return Stream.of(args).map(Object::toString).toList();
    }

    static List<Float> losses(String output) {
        return output.lines()
                .filter(line -> line.contains("   loss "))
                .map(line -> Float.parseFloat(line.replaceAll(".*loss ([0-9.]+) .*", "$1")))
                .toList();
    }

    @Test
    void learnsTheTextOnAnyNumberOfRanks() {
        List<Float> one = null;
        for (int[] ranks : new int[][] {{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
            String output =
                    output(
                            0,
                            with(
                                    train(40),
                                    "--data-parallel",
                                    ranks[0],
                                    "--tensor-parallel",
                                    ranks[1]));
            List<Float> losses = losses(output);
            assertEquals(11, losses.size(), output);
            assertTrue(losses.get(10) < 0.1f && losses.get(0) > 2, output);
            assertTrue(output.contains("quick brown fox jumps over the lazy dog. The"), output);
            one = one == null ? losses : one;
            for (int i = 0; i < losses.size(); i++) {
                assertEquals(one.get(i), losses.get(i), 0.005f, output);
            }
        }
    }

    private Object[] train(int steps) {
        return new Object[] {
            "train", "--text", text, "--batch", 4, "--sample", SAMPLE, "--steps", steps
        };
    }

    /** {@code generate} reads the saved model with another number of ranks. */
    @Test
    void generatesTextOfTheTrainedModel() {
        Path one = folder.resolve("one");
        Path two = folder.resolve("two");
        String output = output(0, with(train(60), "--data-parallel", 2, "--save-llama", one));
        assertTrue(output.contains("Wrote a Llama of 64 tokens of context to " + one), output);
        output(0, with(train(60), "--tensor-parallel", 2, "--processes", "--save-llama", two));
        for (Path model : List.of(one, two)) {
            for (int ranks : new int[] {1, 2}) {
                Object[] args = {"generate", model, "--ranks", ranks, "--max-tokens", 30};
                String text = output(0, with(args, "--prompt", "The quick brown"));
                assertTrue(text.contains(" fox jumps over the lazy dog. "), text);
            }
        }
        Object[] wide = {"--context", 128, "--save-llama", folder.resolve("wide")};
        output(0, with(with(train(2), wide), "--dtype", "bfloat16"));
        assertTrue(read(folder.resolve("wide/config.json")).contains("_embeddings\": 128,"));
    }

    /** Neither the beginning of the text nor a sample ends within a character. */
    @Test
    void samplesAreText() throws IOException {
        Files.writeString(text, "日本語の文章。".repeat(40));
        String output = output(0, train(2));
        assertTrue(output.contains("Untrained it writes:\n日本語の文"), output);
        assertFalse(output.contains("\ufffd"), output);
    }

    /** bfloat16 activations have three decimal digits. */
    @Test
    void learnsInBfloat16() {
        List<Float> wide = losses(output(0, train(10)));
        List<Float> narrow = losses(output(0, with(train(10), "--dtype", "bfloat16")));
        assertEquals(wide.size(), narrow.size());
        assertEquals(wide.get(0), narrow.get(0), 0.05f);
        assertTrue(narrow.get(9) < narrow.get(0) / 2, narrow::toString);
    }

    @Test
    void learnsInProcesses() throws Exception {
        List<Float> threads = losses(output(0, with(train(10), "--tensor-parallel", 2)));
        Path output = folder.resolve("output.txt");
        try (var stream = new java.io.PrintStream(Files.newOutputStream(output))) {
            List<String> args = new ArrayList<>(List.of("--nproc", "2"));
            args.addAll(List.of("--jvm-arg=-XX:TieredStopAtLevel=1", Main.class.getName()));
            args.addAll(words(with(train(10), "--tensor-parallel", 2)));
            int code = Launch.run(stream, stream, args);
            assertEquals(0, code, () -> read(output));
        }
        List<Float> processes = losses(read(output));
        assertEquals(threads.size(), processes.size(), () -> read(output));
        for (int i = 0; i < threads.size(); i++) {
            assertEquals(threads.get(i), processes.get(i), 0.005f);
        }
    }

    private byte[] checkpoint(String folder, int step) throws IOException {
        return Files.readAllBytes(
                this.folder.resolve(folder).resolve("checkpoint-" + step + ".safetensors"));
    }

    @Test
    void refusesProcessesInARank() {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (PrintStream sink = new PrintStream(bytes, true)) {
            List<String> args = words("--nproc", 1, Main.class.getName(), "train", "--processes");
            assertEquals(2, Launch.run(sink, sink, args), bytes::toString);
        }
        assertTrue(bytes.toString().contains("error: --processes starts"), bytes::toString);
    }

    /** A job stopped as threads and resumed as processes has the same bits as one never stopped. */
    @Test
    void resumesFromACheckpoint() throws Exception {
        Path whole = folder.resolve("whole");
        Path parts = folder.resolve("parts");
        Object[] jobs = {"train", "--text", text, "--batch", 4, "--data-parallel", 2};
        Object[] args = with(jobs, "--sample", SAMPLE, "--steps");
        String expected = output(0, with(args, 60, "--resume", whole, "--checkpoint-every", 25));
        assertEquals("What it writes:\n\n".length() + 16 + SAMPLE, written(expected).length());
        output(0, with(args, 35, "--resume", parts));
        assertEquals(
                List.of(
                        "checkpoint-25.safetensors",
                        "checkpoint-50.safetensors",
                        "checkpoint-60.safetensors",
                        "job.txt"),
                names(whole));
        String actual = output(0, with(args, 60, "--resume", parts));
        assertTrue(actual.contains("Going on from step 35"), actual);
        assertTrue(expected.contains("Untrained it writes:\nThe quick brown "), expected);
        assertFalse(actual.contains("Untrained"), actual);
        List<Float> losses = losses(expected); // of steps 1, 6, 12, … 60
        assertEquals(losses.subList(6, 11), losses(actual));
        assertArrayEquals(checkpoint("whole", 60), checkpoint("parts", 60));
        assertEquals(written(expected), written(actual));
        // A finished job writes its text again.
        String again = output(0, with(args, 60, "--resume", parts));
        assertEquals(List.of(), losses(again));
        assertEquals(written(expected), written(again));
        String less = output(0, with(args, 59, "--resume", parts));
        assertTrue(less.contains("Step 60 is reached already"), less);
        assertEquals(written(expected), written(less));
        String other = output(2, with(args, 60, "--resume", parts, "--seed", 2));
        assertTrue(other.contains("was begun with --seed 1, not --seed 2: give the same"), other);
        other =
                output(
                        2,
                        with(args, 60, "--resume", parts, "--context", 32, "--dtype", "bfloat16"));
        assertTrue(
                other.contains(
                        "with --context 64, --dtype float32, not --context 32, --dtype bfloat16:"),
                other);
        output(2, with(args, 60, "--resume", parts, "--tensor-parallel", 2));
        Files.writeString(text, "x", StandardOpenOption.APPEND);
        other = output(2, with(args, 60, "--resume", parts));
        assertTrue(
                other.matches("(?s).*with --text of \\d+ bytes.*, not --text of \\d+ .*"), other);
    }

    /** Each part of a model has its own checkpoints; all parts resume from the same step. */
    @Test
    void resumesADividedModel() throws Exception {
        Path whole = folder.resolve("whole");
        Path parts = folder.resolve("parts");
        Object[] divided = {"--tensor-parallel", 2, "--resume"};
        output(0, with(with(train(8), divided), whole));
        output(0, with(with(train(5), divided), parts));
        String actual = output(0, with(with(train(8), divided), parts));
        assertTrue(actual.contains("Going on from step 5"), actual);
        assertSameParts(8);
        // One part has saved a checkpoint, the other has not.
        Files.delete(parts.resolve("part-1/checkpoint-8.safetensors"));
        String again = output(0, with(with(train(8), divided), parts));
        assertTrue(again.contains("Going on from step 7"), again);
        assertSameParts(8);
        for (String name : names(parts.resolve("part-1"))) {
            Files.delete(parts.resolve("part-1").resolve(name));
        }
        String none = output(1, with(with(train(8), divided), parts));
        assertTrue(none.contains("[[6, 7, 8], []]"), none);
    }

    private void assertSameParts(int step) throws IOException {
        for (String part : List.of("/part-0", "/part-1")) {
            assertArrayEquals(checkpoint("whole" + part, step), checkpoint("parts" + part, step));
        }
    }

    /** A rank is killed between two checkpoints; the launcher restarts all ranks. */
    @Test
    void losesNothingWhenARankIsKilled() throws Exception {
        List<String> whole = launch("whole", 0);
        List<String> parts = launch("parts", 27);
        for (int rank = 0; rank < 2; rank++) {
            String restored = "[" + rank + "] restored 20";
            assertTrue(parts.contains(restored), parts::toString);
            List<String> after = parts.subList(parts.indexOf(restored), parts.size());
            String line = "[" + rank + "] loss ";
            List<String> expected = lines(whole, line);
            assertEquals(60, expected.size());
            assertEquals(expected.subList(20, 60), lines(after, line));
        }
        assertEquals(lines(whole, "[0] text"), lines(parts, "[0] text"));
        assertArrayEquals(checkpoint("whole", 60), checkpoint("parts", 60));
    }

    private static List<String> lines(List<String> lines, String beginning) {
        return lines.stream().filter(line -> line.startsWith(beginning)).toList();
    }

    private List<String> launch(String checkpoints, int lastStep) throws Exception {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        PrintStream stream = new PrintStream(bytes, true);
        String there = folder.resolve(checkpoints).toString();
        List<String> args = new ArrayList<>(List.of("--nproc", "2", "--max-restarts", "1"));
        args.addAll(List.of("--jvm-arg=-XX:TieredStopAtLevel=1", KilledTrainMain.class.getName()));
        args.addAll(List.of(text.toString(), there, "" + lastStep));
        int code = Launch.run(stream, stream, args);
        assertEquals(0, code, bytes::toString);
        boolean killed = bytes.toString().contains("rank 1 exited with code 137 (signal 9)");
        assertEquals(lastStep > 0, killed, bytes::toString);
        return bytes.toString().lines().toList();
    }

    private static Object[] with(Object[] args, Object... more) {
        return Stream.of(args, more).flatMap(Stream::of).toArray();
    }

    private static String written(String output) {
        return output.substring(output.indexOf("What it writes:"));
    }

    private static List<String> names(Path folder) throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(file -> file.getFileName().toString()).sorted().toList();
        }
    }

    private static String read(Path file) {
        try {
            return Files.readString(file);
        } catch (IOException e) {
            throw new java.io.UncheckedIOException(e);
        }
    }

    /** Only a job that starts writes its settings: a refused command leaves no file. */
    @Test
    void createsNoFolderWhenItRefuses() throws IOException {
        Path fresh = folder.resolve("fresh");
        Object[] wrong = {"train", "--text", text, "--batch", 7, "--steps", 1, "--resume", fresh};
        Object[] llama = {"--save-llama", folder.resolve("llama")};
        for (Object[] more : new Object[][] {{}, {"--processes"}}) {
            output(2, with(with(wrong, llama), more));
            assertEquals(List.of("text.txt"), names(folder));
        }
        // More GPUs than any host has.
        Object[] gpus = {"train", "--text", text, "--device", "gpu", "--data-parallel", 1024};
        Object[] files = with(llama, "--batch", 1024, "--resume", fresh);
        for (Object[] more : new Object[][] {{}, {"--processes"}}) {
            String refused = output(1, with(with(gpus, files), more));
            assertTrue(refused.contains("GPU"), refused);
            assertEquals(List.of("text.txt"), names(folder));
        }
        output(0, with(with(train(1), "--resume"), fresh));
        assertTrue(Files.exists(fresh.resolve("job.txt")));
    }

    @Test
    void wrongArgumentsAreNamed() throws IOException {
        assertTrue(output(2, "train", "--text", folder.resolve("none")).contains("cannot read"));
        assertTrue(output(2, "train", "--text", text, "--batch", 7).contains("7 cannot be"));
        assertTrue(output(2, "train", "--text", text, "--steps", 0).contains("1 or more, not 0"));
        assertTrue(
                output(2, "train", "--text", text, "--sample", -1)
                        .contains("be 0 or more, not -1"));
        assertTrue(
                output(2, "train", "--text", text, "--tensor-parallel", 3)
                        .contains("must divide the model's 8 heads, not be 3"));
        assertTrue(output(2, "train", "--text", text, "--context", 1).contains("from 2 to 4096"));
        assertTrue(
                output(2, "train", "--text", text, "--context", 9, "--tensor-parallel", 2)
                        .contains("9 cannot be divided among --tensor-parallel 2"));
        assertTrue(
                output(2, "train", "--text", text, "--checkpoint-every", 3).contains("--resume"));
        // The command fails before it starts ranks: one rank would fail, the other would wait.
        assertTrue(
                output(1, "train", "--text", text, "--resume", text.resolve("x")).contains("x: "));
        Path tiny = folder.resolve("tiny");
        Files.writeString(tiny, "tiny");
        assertTrue(output(2, "train", "--text", tiny).contains("has 4 bytes"));
    }
}
