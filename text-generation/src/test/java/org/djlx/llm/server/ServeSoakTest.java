// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.djlx.collectives.soak.Soak;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.GeneratorStatistics;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.llm.text.ToolFormat;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * 64 clients of the HTTP server at a time: chats, cancelled streams, tools, JSON by a schema and
 * bad requests, with a KV cache so small that sequences are preempted. Each greedy answer equals
 * the one computed alone, and nothing is left behind.
 */
@Tag("soak")
@Tag("clients") // so that ci/test.sh leaves it out
class ServeSoakTest extends CommandTest {

    private static final int CLIENTS = 64;
    private static final int CHATS = 48;
    private static final int MAX_LENGTH = 832;
    private static final int CACHE_BYTES = 570_000; // of about 900 tokens
    private static final long LEAST_GROWTH = 48 << 20; // bytes that caches of the JVM may take
    private static final int WARM_REQUESTS = 1000; // JVM and malloc grow until then

    /**
     * The least distance between the two most probable tokens. In float32 the batch changes the
     * last bits, so that a text ends where the choice is closer than that.
     */
    private static final double MARGIN = 1e-4;

    private static final String SCHEMA =
            "{'type':'object','properties':{'mood':{'enum':['GOOD','BAD']}},'required':['mood']}";
    private static final String ARGUMENTS = "\\s*\\{\\s*\"mood\"\\s*:\\s*\"(GOOD|BAD)\"\\s*}\\s*";
    private static final List<String> BAD =
            List.of(
                    "{'messages': []}",
                    "{'messages': [{'role': 'user', 'content': 'x'}], 'no_such': 1}",
                    "{'messages': [{'role': 'user', 'content': 'x'}], 'max_tokens': 100000}",
                    "{'messages': [{'role': 'user', 'content': 'x'}], 'temperature': 'hot'}",
                    "{'messages'");

    /** A chat, and its greedy answer. */
    private record Chat(JsonArray messages, int tokens, String answer) {}

    @TempDir private Path folder;
    private final ExecutorService workers = Executors.newCachedThreadPool();
    private final HttpClient client = HttpClient.newBuilder().executor(workers).build();
    private TextEngine generator;
    private GenerationServer server;

    @Test
    void clientsGetRightAnswers() throws Exception {
        Path model = folder.resolve("tiny");
        String length = String.valueOf(MAX_LENGTH);
        output(0, "serve-model", model.toString(), "--max-length", length);
        Soak.run("64 clients of a server", soak -> attack(soak, model));
    }

