// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Which module and which package may import which: {@code packages.txt}. */
class PackagesTest {

    private static final Path ROOT = Path.of("..", "..");
    private static final String TABLE = "ci/bench/src/test/resources/org/djlx/bench/packages.txt";
    private static final Pattern HEADER = Pattern.compile("\\[(\\S+) (\\S+)](.*)");
    private static final Pattern NOT_CODE =
            Pattern.compile("/\\*.*?\\*/|//[^\n]*|\"(\\\\.|[^\"\\\\\n])*\"", Pattern.DOTALL);
    private static final Pattern NAME =
            Pattern.compile("\\b(org\\.djlx(?:\\.[a-z0-9]+)*)\\.[A-Z]\\w*");

    /**
     * The row of a package.
     *
     * @param own the packages of its module that it may import
     * @param upward those of them that are further up
     * @param others the packages of other modules that it may import; null for all of the module's
     */
    private record Row(String module, Set<String> own, Set<String> upward, Set<String> others) {}

    private static final Map<String, Set<String>> MODULES = new LinkedHashMap<>();
    private static final Map<String, Row> ROWS = new LinkedHashMap<>();

    /** The files of each package that import another: by importing, then by imported package. */
    private static final Map<String, Map<String, Set<String>>> IMPORTS = new TreeMap<>();

    private static final Map<String, String> MODULE_OF = new HashMap<>();

    @BeforeAll
    static void read() throws IOException {
        String module = null;
        String base = null;
        for (String line : Files.readAllLines(ROOT.resolve(TABLE))) {
            Matcher header = HEADER.matcher(line);
            if (header.matches()) {
                module = header.group(1);
                base = header.group(2);
                MODULES.put(module, words(header.group(3)));
            } else if (!line.isBlank() && !line.startsWith("#")) {
                addRow(module, base, line);
            }
        }
        for (String each : MODULES.keySet()) {
            readSources(each);
        }
    }

    private static void addRow(String module, String base, String line) {
        String[] row = line.split(":", 2);
        String[] parts = row[1].split("\\|");
        Set<String> own = new LinkedHashSet<>();
        Set<String> upward = new LinkedHashSet<>();
        for (String word : words(parts[0])) {
            String name = full(base, word.startsWith("^") ? word.substring(1) : word);
            own.add(name);
            if (word.startsWith("^")) {
                upward.add(name);
            } else {
                assertTrue(
                        ROWS.containsKey(name),
                        () -> TABLE + ": " + line + ": " + word + " stands further up: add no ^");
            }
        }
        Set<String> others = parts.length > 1 ? words(parts[1]) : null;
        ROWS.put(full(base, row[0].strip()), new Row(module, own, upward, others));
    }

    private static String full(String base, String name) {
        return name.equals(".") ? base : base + "." + name;
    }

    private static Set<String> words(String text) {
        return Stream.of(text.strip().split(" +"))
                .filter(word -> !word.isEmpty())
                .collect(Collectors.toCollection(LinkedHashSet::new));
    }

    private static void readSources(String module) throws IOException {
        for (String folder : List.of("src/main/java", "src/main/java22")) {
            Path sources = ROOT.resolve(module).resolve(folder);
            if (!Files.isDirectory(sources)) {
                continue;
            }
            try (Stream<Path> files = Files.walk(sources)) {
                for (Path file : files.filter(each -> each.toString().endsWith(".java")).toList()) {
                    String own = sources.relativize(file.getParent()).toString().replace('/', '.');
                    MODULE_OF.put(own, module);
                    for (String imported : imports(file)) {
                        IMPORTS.computeIfAbsent(own, key -> new TreeMap<>())
                                .computeIfAbsent(imported, key -> new TreeSet<>())
                                .add(file.getFileName().toString());
                    }
                }
            }
        }
    }

    /** Returns the packages of this project that a file names outside of comments and texts. */
    private static Set<String> imports(Path file) throws IOException {
        String code = NOT_CODE.matcher(Files.readString(file)).replaceAll(" ");
        Set<String> imports = new TreeSet<>();
        Matcher name = NAME.matcher(code);
        while (name.find()) {
            imports.add(name.group(1));
        }
        return imports;
    }

    @Test
    void theTableHasAllModulesAndPackages() throws IOException {
        Set<String> modules = new TreeSet<>(List.of("samples", "ci/bench"));
        Pattern published = Pattern.compile("(?m)^    <module>(.*)</module>$");
        Matcher module = published.matcher(Files.readString(ROOT.resolve("pom.xml")));
        while (module.find()) {
            if (Files.isDirectory(ROOT.resolve(module.group(1)).resolve("src/main"))) {
                modules.add(module.group(1));
            }
        }
        assertEquals(modules, new TreeSet<>(MODULES.keySet()));
        Map<String, String> packages = new TreeMap<>();
        ROWS.forEach((name, row) -> packages.put(name, row.module()));
        assertEquals(packages, new TreeMap<>(MODULE_OF));
    }

    @Test
    void packagesImportWhatTheTableAllows() {
        List<String> problems = new ArrayList<>();
        IMPORTS.forEach(
                (name, imports) -> {
                    Row row = ROWS.get(name);
                    imports.forEach(
                            (imported, files) -> {
                                if (row != null
                                        && !name.equals(imported)
                                        && !allows(row, imported)) {
                                    problems.add(name + " imports " + imported + " in " + files);
                                }
                            });
                });
        assertEquals(List.of(), problems, () -> "not allowed by " + TABLE);
    }

    private static boolean allows(Row row, String imported) {
        String module = MODULE_OF.get(imported);
        if (row.module().equals(module)) {
            return row.own().contains(imported);
        }
        return row.others() != null
                ? row.others().contains(imported)
                : MODULES.get(row.module()).contains(module) && !isInternal(imported);
    }

    private static boolean isInternal(String name) {
        return name.matches(".*\\.internal(\\..*)?");
    }

    /** A circle that has been broken stays broken. */
    @Test
    void refusesMarksOfCyclesThatAreGone() {
        List<String> unneeded = new ArrayList<>();
        ROWS.forEach(
                (name, row) -> {
                    for (String imported : row.upward()) {
                        if (!IMPORTS.getOrDefault(name, Map.of()).containsKey(imported)) {
                            unneeded.add(name + " no longer imports " + imported);
                        }
                    }
                });
        assertEquals(List.of(), unneeded, () -> "remove these from " + TABLE);
    }

    /** What a third party can write. */
    @Test
    void backendsNeedNothingInternal() throws IOException {
        assertTrue(MODULE_OF.containsKey("org.djlx.mpi"));
        Set<String> imported = new TreeSet<>(IMPORTS.get("org.djlx.mpi").keySet());
        imported.addAll(
                imports(
                        ROOT.resolve(
                                "fused-ops/src/test/java/com/example/backend/ThreadsBackend.java")));
        imported.removeIf(name -> !isInternal(name));
        assertEquals(Set.of(), imported);
    }
}
