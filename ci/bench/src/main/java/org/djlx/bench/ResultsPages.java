// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.nativeops.host.Required;

/**
 * The generated sections of README.md and docs. A section ends at {@code <!-- end -->} and begins
 * with one of:
 *
 * <ul>
 *   <li>{@code <!-- results FILE -->}: the tables of that file of ci/results; docs/images has its
 *       chart
 *   <li>{@code <!-- results highlights -->}: a few rows of several files
 *   <li>{@code <!-- samples/run.sh COMMAND -->}: the output of that command
 * </ul>
 */
final class ResultsPages {

    private static final Pattern SECTION =
            Pattern.compile(
                    "(<!-- (results|samples/run\\.sh) (.*?) -->\n).*?(<!-- end -->)",
                    Pattern.DOTALL);
    private static final String HIGHLIGHTS = "highlights";

    /** A file of GPUs is marked as older if it was measured before this file, at another commit. */
    private static final String LATEST = "gpu-bench.json";

    /** The file of the README's chart, and the sizes that it shows. */
    private static final String README_CHART = "gpu-bench-4.json";

    private static final List<String> README_SIZES =
            List.of(
                    "512, 8192, 8192",
                    "2048, 8192, 8192",
                    "8192, 8192, 8192",
                    "8192, 28672, 8192",
                    "64 KiB",
                    "1 MiB",
                    "16 MiB");

    private static final Map<String, String> OUTPUTS = new ConcurrentHashMap<>(); // by command

    private final Path root;
    private final Map<String, ResultsSection> sections = new TreeMap<>();
    private final Set<String> used = new TreeSet<>();

    private ResultsPages(Path root) {
        this.root = root;
    }

    /**
     * Generates all pages and charts; the keys are paths relative to the root of the checkout.
     * Throws if a page names a file that does not exist, or if no page names a file of ci/results.
     */
    static Map<Path, String> render(Path root) throws IOException {
        return new ResultsPages(root).render();
    }

    private Map<Path, String> render() throws IOException {
        Map<Path, String> files = new LinkedHashMap<>();
        Path results = root.resolve("ci/results");
        for (Path file : list(results, ".json")) {
            String name = file.getFileName().toString();
            sections.put(name, new ResultsSection(name, report(file)));
        }
        sections.values().forEach(section -> section.compareAge(sections.get(LATEST)));
        List<Path> pages = new ArrayList<>(list(root.resolve("docs"), ".md"));
        pages.add(root.resolve("README.md"));
        for (Path page : pages) {
            files.put(root.relativize(page), fill(page));
        }
        Set<String> missing = new TreeSet<>(sections.keySet());
        missing.removeAll(used);
        Required.check(
                missing.isEmpty(),
                "No page shows %s: add the lines <!-- results FILE --> and <!-- end -->"
                        + " to docs/performance.md",
                String.join(", ", missing));
        Path images = Path.of("docs/images");
        sections.forEach(
                (name, section) -> {
                    String chart = section.chart();
                    if (!chart.isEmpty()) {
                        files.put(images.resolve(name.replace(".json", ".svg")), chart);
                    }
                });
        files.put(images.resolve("speed-up.svg"), sections.get(README_CHART).chart(README_SIZES));
        return files;
    }

    private static List<Path> list(Path folder, String suffix) throws IOException {
        try (var files = Files.list(folder)) {
            return files.filter(file -> file.toString().endsWith(suffix)).sorted().toList();
        }
    }

    private static JsonObject report(Path file) throws IOException {
        try {
            return JsonParser.parseString(Files.readString(file)).getAsJsonObject();
        } catch (RuntimeException e) {
            throw new IllegalArgumentException(file + " is not a report of a benchmark", e);
        }
    }

    private String fill(Path page) throws IOException {
        return SECTION.matcher(Files.readString(page))
                .replaceAll(
                        match -> {
                            String text = section(match.group(2), match.group(3));
                            return Matcher.quoteReplacement(match.group(1) + text + match.group(4));
                        });
    }

    private String section(String kind, String name) {
        if (!kind.equals("results")) {
            return output(name);
        }
        if (name.equals(HIGHLIGHTS)) {
            return ResultsSection.highlights(sections);
        }
        used.add(name);
        Required.check(sections.containsKey(name), "ci/results/%s does not exist", name);
        return sections.get(name).markdown();
    }

    /** Returns the output of a command of samples/run.sh: Markdown as it is, other text as code. */
    private static String output(String command) {
        String text = OUTPUTS.computeIfAbsent(command, ResultsPages::run).strip() + "\n";
        return command.contains("--markdown") ? text : "```\n" + text + "```\n";
    }

    private static String run(String command) {
        Path home = Path.of(System.getProperty("djlx.home", "../.."));
        List<String> words = new ArrayList<>(List.of("bash", "samples/run.sh"));
        words.addAll(List.of(command.split(" ")));
        try {
            Process process =
                    new ProcessBuilder(words)
                            .directory(home.toFile())
                            .redirectError(ProcessBuilder.Redirect.INHERIT)
                            .start();
            String text =
                    new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            if (process.waitFor() == 0) {
                return text;
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        throw new IllegalArgumentException("samples/run.sh " + command + " failed");
    }
}
