// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalDate;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;

/** The table of libraries in docs/security.md is the class path's. */
class SecurityPageTest {

    private static final Path ROOT = Path.of("..", "..");
    private static final Pattern ROW =
            Pattern.compile("(?m)^\\| (`.*`) \\| (\\S+) \\| (\\S+) \\| ");
    private static final Pattern NAME = Pattern.compile("`([^`]+)`");

    /** The versions by names of artifacts: the modules' class paths, and npm's packages. */
    private static Map<String, String> used() throws IOException {
        Map<String, String> used = new TreeMap<>();
        // What is optional stands on the class path of its module only.
        for (String module : List.of("samples", "native-ops", "text-generation")) {
            String classPath =
                    Files.readString(ROOT.resolve(module + "/target/class-path")).strip();
            for (String entry : classPath.split(File.pathSeparator)) {
                Path version = Path.of(entry).getParent(); // …/GROUP/ARTIFACT/VERSION/FILE.jar
                boolean ours = entry.contains("/org/djlx/") || !entry.endsWith(".jar");
                if (!ours && !version.endsWith("target")) {
                    used.put(
                            version.getParent().getFileName().toString(),
                            version.getFileName().toString());
                }
            }
        }
        Path libraries = ROOT.resolve("text-generation/src/main/npm/libraries.txt");
        for (String line : Files.readAllLines(libraries)) {
            if (!line.startsWith("#")) {
                used.put(line.split(" ")[0], line.split(" ")[1]);
            }
        }
        return used;
    }

    @Test
    void tableHasTheVersionsOfTheClassPath() throws IOException {
        Map<String, String> documented = new TreeMap<>();
        String page = Files.readString(ROOT.resolve("docs/security.md"));
        for (MatchResult row : ROW.matcher(page).results().toList()) {
            LocalDate.parse(row.group(3));
            NAME.matcher(row.group(1))
                    .results()
                    .forEach(name -> documented.put(name.group(1), row.group(2)));
        }
        assertEquals(lines(used()), lines(documented), "change the table of docs/security.md");
    }

    private static String lines(Map<String, String> versions) {
        return versions.toString().replace(", ", "\n");
    }
}
