// SPDX-License-Identifier: Apache-2.0
package org.djlx.samples.serve;

import java.time.Duration;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import org.djlx.fusedops.llm.GeneratorStatistics;

/**
 * Counters and times of the server, written in <a
 * href="https://prometheus.io/docs/instrumenting/exposition_formats/">Prometheus's format</a>.
 */
final class ServerMetrics {

    private static final double[] BOUNDS = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100};

    /** A histogram of durations. */
    private static final class Histogram {

        private final LongAdder[] counts = new LongAdder[BOUNDS.length + 1];
        private final LongAdder nanos = new LongAdder();

        private Histogram() {
            for (int i = 0; i < counts.length; i++) {
                counts[i] = new LongAdder();
            }
        }

        private void add(Duration duration) {
            double seconds = duration.toNanos() / 1e9;
            int i = 0;
            while (i < BOUNDS.length && seconds > BOUNDS[i]) {
                i++;
            }
            counts[i].increment();
            nanos.add(duration.toNanos());
        }

        private void write(StringBuilder out, String name, String help) {
            describe(out, name, "histogram", help);
            long sum = 0;
            for (int i = 0; i < counts.length; i++) {
                sum += counts[i].sum();
                String bound = i < BOUNDS.length ? "" + BOUNDS[i] : "+Inf";
                out.append(name).append("_bucket{le=\"").append(bound).append("\"} ");
                out.append(sum).append('\n');
            }
            double seconds = nanos.sum() / 1e9;
            out.append(String.format(Locale.ROOT, "%s_sum %f%n", name, seconds));
            out.append(name).append("_count ").append(sum).append('\n');
        }
    }

    private final Map<String, LongAdder> replies = new ConcurrentSkipListMap<>();
    private final Histogram firstToken = new Histogram();
    private final Histogram answer = new Histogram();
    private final LongAdder disconnects = new LongAdder();
    private final AtomicInteger connections = new AtomicInteger();

    /**
     * Counts a reply.
     *
     * @param route the route, one of a fixed set
     * @param status its status
     */
    void replied(String route, int status) {
        String labels = String.format("path=\"%s\",code=\"%d\"", route, status);
        replies.computeIfAbsent(labels, key -> new LongAdder()).increment();
    }

    /** Adds the time to the first token of an answer. */
    void firstToken(Duration duration) {
        firstToken.add(duration);
    }

    /** Adds the time of a complete answer. */
    void answered(Duration duration) {
        answer.add(duration);
    }

    /** Counts a client that disconnected before its answer was complete. */
    void disconnected() {
        disconnects.increment();
    }

    /** Returns the number of open connections, which the caller updates. */
    AtomicInteger connections() {
        return connections;
    }

    private static void describe(StringBuilder out, String name, String type, String help) {
        out.append("# HELP ").append(name).append(' ').append(help).append('\n');
        out.append("# TYPE ").append(name).append(' ').append(type).append('\n');
    }

    private static void value(
            StringBuilder out, String name, String type, String help, long value) {
        describe(out, name, type, help);
        out.append(name).append(' ').append(value).append('\n');
    }

    /** Returns all metrics, with those of the generator. */
    String write(GeneratorStatistics generator) {
        StringBuilder out = new StringBuilder();
        describe(out, "djlx_http_requests_total", "counter", "Requests by path and status.");
        replies.forEach(
                (labels, count) ->
                        out.append("djlx_http_requests_total{")
                                .append(labels)
                                .append("} ")
                                .append(count.sum())
                                .append('\n'));
        firstToken.write(
                out, "djlx_first_token_seconds", "Time from a request to its first token.");
        answer.write(out, "djlx_answer_seconds", "Time from a request to the end of its answer.");
        value(out, "djlx_http_connections", "gauge", "Open connections.", connections.get());
        value(
                out,
                "djlx_disconnects_total",
                "counter",
                "Clients that went away before their answer was complete.",
                disconnects.sum());
        value(out, "djlx_running", "gauge", "Requests being generated.", generator.running());
        value(out, "djlx_queued", "gauge", "Requests that wait.", generator.queued());
        value(
                out,
                "djlx_cache_blocks_in_use",
                "gauge",
                "Blocks of the key-value cache in use.",
                generator.cacheBlocksInUse());
        value(
                out,
                "djlx_cache_blocks",
                "gauge",
                "Blocks of the key-value cache.",
                generator.cacheBlocks());
        value(
                out,
                "djlx_prefix_cache_queries_total",
                "counter",
                "Prompt tokens looked up in the prefix cache.",
                generator.prefixCacheQueries());
        value(
                out,
                "djlx_prefix_cache_hits_total",
                "counter",
                "Prompt tokens found in the prefix cache.",
                generator.prefixCacheHits());
        value(
                out,
                "djlx_preemptions_total",
                "counter",
                "Times that a running request lost its cache blocks to an older one.",
                generator.preemptions());
        value(
                out,
                "djlx_finished_total",
                "counter",
                "Generations that have come to their end.",
                generator.finished());
        value(
                out,
                "djlx_cancelled_total",
                "counter",
                "Generations that were cancelled.",
                generator.cancelled());
        value(out, "djlx_failed_total", "counter", "Generations that failed.", generator.failed());
        value(
                out,
                "djlx_prompt_tokens_total",
                "counter",
                "Tokens of prompts.",
                generator.promptTokens());
        value(
                out,
                "djlx_generated_tokens_total",
                "counter",
                "Tokens generated.",
                generator.generatedTokens());
        value(
                out,
                "djlx_rebuilds_total",
                "counter",
                "Times that the model was loaded again.",
                generator.rebuilds());
        return out.toString();
    }
}