    private void attack(Soak soak, Path model) throws Exception {
        Random random = new Random(Soak.SEED);
        List<Chat> chats = new ArrayList<>();
        try (TextEngine alone = TextEngine.builder().setDirectory(model).build()) {
            while (chats.size() < CHATS) {
                chat(alone, api(alone, model), random).ifPresent(chats::add);
            }
        }
        Duration patience = Duration.ofMinutes(2);
        generator =
                TextEngine.builder()
                        .setDirectory(model)
                        .optRanks(2)
                        .optMaxRunning(48)
                        .optMaxQueued(54)
                        .optPrefillTokens(64)
                        .optCacheBytes(CACHE_BYTES)
                        .build();
        server =
                new GenerationServer(
                        api(generator, model),
                        generator,
                        new ServerOptions(
                                "127.0.0.1",
                                0,
                                "t0ken",
                                List.of(),
                                100_000,
                                10_000_000,
                                2 * CLIENTS,
                                patience,
                                patience,
                                Duration.ZERO));
        ExecutorService threads = Executors.newFixedThreadPool(CLIENTS);
        try {
            Usage before = null;
            long warm = System.nanoTime() + Duration.ofSeconds(Soak.SECONDS).toNanos() / 4;
            while (soak.nextRound()) {
                List<Future<Void>> clients = new ArrayList<>();
                long end = System.nanoTime() + Duration.ofSeconds(3).toNanos();
                for (int i = 0; i < CLIENTS; i++) {
                    Random own = new Random(random.nextLong());
                    Callable<Void> each =
                            () -> {
                                while (System.nanoTime() - end < 0) {
                                    request(soak, chats, own);
                                }
                                return null;
                            };
                    clients.add(threads.submit(each));
                }
                for (Future<Void> each : clients) {
                    await(soak, each);
                }
                GeneratorStatistics now = awaitIdle();
                soak.progress(
                        now.finished()
                                + " finished, "
                                + now.preemptions()
                                + " preemptions; "
                                + Usage.now());
                assertEquals(0, now.failed() + now.reloads());
                boolean isWarm = now.finished() > WARM_REQUESTS && System.nanoTime() - warm > 0;
                if (before == null || !isWarm) {
                    before = Usage.now().most(before);
                }
            }
            before.requireNoGrowth(Usage.now());
            GeneratorStatistics all = generator.statistics();
            soak.add("preemptions", all.preemptions());
            soak.add("prefix hits", all.prefixCacheHits());
            soak.add("cancelled by the generator", all.cancelled());
        } finally {
            threads.shutdownNow();
            workers.shutdownNow();
            server.close();
            generator.close();
        }
        soak.requireAll(List.of("chats", "streams", "cancels", "tools", "schemas", "bad requests"));
        soak.requireAll(List.of("preemptions", "prefix hits", "cancelled by the generator"));
    }

    /** Waits for a client. It makes progress while requests finish, however slow the machine is. */
    private void await(Soak soak, Future<Void> client) throws Exception {
        long finished = generator.statistics().finished();
        while (true) {
            try {
                client.get(10, TimeUnit.SECONDS);
                return;
            } catch (TimeoutException e) {
                long now = generator.statistics().finished();
                if (now > finished) {
                    soak.progress(now + " finished");
                }
                finished = now;
            }
        }
    }

    private static TextApi api(TextEngine generator, Path model) throws IOException {
        ToolFormat tools = ToolFormat.named("hermes");
        return new TextApi("tiny", generator, ChatTemplate.of(model), tools, null);
    }

    /** Waits until no request runs and no block of the KV cache is in use. */
    private GeneratorStatistics awaitIdle() throws InterruptedException {
        GeneratorStatistics now = generator.statistics();
        long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        while (now.running() + now.queued() + now.cacheBlocksInUse() > 0) {
            assertTrue(System.nanoTime() - end < 0, "left behind: " + now);
            Thread.sleep(10);
            now = generator.statistics();
        }
        return now;
    }

    /** Makes up a chat of one to three turns, which begins as others do. */
    private static Optional<Chat> chat(TextEngine alone, TextApi api, Random random)
            throws Exception {
        JsonArray messages = new JsonArray();
        int turns = 1 + 2 * random.nextInt(3);
        for (int i = 0; i < turns; i++) {
            Random words = i < turns - 1 ? new Random(random.nextInt(4) + 4L * i) : random;
            String text =
                    IntStream.range(0, 3 + words.nextInt(12))
                            .mapToObj(
                                    word ->
                                            List.of("GPU", "rank", "the", "ring")
                                                    .get(words.nextInt(4)))
                            .collect(Collectors.joining(" "));
            String role = i % 2 == 0 ? "user" : "assistant";
            JsonObject message = new JsonObject();
            message.addProperty("role", role);
            message.addProperty("content", text);
            messages.add(message);
        }
        JsonObject body = new JsonObject();
        body.add("messages", messages);
        byte[] json = body.toString().getBytes(StandardCharsets.UTF_8);
        int[] prompt = api.chat(json).requests().get(0).promptTokens().orElseThrow();
        GenerationRequest.Builder request =
                GenerationRequest.builder()
                        .setPromptTokens(prompt)
                        .optMaxTokens(
                                Math.min(60 + random.nextInt(120), MAX_LENGTH - prompt.length))
                        .optTopLogProbabilities(2);
        int tokens = 0;
        for (GeneratedPiece piece : alone.submit(request.build()).await(Duration.ofMinutes(1))) {
            var top = piece.topLogProbabilities();
            if (top.get(0).logProbability() - top.get(1).logProbability() < MARGIN) {
                break;
            }
            tokens++;
        }
        if (tokens < 5) {
            return Optional.empty();
        }
        // Once more with this length: bytes at its end that are no character show as one.
        String answer =
                alone
                        .submit(request.optMaxTokens(tokens).build())
                        .await(Duration.ofMinutes(1))
                        .stream()
                        .map(GeneratedPiece::text)
                        .collect(Collectors.joining());
        return Optional.of(new Chat(messages, tokens, answer));
    }

