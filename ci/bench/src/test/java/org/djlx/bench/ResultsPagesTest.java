// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.file.FileVisitResult;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.SimpleFileVisitor;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import picocli.CommandLine;

/** The pages hold the figures of ci/results, and no others. */
@Timeout(120)
class ResultsPagesTest {

    private static final Path ROOT = Path.of("..", "..");
    private static final String COMMAND = "ci/bench/run.sh pages";

    @TempDir private Path dir;

    @Test
    void pagesAreUpToDate() throws Exception {
        for (Map.Entry<Path, String> page : ResultsPages.render(ROOT).entrySet()) {
            Path file = ROOT.resolve(page.getKey());
            assertTrue(Files.exists(file), () -> file + " is missing; run " + COMMAND);
            assertEquals(page.getValue(), Files.readString(file), "run " + COMMAND);
        }
    }

    /** Charts of deleted results must be deleted too. */
    @Test
    void everyChartIsDrawnFromResults() throws Exception {
        Set<String> drawn =
                ResultsPages.render(ROOT).keySet().stream()
                        .map(file -> file.getFileName().toString())
                        .filter(name -> name.endsWith(".svg"))
                        .collect(Collectors.toCollection(TreeSet::new));
        try (var files = Files.list(ROOT.resolve("docs/images"))) {
            assertEquals(
                    drawn,
                    files.map(file -> file.getFileName().toString())
                            .collect(Collectors.toCollection(TreeSet::new)));
        }
    }

    @Test
    void writesOnlyChangedPages() throws Exception {
        copy();
        assertEquals("", run());
        Path readme = dir.resolve("README.md");
        String text = Files.readString(readme);
        Files.writeString(readme, text.replace("| all-reduce, 64 KiB", "| other"));
        assertEquals(readme + "\n", run());
        assertEquals(text, Files.readString(readme));
    }

    /** On a host without PyTorch, decode.json has no times of it. */
    @Test
    void highlightsNeedNoPyTorch() throws Exception {
        copy();
        Path file = dir.resolve("ci/results/decode.json");
        JsonObject report = JsonParser.parseString(Files.readString(file)).getAsJsonObject();
        report.getAsJsonArray("steps")
                .forEach(step -> step.getAsJsonObject().add("torchMicros", new JsonObject()));
        Files.writeString(file, report.toString());
        run();
        assertTrue(
                Files.readAllLines(dir.resolve("README.md")).stream()
                        .anyMatch(
                                line ->
                                        line.matches(
                                                "\\| decode step, .* [\\d.]+ ms \\| \\| \\|")));
    }

    @Test
    void namesACommitWithUncommittedChangesDirty() throws Exception {
        copy();
        Path report = dir.resolve("ci/results/cpu.json");
        Files.writeString(
                report,
                Files.readString(report)
                        .replaceFirst(
                                "\"commit\": \"[^\"]*\"", "\"commit\": \"0123456789ab-dirty\""));
        String page = ResultsPages.render(dir).get(Path.of("docs/performance.md"));
        assertTrue(page.contains(" · commit 0123456-dirty · "), page);
    }

    @ParameterizedTest
    @CsvSource({
        "gpus, one, 2026-11-28, true",
        "gpus, two, 2026-11-28, false",
        "gpus, one, 2026-11-30, false",
        "cores, one, 2026-11-28, false"
    })
    void onlyGpuReportsOfAnotherCommitAndAnEarlierDateAreOlder(
            String has, String commit, String date, boolean older) {
        JsonObject report = new JsonObject();
        report.addProperty("benchmark", "tests");
        report.addProperty("machine", "CPU");
        report.addProperty(has, 2);
        report.addProperty("commit", commit);
        report.addProperty("date", date);
        report.add("versions", new JsonObject());
        JsonObject latest = new JsonObject();
        latest.addProperty("commit", "two");
        latest.addProperty("date", "2026-11-29");
        ResultsSection section = new ResultsSection("a.json", report);
        section.compareAge(new ResultsSection("gpu-bench.json", latest));
        String page = section.markdown();
        assertEquals(older, page.contains(" · **older"), page);
    }

    @Test
    void showsTheCompiledPeerAndHowWeightsAreStored() throws Exception {
        String json = Files.readString(ROOT.resolve("ci/results/decode.json"));
        JsonObject report = JsonParser.parseString(json).getAsJsonObject();
        report.addProperty("quantization", "FP8");
        report.getAsJsonObject("config").addProperty("kvCacheDtype", "FP8");
        JsonObject step = report.getAsJsonArray("steps").get(0).getAsJsonObject();
        step.getAsJsonObject("torchMicros").addProperty("compiled", 4321.0);
        String page = new ResultsSection("decode.json", report).markdown();
        assertTrue(page.contains("bfloat16, weights in fp8, keys and values in fp8."), page);
        assertTrue(page.contains("| torch.compile, CUDA graph, µs |"), page);
        assertTrue(page.contains(" | 4,321 |"), page);
        report.addProperty("torch", "it has ended");
        page = new ResultsSection("decode.json", report).markdown();
        assertFalse(page.contains("it has ended"), page);
    }

    @Test
    void refusesAFileThatNoPageShows() throws Exception {
        copy();
        Path more = dir.resolve("ci/results/more.json");
        Files.writeString(more, "{\"benchmark\": \"tests\"}");
        IllegalArgumentException e =
                assertThrows(IllegalArgumentException.class, () -> ResultsPages.render(dir));
        assertTrue(e.getMessage().startsWith("No page shows more.json"), e::getMessage);
        Files.writeString(more, "[]");
        e = assertThrows(IllegalArgumentException.class, () -> ResultsPages.render(dir));
        assertTrue(e.getMessage().contains("more.json is not a report"), e::getMessage);
    }

    private String run() {
        StringWriter out = new StringWriter();
        CommandLine root = Main.commandLine().setOut(new PrintWriter(out, true));
        assertEquals(0, root.execute("pages", "--root", dir.toString()));
        return out.toString();
    }

    private void copy() throws Exception {
        Files.copy(ROOT.resolve("README.md"), dir.resolve("README.md"));
        for (String folder : Set.of("docs", "ci/results")) {
            Path from = ROOT.resolve(folder);
            Files.walkFileTree(
                    from,
                    new SimpleFileVisitor<>() {
                        @Override
                        public FileVisitResult visitFile(Path file, BasicFileAttributes attributes)
                                throws java.io.IOException {
                            Path to = dir.resolve(folder).resolve(from.relativize(file));
                            Files.createDirectories(to.getParent());
                            Files.copy(file, to);
                            return FileVisitResult.CONTINUE;
                        }
                    });
        }
    }
}
