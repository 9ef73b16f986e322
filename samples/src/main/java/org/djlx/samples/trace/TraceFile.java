/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.trace;

import com.google.gson.GsonBuilder;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/**
 * Writes spans in the trace event format, which Perfetto (ui.perfetto.dev) and Chrome
 * (chrome://tracing) show: a rank is a process, a stream a thread.
 */
final class TraceFile {

    private TraceFile() {}

    /**
     * Writes a file.
     *
     * @param title the title of the trace
     * @param ranks the spans of each rank; all ranks share a clock
     */
    static void write(Path file, String title, List<List<Span>> ranks) throws IOException {
        double first =
                ranks.stream().flatMap(List::stream).mapToDouble(Span::start).min().orElse(0);
        List<Map<String, Object>> events = new ArrayList<>();
        for (int rank = 0; rank < ranks.size(); rank++) {
            events.add(
                    Map.of(
                            "ph",
                            "M",
                            "name",
                            "process_name",
                            "pid",
                            rank,
                            "args",
                            Map.of("name", "rank " + rank)));
            for (Span.Stream stream : Span.Stream.values()) {
                events.add(
                        Map.of(
                                "ph",
                                "M",
                                "name",
                                "thread_name",
                                "pid",
                                rank,
                                "tid",
                                stream.ordinal(),
                                "args",
                                Map.of("name", stream.title())));
            }
            for (Span span : ranks.get(rank)) {
                events.add(
                        Map.of(
                                "ph",
                                "X",
                                "name",
                                span.name(),
                                "pid",
                                rank,
                                "tid",
                                span.stream().ordinal(),
                                "ts",
                                span.start() - first,
                                "dur",
                                span.end() - span.start()));
            }
        }
        String json =
                new GsonBuilder()
                        .setPrettyPrinting()
                        .create()
                        .toJson(Map.of("traceEvents", events, "otherData", Map.of("title", title)));
        Files.writeString(file, json + "\n");
    }
}
