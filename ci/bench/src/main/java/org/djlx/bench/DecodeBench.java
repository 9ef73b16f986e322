/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.bench;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.UncheckedIOException;
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
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.function.ToDoubleFunction;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Times of text generation, as clients of the HTTP server see them. */
final class DecodeBench {

    private static final Duration PATIENCE = Duration.ofMinutes(10);

    private final URI completions;
    private final int tokens;
    private final HttpClient http = HttpClient.newHttpClient();

    /**
     * Prepares for a server.
     *
     * @param port where it listens, on this host
     * @param tokens how many each answer has
     */
    DecodeBench(int port, int tokens) {
        completions = URI.create("http://127.0.0.1:" + port + "/v1/completions");
        this.tokens = tokens;
    }

    /**
     * What clients have seen that asked at the same time, one request after the other each.
     *
     * @param clients how many there were
     * @param requests how many requests there were, of all clients
     * @param errors what was wrong with those that failed or had fewer tokens than asked for
     * @param tokensPerSecond the tokens of all answers, by the time that all took together
     * @param firstTextMillis the median time until the first text of an answer was there; tokens
     *     before it may have none, as special ones and parts of a character
     * @param answerMillis the median time until all of it was
     */
    record Row(
            int clients,
            int requests,
            List<String> errors,
            double tokensPerSecond,
            double firstTextMillis,
            double answerMillis) {}

    /**
     * An answer.
     *
     * @param error what is wrong with it; null if nothing is
     * @param first when its first text was there, in milliseconds from the request on
     * @param last when all of it was
     */
    private record Answer(String error, double first, double last) {

        static Answer failed(String error) {
            return new Answer(error, 0, 0);
        }
    }

    /**
     * Has clients ask.
     *
     * @param clients how many
     * @param each how many requests each of them sends
     * @return what they have seen
     */
    Row run(int clients, int each) throws InterruptedException, ExecutionException {
        ExecutorService threads = Executors.newFixedThreadPool(clients);
        try {
            CountDownLatch go = new CountDownLatch(1);
            List<Future<List<Answer>>> futures = new ArrayList<>();
            for (int client = 0; client < clients; client++) {
                String prompt = "Client " + client + " of " + clients + " asks for a story.";
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
            long start = System.nanoTime();
            go.countDown();
            List<Answer> answers = new ArrayList<>();
            for (Future<List<Answer>> future : futures) {
                answers.addAll(future.get());
            }
            double seconds = (System.nanoTime() - start) / 1e9;
            List<Answer> whole = answers.stream().filter(a -> a.error == null).toList();
            return new Row(
                    clients,
                    answers.size(),
                    answers.stream().map(Answer::error).filter(Objects::nonNull).toList(),
                    whole.size() * tokens / seconds,
                    median(whole, Answer::first),
                    median(whole, Answer::last));
        } finally {
            threads.shutdownNow();
        }
    }

    private Answer ask(String prompt) throws InterruptedException {
        JsonObject json = new JsonObject();
        json.addProperty("prompt", prompt);
        json.addProperty("max_tokens", tokens);
        json.addProperty("temperature", 0);
        json.addProperty("ignore_eos", true);
        json.addProperty("stream", true);
        JsonObject options = new JsonObject();
        options.addProperty("include_usage", true);
        json.add("stream_options", options);
        HttpRequest request =
                HttpRequest.newBuilder(completions)
                        .timeout(PATIENCE)
                        .header("Content-Type", "application/json")
                        .POST(BodyPublishers.ofString(json.toString()))
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
     * Reads server-sent events. The one before the last says how many tokens there were. It reads
     * to the end, as the connection is closed otherwise, which the next request may come across.
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

    /** Returns the median of what there is of each answer; 0 if there are none. */
    private static double median(List<Answer> answers, ToDoubleFunction<Answer> value) {
        return Stats.median(answers.stream().mapToDouble(value).toArray());
    }
}