    private void request(Soak soak, List<Chat> chats, Random random) throws Exception {
        Chat chat = chats.get(random.nextInt(chats.size()));
        JsonObject body = new JsonObject();
        body.add("messages", chat.messages);
        body.addProperty("temperature", 0);
        body.addProperty("max_tokens", chat.tokens);
        int kind = random.nextInt(10);
        if (kind < 3) {
            JsonObject answer = answer(soak, body);
            if (answer != null) {
                soak.add("chats", 1);
                assertEquals(chat.answer, text(answer), body::toString);
            }
        } else if (kind < 6) {
            stream(soak, chat, body, false, random);
        } else if (kind == 6) {
            stream(soak, chat, body, true, random);
        } else if (kind == 7) {
            body.addProperty("temperature", 1);
            body.addProperty("max_tokens", 150);
            body.add(
                    "tools",
                    JsonParser.parseString(
                            "[{'type':'function','function':{'name':'feel','parameters':"
                                    + SCHEMA
                                    + "}}]"));
            body.addProperty("tool_choice", "required");
            JsonObject answer = answer(soak, body);
            if (answer != null && !reason(answer).equals("length")) {
                soak.add("tools", 1);
                answer.getAsJsonObject("message")
                        .getAsJsonArray("tool_calls")
                        .forEach(
                                call -> {
                                    JsonObject function =
                                            call.getAsJsonObject().getAsJsonObject("function");
                                    String arguments = function.get("arguments").getAsString();
                                    assertTrue(arguments.matches(ARGUMENTS), arguments);
                                });
            }
        } else if (kind == 8) {
            body.addProperty("temperature", 1);
            body.addProperty("max_tokens", 100);
            body.add(
                    "response_format",
                    JsonParser.parseString(
                            "{'type':'json_schema','json_schema':{'name':'m','schema':"
                                    + SCHEMA
                                    + "}}"));
            JsonObject answer = answer(soak, body);
            if (answer != null && reason(answer).equals("stop")) {
                soak.add("schemas", 1);
                assertTrue(text(answer).matches(ARGUMENTS), () -> text(answer));
            }
        } else {
            String bad = BAD.get(random.nextInt(BAD.size())).replace('\'', '"');
            HttpResponse<String> refused = client.send(post(bad, "t0ken"), BodyHandlers.ofString());
            assertEquals(400, refused.statusCode(), refused::body);
            refused = client.send(post(body.toString(), "wrong"), BodyHandlers.ofString());
            assertEquals(401, refused.statusCode(), refused::body);
            soak.add("bad requests", 2);
        }
    }

