// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** Packages of text generation import only what lies below them. */
class PackageOrderTest {

    private static final String ROOT = PackageOrderTest.class.getPackageName();

    // From the lowest; the root package has no name.
    private static final List<String> ORDER =
            List.of(
                    ".model",
                    ".files",
                    ".sampling",
                    ".text.template",
                    ".text",
                    "",
                    ".ops",
                    ".engine",
                    ".server",
                    ".djl",
                    ".langchain4j",
                    ".tune");

    @Test
    void noPackageImportsOneAboveIt() throws IOException {
        Pattern importOf =
                Pattern.compile(
                        "^import (?:static )?" + Pattern.quote(ROOT) + "([a-z0-9.]*)\\.[A-Z]",
                        Pattern.MULTILINE);
        Set<String> upwards = new TreeSet<>();
        for (String name : ORDER) {
            Path folder = Path.of("src/main/java", (ROOT + name).replace('.', '/'));
            try (Stream<Path> files = Files.list(folder)) {
                for (Path file : files.filter(Files::isRegularFile).toList()) {
                    String code = Files.readString(file);
                    importOf.matcher(code)
                            .results()
                            .map(MatchResult::group)
                            .filter(found -> isAbove(found, name))
                            .forEach(found -> upwards.add(file + ": " + found));
                }
            }
        }
        assertEquals(Set.of(), upwards);
    }

    private static boolean isAbove(String imported, String name) {
        String type = imported.substring(imported.indexOf(ROOT) + ROOT.length());
        String of = type.substring(0, type.lastIndexOf('.'));
        return ORDER.indexOf(of) > ORDER.indexOf(name) || !ORDER.contains(of);
    }
}
