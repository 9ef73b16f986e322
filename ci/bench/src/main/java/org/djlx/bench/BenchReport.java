// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.ToNumberPolicy;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;

/**
 * A report of a benchmark as JSON: benchmark, date, commit, machine, versions, then the results.
 * All benchmarks share this form.
 */
final class BenchReport {

    /** Writes reports, also results that are NaN; reads numbers as they are written. */
    static final Gson GSON =
            new GsonBuilder()
                    .setPrettyPrinting()
                    .serializeSpecialFloatingPointValues()
                    .setObjectToNumberStrategy(ToNumberPolicy.LAZILY_PARSED_NUMBER)
                    .create();

    private final Map<String, Object> values = new LinkedHashMap<>();

    /**
     * {@code commit} is null if it is not known; the report adds the versions of Java and the
     * operating system.
     */
    BenchReport(String benchmark, String commit, Map<String, String> versions) throws IOException {
        put("benchmark", benchmark);
        put("date", Instant.now().truncatedTo(ChronoUnit.SECONDS).toString());
        put("commit", commit == null || commit.isBlank() ? "unknown" : commit);
        put("machine", cpuModel());
        put("cores", Runtime.getRuntime().availableProcessors());
        Map<String, String> all = new LinkedHashMap<>();
        all.put("java", System.getProperty("java.vm.version"));
        all.put("os", System.getProperty("os.name") + " " + System.getProperty("os.version"));
        all.putAll(versions);
        put("versions", all);
        put(
                "jvmOptions",
                ManagementFactory.getRuntimeMXBean().getInputArguments().stream()
                        .filter(option -> option.startsWith("-XX:"))
                        .toList());
    }

    void put(String name, Object value) {
        values.put(name, value);
    }

    void store(Path json) {
        Path file = json.toAbsolutePath();
        try {
            Files.createDirectories(file.getParent());
            Files.writeString(file, GSON.toJson(values) + "\n");
        } catch (IOException e) {
            throw new UncheckedIOException("cannot write the report " + file + ": " + e, e);
        }
    }

    /** Returns the tables of what was put so far. */
    String printed() {
        return new ResultsSection("", GSON.toJsonTree(values).getAsJsonObject()).printed();
    }

    private static String cpuModel() throws IOException {
        try (var lines = Files.lines(Path.of("/proc/cpuinfo"))) {
            Optional<String> model =
                    lines.filter(line -> line.startsWith("model name")).findFirst();
            return model.map(line -> line.substring(line.indexOf(':') + 1).strip())
                    .orElse(System.getProperty("os.arch"));
        }
    }
}