    private HttpRequest post(String body, String token) {
        URI uri = URI.create("http://127.0.0.1:" + server.port() + "/v1/chat/completions");
        return HttpRequest.newBuilder(uri)
                .timeout(Duration.ofMinutes(2)) // No answer by then is a hang.
                .header("Authorization", "Bearer " + token)
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofString(body))
                .build();
    }

    /** Returns the choice of an answer; null if the queue is full. */
    private JsonObject answer(Soak soak, JsonObject body) throws Exception {
        HttpResponse<String> reply =
                client.send(post(body.toString(), "t0ken"), BodyHandlers.ofString());
        if (isFull(soak, reply.statusCode())) {
            return null;
        }
        assertEquals(200, reply.statusCode(), reply::body);
        JsonObject json = JsonParser.parseString(reply.body()).getAsJsonObject();
        return json.getAsJsonArray("choices").get(0).getAsJsonObject();
    }

    private static boolean isFull(Soak soak, int status) throws InterruptedException {
        if (status == 429) {
            soak.add("refused because the queue was full", 1);
            Thread.sleep(200);
        }
        return status == 429;
    }

    private static String text(JsonObject choice) {
        return choice.getAsJsonObject("message").get("content").getAsString();
    }

    private static String reason(JsonObject choice) {
        return choice.get("finish_reason").getAsString();
    }

    /** Reads a stream to its end, or leaves early. */
    private void stream(Soak soak, Chat chat, JsonObject body, boolean leaves, Random random)
            throws Exception {
        body.addProperty("stream", true);
        HttpResponse<InputStream> reply =
                client.send(post(body.toString(), "t0ken"), BodyHandlers.ofInputStream());
        try (InputStream in = reply.body()) {
            if (isFull(soak, reply.statusCode())) {
                return;
            }
            assertEquals(200, reply.statusCode());
            if (leaves) {
                in.readNBytes(random.nextInt(1000));
                soak.add("cancels", 1);
                return;
            }
            String events = new String(in.readAllBytes(), StandardCharsets.UTF_8);
            assertTrue(events.endsWith("data: [DONE]\n\n"), events);
            String text =
                    events.lines()
                            .filter(line -> line.startsWith("data: {"))
                            .map(
                                    line ->
                                            JsonParser.parseString(line.substring(6))
                                                    .getAsJsonObject())
                            .map(event -> event.getAsJsonArray("choices").get(0).getAsJsonObject())
                            .map(choice -> choice.getAsJsonObject("delta").get("content"))
                            .map(content -> content == null ? "" : content.getAsString())
                            .collect(Collectors.joining());
            assertEquals(chat.answer, text, body::toString);
            soak.add("streams", 1);
        }
    }

    /**
     * What this process has.
     *
     * @param heap bytes of live objects
     * @param resident bytes of memory, native memory included
     */
    private record Usage(long heap, long resident, int threads, int descriptors) {

        static Usage now() throws IOException {
            System.gc();
            Runtime runtime = Runtime.getRuntime();
            long resident =
                    Files.readAllLines(Path.of("/proc/self/status")).stream()
                            .filter(line -> line.startsWith("VmRSS:"))
                            .mapToLong(line -> Long.parseLong(line.replaceAll("\\D", "")) << 10)
                            .sum();
            return new Usage(
                    runtime.totalMemory() - runtime.freeMemory(),
                    resident,
                    Thread.activeCount(),
                    new File("/proc/self/fd").list().length);
        }

        /**
         * Returns the most of both: the JVM gives memory back between rounds, and takes it again.
         */
        Usage most(Usage other) {
            return other == null
                    ? this
                    : new Usage(
                            Math.max(heap, other.heap),
                            Math.max(resident, other.resident),
                            Math.max(threads, other.threads),
                            Math.max(descriptors, other.descriptors));
        }

        void requireNoGrowth(Usage end) {
            String both = this + " to " + end;
            assertTrue(end.heap - heap < LEAST_GROWTH, both);
            assertTrue(end.resident - resident < Math.max(resident / 4, LEAST_GROWTH), both);
            assertTrue(end.threads <= threads + 5, both); // of the HTTP client
            assertTrue(end.descriptors <= descriptors + CLIENTS, both); // kept connections
        }

        @Override
        public String toString() {
            return String.format(
                    "heap %d MB, resident %d MB, %d threads, %d descriptors",
                    heap >> 20, resident >> 20, threads, descriptors);
        }
    }
}
