/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.train;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
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
        String[] words = List.of(args).stream().map(Object::toString).toArray(String[]::new);
        assertEquals(code, root.execute(words), out::toString);
        return out.toString();
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
        for (int ranks : new int[] {1, 2, 4}) {
            String output =
                    run(0, "train", "--text", text, "--data-parallel", ranks, "--steps", 200);
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

    @Test
    void learnsInProcesses() throws Exception {
        List<Float> threads =
                losses(run(0, "train", "--text", text, "--steps", 50, "--data-parallel", 2));
        Path output = folder.resolve("output.txt");
        try (var stream = new java.io.PrintStream(Files.newOutputStream(output))) {
            int code =
                    Launcher.builder()
                            .setProcesses(2)
                            .setMainClass(Main.class.getName())
                            .optArgs(List.of("train", "--text", text.toString(), "--steps", "50"))
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
        assertTrue(run(2, "train", "--text", text, "--batch", 7).contains("--batch 7 cannot be"));
        assertTrue(run(2, "train", "--text", text, "--steps", 0).contains("1 or more, not 0"));
        Path tiny = folder.resolve("tiny");
        Files.writeString(tiny, "tiny");
        assertTrue(run(2, "train", "--text", tiny).contains("has 4 bytes"));
    }
}
