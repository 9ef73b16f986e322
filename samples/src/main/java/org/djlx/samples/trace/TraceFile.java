// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.trace;

import com.google.gson.GsonBuilder;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/**
 * Writes spans in the trace event format, which Perfetto (ui.perfetto.dev) and Chrome
 * (chrome://tracing) show: a rank is a process, a stream a thread.
 */
final class TraceFile {

    private TraceFile() {}

    /**
     * Writes a file.
     *
     * @param ranks the spans of each rank; all ranks share a clock
     */
    static void write(Path file, String title, List<List<Span>> ranks) throws IOException {
        double first =
                ranks.stream().flatMap(List::stream).mapToDouble(Span::start).min().orElse(0);
        List<Map<String, Object>> events = new ArrayList<>();
        for (int rank = 0; rank < ranks.size(); rank++) {
            events.add(name("process_name", rank, 0, "rank " + rank));
            for (Span.Stream stream : Span.Stream.values()) {
                events.add(name("thread_name", rank, stream.ordinal(), stream.title()));
            }
            for (Span span : ranks.get(rank)) {
                Map<String, Object> event = event("X", span.name(), rank, span.stream().ordinal());
                event.put("ts", span.start() - first);
                event.put("dur", span.end() - span.start());
                events.add(event);
            }
        }
        String json =
                new GsonBuilder()
                        .setPrettyPrinting()
                        .create()
                        .toJson(Map.of("traceEvents", events, "otherData", Map.of("title", title)));
        Files.writeString(file, json + "\n");
    }

    /** Names a process or a thread. */
    private static Map<String, Object> name(String kind, int rank, int stream, String title) {
        Map<String, Object> event = event("M", kind, rank, stream);
        event.put("args", Map.of("name", title));
        return event;
    }

    private static Map<String, Object> event(String phase, String name, int rank, int stream) {
        return new TreeMap<>(Map.of("ph", phase, "name", name, "pid", rank, "tid", stream));
    }
}
