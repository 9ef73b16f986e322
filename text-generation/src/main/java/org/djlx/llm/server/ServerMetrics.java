// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import org.djlx.llm.FinishReason;
import org.djlx.llm.Generation;
import org.djlx.llm.GeneratorStatistics;

/**
 * Counters and times of the server, written in <a
 * href="https://prometheus.io/docs/instrumenting/exposition_formats/">Prometheus's format</a>.
 * Metrics that vLLM has, too, have vLLM's names and meanings; the other names begin with {@code
 * djlx_}.
 */
final class ServerMetrics {

    private static final double[] BOUNDS = {
        0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300
    };

    static final class Histogram {

        private final LongAdder[] counts = new LongAdder[BOUNDS.length + 1];
        private final LongAdder nanos = new LongAdder();

        private Histogram() {
            for (int i = 0; i < counts.length; i++) {
                counts[i] = new LongAdder();
            }
        }

        void add(Duration duration) {
            double seconds = duration.toNanos() / 1e9;
            int i = 0;
            while (i < BOUNDS.length && seconds > BOUNDS[i]) {
                i++;
            }
            counts[i].increment();
            nanos.add(duration.toNanos());
        }
    }

    private final Map<String, LongAdder> replies = new ConcurrentSkipListMap<>();
    private final Map<String, LongAdder> ends = new ConcurrentSkipListMap<>();
    final Histogram firstToken = new Histogram(); // the time to the first token of an answer
    final Histogram token = new Histogram(); // the mean time of its tokens after the first one
    final Histogram answer = new Histogram(); // the time of a complete answer
    final LongAdder disconnects = new LongAdder(); // before the answer was complete
    final AtomicInteger connections = new AtomicInteger(); // that are open

    /** {@code route} is one of a fixed set. */
    void replied(String route, int status) {
        add(replies, String.format("path=\"%s\",code=\"%d\"", route, status));
    }

    /** Counts a generation that has ended, or is being cancelled. */
    void ended(Generation generation) {
        FinishReason reason = generation.finishReason().orElse(FinishReason.CANCELLED);
        String name =
                switch (reason) {
                    case LENGTH -> "length";
                    case CANCELLED -> "abort";
                    case ERROR -> "error";
                    default -> "stop";
                };
        add(ends, "finished_reason=\"" + name + '"');
    }

    private static void add(Map<String, LongAdder> counts, String labels) {
        counts.computeIfAbsent(labels, key -> new LongAdder()).increment();
    }

    /** Returns all metrics of a server without a generator. */
    String write(String model) {
        return connections(new Text(model)).out.toString();
    }

    private Text connections(Text text) {
        text.counters("djlx_http_requests_total", "Requests by path and status.", replies);
        text.value("djlx_http_connections", "Open connections.", connections.get());
        text.value(
                "djlx_disconnects_total",
                "Clients that went away before their answer was complete.",
                disconnects.sum());
        return text;
    }

    String write(String model, GeneratorStatistics generator) {
        Text text = connections(new Text(model));
        text.value(
                "djlx_reloads_total",
                "Times that the model was loaded again.",
                generator.reloads());
        text.histogram(
                "vllm:time_to_first_token_seconds",
                "Time from a request to its first token.",
                firstToken);
        text.histogram(
                "vllm:request_time_per_output_token_seconds",
                "Mean time of the tokens of a request after its first one.",
                token);
        text.histogram(
                "vllm:e2e_request_latency_seconds",
                "Time from a request to the end of its answer.",
                answer);
        text.counters(
                "vllm:request_success_total", "Generations by the reason of their end.", ends);
        text.value("vllm:num_requests_running", "Requests that run.", generator.running());
        text.value("vllm:num_requests_waiting", "Requests that wait.", generator.queued());
        text.value(
                "vllm:kv_cache_usage_perc",
                "Part of the blocks of the KV cache that is in use, from 0 to 1.",
                (double) generator.cacheBlocksInUse() / generator.cacheBlocks());
        text.value(
                "vllm:prefix_cache_queries_total",
                "Prompt tokens looked up in the prefix cache.",
                generator.prefixCacheQueries());
        text.value(
                "vllm:prefix_cache_hits_total",
                "Prompt tokens found in the prefix cache.",
                generator.prefixCacheHits());
        text.value(
                "vllm:num_preemptions_total",
                "Times that a running request lost its cache blocks to an older one.",
                generator.preemptions());
        text.value("vllm:prompt_tokens_total", "Tokens of prompts.", generator.promptTokens());
        text.value(
                "vllm:generation_tokens_total", "Tokens generated.", generator.generatedTokens());
        return text.out.toString();
    }

    /** Metrics in Prometheus's format. The type of a value is in its name. */
    private static final class Text {

        private final StringBuilder out = new StringBuilder();
        private final String model; // a label

        Text(String model) {
            String escaped = model.replace("\\", "\\\\").replace("\"", "\\\"");
            this.model = "model_name=\"" + escaped.replace("\n", "\\n") + '"';
        }

        private void describe(String name, String type, String help) {
            out.append("# HELP ").append(name).append(' ').append(help).append('\n');
            out.append("# TYPE ").append(name).append(' ').append(type).append('\n');
        }

        private void sample(String name, String labels, Number value) {
            out.append(name).append('{').append(model).append(labels.isEmpty() ? "" : ",");
            out.append(labels).append("} ").append(value).append('\n');
        }

        void value(String name, String help, Number value) {
            describe(name, name.endsWith("_total") ? "counter" : "gauge", help);
            sample(name, "", value);
        }

        void counters(String name, String help, Map<String, LongAdder> counts) {
            describe(name, "counter", help);
            counts.forEach((labels, count) -> sample(name, labels, count));
        }

        void histogram(String name, String help, Histogram histogram) {
            describe(name, "histogram", help);
            long sum = 0;
            for (int i = 0; i < histogram.counts.length; i++) {
                sum += histogram.counts[i].sum();
                String bound = i < BOUNDS.length ? "" + BOUNDS[i] : "+Inf";
                sample(name + "_bucket", "le=\"" + bound + '"', sum);
            }
            sample(name + "_sum", "", histogram.nanos.sum() / 1e9);
            sample(name + "_count", "", sum);
        }
    }
}
