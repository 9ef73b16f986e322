// SPDX-License-Identifier: Apache-2.0
package org.djlx.bench;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Objects;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.ToDoubleFunction;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Measures text generation as seen by clients of the HTTP server. */
final class DecodeBench {

    private static final Duration PATIENCE = Duration.ofMinutes(10);

    /** Letters of a prompt; a random model's tokenizer makes about a token of each. */
    static final int PROMPT_LETTERS = 128;

    private final URI completions;
    private final int tokens;
    private final HttpClient http = HttpClient.newHttpClient();

    DecodeBench(int port, int tokens) {
        completions = URI.create("http://127.0.0.1:" + port + "/v1/completions");
        this.tokens = tokens;
    }

    /**
     * The results of concurrent clients. Each client sends its requests one after the other. Times
     * of an answer are medians; errors are of requests that failed or got too few tokens.
     *
     * @param engineMicros the CPU time of the generator's thread for each token: scheduling, text
     *     and hand-over; not meaningful with GPUs, for which this thread waits by spinning
     * @param firstTextMillis the median time to the first text of an answer; special tokens and
     *     parts of a character have no text
     */
    record Row(
            int clients,
            int requests,
            List<String> errors,
            double tokensPerSecond,
            double engineMicros,
            double serverMicros,
            double firstTextMillis,
            double answerMillis) {}

    /** The error of an answer, or null, and the milliseconds to its first text and to its end. */
    private record Answer(String error, double first, double last) {

        static Answer failed(String error) {
            return new Answer(error, 0, 0);
        }
    }

    Row run(int clients, int each) throws InterruptedException, ExecutionException {
        ExecutorService threads = Executors.newFixedThreadPool(clients);
        try {
            CountDownLatch go = new CountDownLatch(1);
            List<Future<List<Answer>>> futures = new ArrayList<>();
            for (int client = 0; client < clients; client++) {
                String prompt = prompt(client);
                Callable<List<Answer>> asks =
                        () -> {
                            go.await();
                            List<Answer> answers = new ArrayList<>();
                            for (int i = 0; i < each; i++) {
                                answers.add(ask(prompt));
                            }
                            return answers;
                        };
                futures.add(threads.submit(asks));
            }
            double engineMicros = cpuMicros("engine-(?!.*-rank-).*");
            double serverMicros = cpuMicros("serve-.*");
            long start = System.nanoTime();
            go.countDown();
            List<Answer> answers = new ArrayList<>();
            for (Future<List<Answer>> future : futures) {
                answers.addAll(future.get());
            }
            double seconds = (System.nanoTime() - start) / 1e9;
            engineMicros = cpuMicros("engine-(?!.*-rank-).*") - engineMicros;
            serverMicros = cpuMicros("serve-.*") - serverMicros;
            List<Answer> whole = answers.stream().filter(a -> a.error == null).toList();
            double perToken = 1.0 / tokens / Math.max(1, whole.size());
            return new Row(
                    clients,
                    answers.size(),
                    answers.stream().map(Answer::error).filter(Objects::nonNull).toList(),
                    whole.size() * tokens / seconds,
                    engineMicros * perToken,
                    serverMicros * perToken,
                    median(whole, Answer::first),
                    median(whole, Answer::last));
        } finally {
            threads.shutdownNow();
        }
    }

    /** Returns the CPU time of this JVM's threads whose names match a regular expression. */
    private static double cpuMicros(String names) {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        return Stream.of(threads.getThreadInfo(threads.getAllThreadIds()))
                .filter(thread -> thread != null && thread.getThreadName().matches(names))
                .mapToDouble(thread -> threads.getThreadCpuTime(thread.getThreadId()) / 1e3)
                .sum();
    }

    /** Returns random letters, different for each client. */
    private static String prompt(int client) {
        return new Random(client)
                .ints(PROMPT_LETTERS, 'a', 'z' + 1)
                .mapToObj(Character::toString)
                .collect(Collectors.joining());
    }

    private Answer ask(String prompt) throws InterruptedException {
        String json =
                """
                {"prompt": "%s", "max_tokens": %d, "temperature": 0, "ignore_eos": true,
                "stream": true, "stream_options": {"include_usage": true}}\
                """
                        .formatted(prompt, tokens);
        HttpRequest request =
                HttpRequest.newBuilder(completions)
                        .timeout(PATIENCE)
                        .header("Content-Type", "application/json")
                        .POST(BodyPublishers.ofString(json))
                        .build();
        long start = System.nanoTime();
        try {
            HttpResponse<Stream<String>> response = http.send(request, BodyHandlers.ofLines());
            try (Stream<String> lines = response.body()) {
                return response.statusCode() == 200
                        ? read(lines.iterator(), start)
                        : Answer.failed(
                                response.statusCode() + ": " + lines.collect(Collectors.joining()));
            }
        } catch (IOException | UncheckedIOException e) {
            return Answer.failed(e.toString());
        }
    }

    /**
     * Reads all server-sent events, so that the connection can be reused. The last event before
     * [DONE] has the token count.
     */
    private Answer read(Iterator<String> lines, long start) {
        double first = 0;
        String event = "";
        boolean done = false;
        while (lines.hasNext()) {
            String line = lines.next();
            if (line.equals("data: [DONE]")) {
                done = true;
            } else if (line.startsWith("data: ")) {
                first = event.isEmpty() ? millisSince(start) : first;
                event = line.substring("data: ".length());
            }
        }
        if (!done || event.isEmpty() || !hasAllTokens(event)) {
            return Answer.failed((done ? "not all tokens: " : "cut off after ") + event);
        }
        return new Answer(null, first, millisSince(start));
    }

    private boolean hasAllTokens(String event) {
        JsonObject usage = JsonParser.parseString(event).getAsJsonObject().getAsJsonObject("usage");
        return usage != null && usage.get("completion_tokens").getAsInt() == tokens;
    }

    private static double millisSince(long start) {
        return (System.nanoTime() - start) / 1e6;
    }

    private static double median(List<Answer> answers, ToDoubleFunction<Answer> value) {
        return Stats.median(answers.stream().mapToDouble(value).toArray());
    }
}
