// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.train;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.djlx.samples.CommandTest;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.io.TempDir;

/** Runs {@code train} on a short text. */
abstract class TrainCommandCase extends CommandTest {

    /** Bytes of a sample with its prompt: more than the context. */
    static final int SAMPLE = 36;

    @TempDir Path folder;
    Path text;

    @BeforeEach
    void writeText() throws IOException {
        text = folder.resolve("text.txt");
        Files.writeString(text, "The quick brown fox jumps over the lazy dog. ".repeat(20));
    }

    static List<Float> losses(String output) {
        return output.lines()
                .filter(line -> line.contains("   loss "))
                .map(line -> Float.parseFloat(line.replaceAll(".*loss ([0-9.]+) .*", "$1")))
                .toList();
    }

    Object[] train(int steps) {
        return new Object[] {
            "train", "--text", text, "--batch", 4, "--sample", SAMPLE, "--steps", steps
        };
    }

    static Object[] with(Object[] args, Object... more) {
        return Stream.of(args, more).flatMap(Stream::of).toArray();
    }

    static List<String> names(Path folder) throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(file -> file.getFileName().toString()).sorted().toList();
        }
    }
}
