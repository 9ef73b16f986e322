// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.train;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.stream.Stream;

/**
 * The default text: the licences in Debian's folder of licences, and the JDK's. Anyone may copy
 * these texts.
 *
 * <p>Each paragraph becomes one line. Repeated paragraphs are dropped. Paragraphs are shuffled with
 * a fixed seed, so the held-out part has the same kinds of text as the rest.
 */
final class LicenceTexts {

    private static final int SHORTEST_PARAGRAPH = 80; // excludes headings and tables

    private LicenceTexts() {}

    /** Returns the text; empty without these folders. */
    static byte[] read() throws IOException {
        Set<String> paragraphs = new LinkedHashSet<>();
        for (Path folder :
                List.of(
                        Path.of("/usr/share/common-licenses"),
                        Path.of(System.getProperty("java.home"), "legal"))) {
            for (Path file : files(folder)) {
                String text = new String(Files.readAllBytes(file), StandardCharsets.UTF_8);
                for (String paragraph : text.split("\\R\\s*\\R")) {
                    paragraphs.add(paragraph.strip().replaceAll("\\s+", " "));
                }
            }
        }
        paragraphs.removeIf(paragraph -> paragraph.length() < SHORTEST_PARAGRAPH);
        List<String> shuffled = new ArrayList<>(paragraphs);
        Collections.shuffle(shuffled, new Random(1));
        return String.join("\n", shuffled).getBytes(StandardCharsets.UTF_8);
    }

    /** Returns all files below a folder in the order of their names, without links. */
    private static List<Path> files(Path folder) throws IOException {
        if (!Files.isDirectory(folder)) {
            return List.of();
        }
        try (Stream<Path> all = Files.walk(folder)) {
            return all.filter(file -> Files.isRegularFile(file) && !Files.isSymbolicLink(file))
                    .sorted()
                    .toList();
        }
    }
}
