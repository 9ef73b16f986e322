/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.train;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.awt.image.BufferedImage;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.stream.Stream;
import javax.imageio.ImageIO;
import org.djlx.samples.Main;
import org.djlx.samples.launch.Launcher;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import picocli.CommandLine;

@Timeout(200)
class TrainCommandTest {

    @TempDir private Path folder;
    private Path text;

    @BeforeEach
    void writeText() throws IOException {
        text = folder.resolve("text.txt");
        Files.writeString(text, "The quick brown fox jumps over the lazy dog. ".repeat(20));
    }

    private String run(int code, Object... args) {
        StringWriter out = new StringWriter();
        CommandLine root = Main.commandLine();
        root.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(out, true));
        String[] words = words(args).toArray(String[]::new);
        assertEquals(code, root.execute(words), out::toString);
        return out.toString();
    }

    private static List<String> words(Object... args) {
        return Stream.of(args).map(Object::toString).toList();
    }

    private static List<Float> losses(String output) {
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
                    run(
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
        return new Object[] {"train", "--text", text, "--batch", 4, "--steps", steps};
    }

    /** Activations of bfloat16 have three decimal digits. */
    @Test
    void learnsInBfloat16() {
        List<Float> wide = losses(run(0, train(10)));
        List<Float> narrow = losses(run(0, with(train(10), "--dtype", "bfloat16")));
        assertEquals(wide.size(), narrow.size());
        assertEquals(wide.get(0), narrow.get(0), 0.05f);
        assertTrue(narrow.get(9) < narrow.get(0) / 2, narrow::toString);
    }

    @Test
    void learnsInProcesses() throws Exception {
        List<Float> threads = losses(run(0, with(train(10), "--tensor-parallel", 2)));
        Path output = folder.resolve("output.txt");
        try (var stream = new java.io.PrintStream(Files.newOutputStream(output))) {
            int code =
                    Launcher.builder()
                            .setProcesses(2)
                            .setMainClass(Main.class.getName())
                            .optArgs(words(with(train(10), "--tensor-parallel", 2)))
                            .optOutput(stream, stream)
                            .build()
                            .launch();
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

    /** Ended and gone on with, in threads and then in processes: the same to the bit. */
    @Test
    void aJobGoesOn() throws Exception {
        Path whole = folder.resolve("whole");
        Path parts = folder.resolve("parts");
        Object[] args = {"train", "--text", text, "--batch", 4, "--data-parallel", 2, "--steps"};
        String expected = run(0, with(args, 60, "--resume", whole, "--checkpoint-every", 25));
        run(0, with(args, 35, "--resume", parts));
        assertEquals(
                List.of(
                        "checkpoint-25.safetensors",
                        "checkpoint-50.safetensors",
                        "checkpoint-60.safetensors",
                        "job.txt",
                        "losses.csv"),
                names(whole));
        String actual =
                run(0, with(args, 60, "--resume", parts, "--chart", folder.resolve("c.png")));
        assertTrue(actual.contains("Going on from step 35"), actual);
        List<Float> losses = losses(expected); // of steps 1, 6, 12, … 60
        assertEquals(losses.subList(6, 11), losses(actual));
        assertArrayEquals(checkpoint("whole", 60), checkpoint("parts", 60));
        assertEquals(written(expected), written(actual));
        // The curve has the losses of both.
        assertEquals(read(whole.resolve("losses.csv")), read(parts.resolve("losses.csv")));
        BufferedImage chart = ImageIO.read(folder.resolve("c.png").toFile());
        assertTrue(chart.getWidth() > 100 && chart.getHeight() > 100);
        // A job that is done writes again.
        String again = run(0, with(args, 60, "--resume", parts));
        assertEquals(List.of(), losses(again));
        assertEquals(written(expected), written(again));
        assertTrue(run(1, with(args, 59, "--resume", parts)).contains("of step 60"));
        String other = run(2, with(args, 60, "--resume", parts, "--seed", 2));
        assertTrue(other.contains("was begun with --batch 4 --seed 1, text of"), other);
        run(2, with(args, 60, "--resume", parts, "--batch", 8));
        Files.writeString(text, "x", StandardOpenOption.APPEND);
        run(2, with(args, 60, "--resume", parts));
    }

    /** Each part of a model has checkpoints of its own, and all parts go on from the same. */
    @Test
    void aDividedModelGoesOn() throws Exception {
        Path whole = folder.resolve("whole");
        Path parts = folder.resolve("parts");
        Object[] divided = {"--tensor-parallel", 2, "--resume"};
        run(0, with(with(train(8), divided), whole));
        run(0, with(with(train(5), divided), parts));
        String actual = run(0, with(with(train(8), divided), parts));
        assertTrue(actual.contains("Going on from step 5"), actual);
        assertSameParts(8);
        // As when a job ends while one part has saved and the other has not yet.
        Files.delete(parts.resolve("part-1/checkpoint-8.safetensors"));
        String again = run(0, with(with(train(8), divided), parts));
        assertTrue(again.contains("Going on from step 7"), again);
        assertSameParts(8);
        for (String name : names(parts.resolve("part-1"))) {
            Files.delete(parts.resolve("part-1").resolve(name));
        }
        String none = run(1, with(with(train(8), divided), parts));
        assertTrue(none.contains("[[6, 7, 8], []]"), none);
    }

    private void assertSameParts(int step) throws IOException {
        for (String part : List.of("/part-0", "/part-1")) {
            assertArrayEquals(checkpoint("whole" + part, step), checkpoint("parts" + part, step));
        }
    }

    /** A rank is killed between two checkpoints, and all are started again by the launcher. */
    @Test
    void aKilledRankChangesNothing() throws Exception {
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
        int code =
                Launcher.builder()
                        .setProcesses(2)
                        .setMainClass(KilledTrainMain.class.getName())
                        .optArgs(List.of(text.toString(), there, "" + lastStep))
                        .optMaxRestarts(1)
                        .optOutput(stream, stream)
                        .build()
                        .launch();
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

    @Test
    void wrongArgumentsAreNamed() throws IOException {
        assertTrue(run(2, "train", "--text", folder.resolve("none")).contains("cannot read"));
        assertTrue(run(2, "train", "--text", text, "--batch", 7).contains("7 cannot be"));
        assertTrue(run(2, "train", "--text", text, "--steps", 0).contains("1 or more, not 0"));
        assertTrue(
                run(2, "train", "--text", text, "--tensor-parallel", 3)
                        .contains("must divide the model's 8 heads, not be 3"));
        assertTrue(run(2, "train", "--text", text, "--checkpoint-every", 3).contains("--resume"));
        assertTrue(run(2, "train", "--text", text, "--chart", folder).contains("is a folder"));
        // The whole command fails, where otherwise one rank would and the other would wait for it.
        assertTrue(run(1, "train", "--text", text, "--resume", text.resolve("x")).contains("x: "));
        Path tiny = folder.resolve("tiny");
        Files.writeString(tiny, "tiny");
        assertTrue(run(2, "train", "--text", tiny).contains("has 4 bytes"));
    }
}
