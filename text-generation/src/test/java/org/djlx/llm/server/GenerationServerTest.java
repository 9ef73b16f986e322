// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.apache.logging.log4j.LogManager;
import org.apache.logging.log4j.core.LogEvent;
import org.apache.logging.log4j.core.Logger;
import org.apache.logging.log4j.core.appender.AbstractAppender;
import org.apache.logging.log4j.core.config.Property;
import org.djlx.llm.text.ChatTemplate;
import org.djlx.nativeops.TestJson;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(60)
class GenerationServerTest {

    private static final Duration LONG = Duration.ofSeconds(50);
    private static final Duration SHORT = Duration.ofMillis(300);
    private static final int MAX_BODY = 2000;
    private static final int MAX_BUFFERED = 5000;

    private final FakeGenerator generator = new FakeGenerator();
    private final HttpClient client = HttpClient.newHttpClient();
    private GenerationServer server;

    @BeforeEach
    void start() throws IOException {
        start(null, 200, LONG, LONG);
    }

    private void start(String token, int connections, Duration request, Duration answer)
            throws IOException {
        if (server != null) {
            server.close();
        }
        server = server(token, connections, request, answer, Duration.ofSeconds(5));
    }

    private GenerationServer server(
            String token, int connections, Duration request, Duration answer, Duration shutdown)
            throws IOException {
        return new GenerationServer(
                new TextApi("tiny", generator, ChatTemplate.PLAIN),
                generator,
                new ServerOptions(
                        "127.0.0.1",
                        0,
                        token,
                        List.of(),
                        MAX_BODY,
                        MAX_BUFFERED,
                        connections,
                        request,
                        answer,
                        shutdown));
    }

    @Test
    void saysSoWhenMemoryRunsOut() throws Exception {
        for (int i = 0; i < 3; i++) { // More than there are threads that read requests.
            HttpResponse<String> reply = send(post("/v1/completions", "{'prompt': 'HUGE'}"));
            assertEquals(500, reply.statusCode());
            assertEquals(Answer.FAILED, error(reply));
        }
        assertEquals(200, send(post("/v1/completions", "{'prompt': 'abc'}")).statusCode());
    }

    /** Long prompts may take seconds to tokenize. */
    @Test
    void longRequestsDoNotDelayShortOnes() throws Exception {
        server.close();
        server =
                new GenerationServer(
                        new TextApi("tiny", generator, ChatTemplate.PLAIN),
                        generator,
                        new ServerOptions(
                                "127.0.0.1",
                                0,
                                null,
                                List.of(),
                                1 << 20,
                                1 << 24,
                                200,
                                LONG,
                                LONG,
                                LONG));
        String prompt = "BLOCK".repeat(10_000);
        List<CompletableFuture<HttpResponse<String>>> replies = new ArrayList<>();
        for (int i = 0; i < 20; i++) { // More than there are threads.
            HttpRequest request = post("/tokenize", "{'prompt': '" + prompt + "'}");
            replies.add(client.sendAsync(request, BodyHandlers.ofString()));
        }
        generator.awaitBlocked(2);
        assertEquals(200, send(post("/v1/completions", "{'prompt': 'abc'}")).statusCode());
        generator.unblock();
        for (CompletableFuture<HttpResponse<String>> reply : replies) {
            assertEquals(200, reply.get().statusCode());
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {0, -1})
    void refusesTimeoutsThatLeaveNoTime(int seconds) {
        Duration none = Duration.ofSeconds(seconds);
        for (boolean request : new boolean[] {true, false}) {
            IllegalArgumentException e =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> start(null, 1, request ? none : LONG, request ? LONG : none));
            assertTrue(e.getMessage().contains("not " + seconds), e.getMessage());
        }
    }

    @AfterEach
    void stop() {
        server.close();
        generator.close();
    }

    private HttpRequest.Builder request(String path) {
        return HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + server.port() + path));
    }

    private HttpRequest post(String path, String json) {
        return request(path)
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofString(json.replace('\'', '"')))
                .build();
    }

    private HttpResponse<String> send(HttpRequest request)
            throws IOException, InterruptedException {
        return client.send(request, BodyHandlers.ofString());
    }

    private static JsonObject json(String text) {
        return JsonParser.parseString(text).getAsJsonObject();
    }

    private static String error(HttpResponse<String> response) {
        JsonObject json = json(response.body());
        if (json.has("code")) { // DJL Serving's form.
            assertEquals("/invocations", response.uri().getPath());
            assertEquals(response.statusCode(), json.get("code").getAsInt());
            return json.get("error").getAsString();
        }
        assertNotEquals("/invocations", response.uri().getPath());
        JsonObject error = json.getAsJsonObject("error");
        String code = error.get("code").getAsString();
        if (!code.equals("context_length_exceeded")) {
            assertEquals(response.statusCode(), Integer.parseInt(code));
        }
        return error.get("message").getAsString();
    }

    /** Puts together the text of an answer that came as events. */
    private static String text(Stream<String> lines) {
        StringBuilder text = new StringBuilder();
        List<String> events = lines.filter(line -> !line.isEmpty()).toList();
        assertEquals("data: [DONE]", events.get(events.size() - 1));
        for (String event : events.subList(0, events.size() - 1)) {
            JsonObject choice =
                    TestJson.at(event.substring("data: ".length()), "choices.0").getAsJsonObject();
            JsonObject content = choice.has("delta") ? choice.getAsJsonObject("delta") : choice;
            String key = choice.has("delta") ? "content" : "text";
            text.append(content.has(key) ? content.get(key).getAsString() : "");
        }
        return text.toString();
    }

    @Test
    void answersWithoutStreaming() throws Exception {
        HttpResponse<String> chat =
                send(
                        post(
                                "/v1/chat/completions",
                                "{'messages':[{'role':'user','content':'Hi'}],'max_tokens':12}"));
        assertEquals(200, chat.statusCode(), chat::body);
        assertTrue(chat.body().contains("\"content\":\"assistant:as\""), chat::body);
        HttpResponse<String> completion =
                send(post("/v1/completions", "{'prompt':'ab','max_tokens':5}"));
        assertTrue(completion.body().contains("\"text\":\"ababa\""), completion::body);
        HttpResponse<String> invocation =
                send(post("/invocations", "{'inputs':'ab','parameters':{'max_new_tokens':3}}"));
        assertEquals("{\"generated_text\":\"aba\"}", invocation.body());
    }

    @Test
    void answersPieceByPiece() throws Exception {
        HttpResponse<Stream<String>> chat =
                client.send(
                        post(
                                "/v1/chat/completions",
                                "{'messages':[{'role':'user','content':'Hi'}],'max_tokens':12,"
                                        + "'stream':true}"),
                        BodyHandlers.ofLines());
        assertEquals("text/event-stream", chat.headers().firstValue("content-type").orElseThrow());
        assertEquals("assistant:as", text(chat.body()));
        HttpResponse<String> invocation =
                send(
                        post(
                                "/invocations",
                                "{'inputs':'ab','parameters':{'max_new_tokens':3},'stream':true}"));
        assertEquals(3, invocation.body().lines().count());
        assertTrue(invocation.body().contains("\"generated_text\":\"aba\""), invocation::body);
    }

    @Test
    void answersSeveralPrompts() throws Exception {
        HttpResponse<String> whole =
                send(post("/v1/completions", "{'prompt':['ab','cd'],'max_tokens':3}"));
        List<String> texts = new ArrayList<>();
        for (JsonElement choice : json(whole.body()).getAsJsonArray("choices")) {
            texts.add(choice.getAsJsonObject().get("text").getAsString());
        }
        assertEquals(List.of("aba", "cdc"), texts);
        HttpResponse<String> invocation =
                send(
                        post(
                                "/invocations",
                                "{'inputs':['ab','cd'],'parameters':{'max_new_tokens':3}}"));
        assertEquals(
                "[{\"generated_text\":\"aba\"},{\"generated_text\":\"cdc\"}]", invocation.body());
        HttpResponse<String> streamed =
                send(
                        post(
                                "/v1/completions",
                                "{'prompt':['ab','cd'],'max_tokens':3,'stream':true,"
                                        + "'stream_options':{'include_usage':true}}"));
        List<String> events = streamed.body().lines().filter(line -> !line.isEmpty()).toList();
        assertEquals("data: [DONE]", events.get(events.size() - 1));
        assertTrue(events.get(events.size() - 2).contains("\"total_tokens\":10"), streamed::body);
        StringBuilder[] streams = {new StringBuilder(), new StringBuilder()};
        for (String event : events.subList(0, events.size() - 2)) {
            JsonObject choice =
                    TestJson.at(event.substring("data: ".length()), "choices.0").getAsJsonObject();
            StringBuilder stream = streams[choice.get("index").getAsInt()];
            stream.append(choice.get("text").getAsString());
            if (!choice.get("finish_reason").isJsonNull()) {
                stream.append('.');
            }
        }
        assertEquals(List.of("aba.", "cdc."), Stream.of(streams).map(String::valueOf).toList());
    }

    @Test
    void oneOfSeveralThatFailsEndsAll() throws Exception {
        HttpResponse<String> failed =
                send(post("/v1/completions", "{'prompt':['HANG','FAIL'],'max_tokens':9}"));
        assertEquals(500, failed.statusCode(), failed::body);
        generator.awaitCancelled(1);
        HttpResponse<String> wrong =
                send(post("/v1/completions", "{'prompt':['HANG',''],'max_tokens':9}"));
        assertEquals(400, wrong.statusCode(), wrong::body);
        assertEquals(0, generator.statistics().running());
    }

    @Test
    void tokensComeWhenTheyAreThere() throws Exception {
        HttpResponse<InputStream> response =
                client.send(
                        post("/v1/completions", "{'prompt':'HANG','stream':true}"),
                        BodyHandlers.ofInputStream());
        byte[] first = response.body().readNBytes(6);
        assertEquals("data: ", new String(first, StandardCharsets.UTF_8));
        response.body().close(); // The client goes away.
        generator.awaitCancelled(1);
    }

    @Test
    void disconnectCancelsAnAnswerThatIsNotStreamed() throws Exception {
        CompletableFuture<HttpResponse<String>> response =
                client.sendAsync(
                        post("/v1/completions", "{'prompt':'HANG'}"), BodyHandlers.ofString());
        while (generator.statistics().running() == 0) {
            Thread.sleep(1);
        }
        response.cancel(true);
        generator.awaitCancelled(1);
        assertEquals(200, send(post("/v1/completions", "{'prompt':'x'}")).statusCode());
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "/v1/completions|",
                "/v1/completions|{",
                "/v1/completions|{'prompt':''}",
                "/v1/completions|{'prompt':'x','max_tokens':300000}",
                "/v1/completions|{'prompt':'x','tempo':1}",
                "/v1/completions|{'prompt':7}",
                "/v1/completions|{'prompt':'x','top_k':1e400}",
                "/v1/chat/completions|{'messages':'x'}",
                "/invocations|{'inputs':{}}"
            })
    void badRequestsHarmNoOther(String bad) throws Exception {
        String[] parts = bad.split("\\|", 2);
        HttpResponse<String> response = send(post(parts[0], parts[1]));
        assertEquals(400, response.statusCode(), response::body);
        assertFalse(error(response).isEmpty());
        assertEquals(200, send(post("/v1/completions", "{'prompt':'x'}")).statusCode());
    }

    @Test
    void deepAndLargeRequestsAreRefused() throws Exception {
        HttpResponse<String> deep = send(post("/v1/completions", "[".repeat(MAX_BODY)));
        assertEquals(400, deep.statusCode(), deep::body);
        HttpResponse<String> large = send(post("/v1/completions", " ".repeat(MAX_BODY + 1)));
        assertEquals(413, large.statusCode(), large::body);
        assertEquals("a request may have 2000 bytes at most", error(large));
        // Java's client before 20 waits for ever if it is not told to go on.
        try (Socket client = new Socket("127.0.0.1", server.port())) {
            client.setSoTimeout(20_000);
            String asks =
                    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                            + "Content-Type: application/json\r\n"
                            + "Expect: 100-continue\r\nContent-Length: 2001\r\n\r\n";
            client.getOutputStream().write(asks.getBytes(StandardCharsets.US_ASCII));
            StringBuilder reply = new StringBuilder();
            while (reply.indexOf("}}") < 0) {
                int next = client.getInputStream().read();
                assertTrue(next >= 0, reply::toString);
                reply.append((char) next);
            }
            assertTrue(reply.indexOf("HTTP/1.1 413 ") == 0, reply::toString);
            assertTrue(reply.indexOf("a request may have 2000 bytes at most") > 0, reply::toString);
        }
        HttpResponse<String> endless =
                send(
                        request("/v1/completions")
                                .header("Content-Type", "application/json")
                                .POST(
                                        BodyPublishers.ofInputStream(
                                                () ->
                                                        new java.io.ByteArrayInputStream(
                                                                new byte[1_000_000])))
                                .build());
        assertEquals(413, endless.statusCode(), endless::body);
        HttpResponse<String> head = send(request("/" + "x".repeat(10_000)).build());
        assertEquals(431, head.statusCode(), head::body);
        assertEquals(200, send(post("/v1/completions", "{'prompt':'x'}")).statusCode());
    }

    @Test
    void pathsMethodsAndTypesAreChecked() throws Exception {
        assertEquals(404, send(request("/v2").build()).statusCode());
        assertEquals(405, send(request("/v1/completions").build()).statusCode());
        assertEquals(405, send(post("/health", "{}")).statusCode());
        HttpRequest form = request("/v1/completions").POST(BodyPublishers.ofString("{}")).build();
        assertEquals(415, send(form).statusCode());
        String models = send(request("/v1/models").build()).body();
        assertTrue(models.contains("\"id\":\"tiny\""), models);
        for (String name : List.of("tiny", "%74iny")) {
            HttpResponse<String> model = send(request("/v1/models/" + name).build());
            assertEquals(200, model.statusCode(), model::body);
            assertEquals("tiny", json(model.body()).get("id").getAsString());
            assertEquals("model", json(model.body()).get("object").getAsString());
        }
        HttpResponse<String> none = send(request("/v1/models/some/other%20one").build());
        assertEquals(404, none.statusCode());
        assertEquals("there is no model 'some/other one', but 'tiny'", error(none));
        String odd =
                exchange(
                        "GET /v1/models/%zz HTTP/1.1\r\nHost: localhost\r\n"
                                + "Connection: close\r\n\r\n");
        assertTrue(odd.startsWith("HTTP/1.1 404") && odd.contains("no model '%zz'"), odd);
        HttpResponse<String> other =
                send(post("/v1/completions", "{'prompt':'x','model':'other'}"));
        assertEquals(404, other.statusCode(), other::body);
    }

    @Test
    void aFailureIsToldWhereverItComes() throws Exception {
        HttpResponse<String> whole = send(post("/v1/completions", "{'prompt':'FAIL'}"));
        assertEquals(500, whole.statusCode());
        assertEquals(Answer.FAILED, error(whole));
        HttpResponse<String> odd = send(post("/v1/completions", "{'prompt':'FAIL ODDLY'}"));
        assertEquals(500, odd.statusCode());
        assertEquals(Answer.FAILED, error(odd));
        HttpResponse<String> invocation = send(post("/invocations", "{'inputs':'FAIL'}"));
        assertEquals(500, invocation.statusCode());
        assertEquals(Answer.FAILED, error(invocation));
        HttpResponse<String> huge = send(post("/invocations", "{'inputs':'HUGE'}"));
        assertEquals(500, huge.statusCode());
        assertEquals(Answer.FAILED, error(huge));
        HttpResponse<String> streamed =
                send(post("/v1/completions", "{'prompt':'FAIL','stream':true}"));
        assertEquals(200, streamed.statusCode());
        List<String> events = streamed.body().lines().filter(line -> !line.isEmpty()).toList();
        assertEquals(3, events.size(), streamed::body);
        assertTrue(events.get(2).contains(Answer.FAILED), events.get(2));
        HttpResponse<String> line = send(post("/invocations", "{'inputs':'FAIL','stream':true}"));
        assertTrue(line.body().contains("\"finish_reason\":\"error\""), line::body);
    }

    @Test
    void manyClientsGetTheirOwnAnswers() throws Exception {
        List<CompletableFuture<Void>> answers = new ArrayList<>();
        for (int i = 0; i < 64; i++) {
            String prompt = "client " + i + " of many";
            boolean streams = i % 2 == 0;
            String json = "{'prompt':'" + prompt + "','max_tokens':200,'stream':" + streams + "}";
            answers.add(
                    client.sendAsync(post("/v1/completions", json), BodyHandlers.ofString())
                            .thenAccept(
                                    response -> {
                                        String text =
                                                streams
                                                        ? text(response.body().lines())
                                                        : TestJson.at(
                                                                        response.body(),
                                                                        "choices.0.text")
                                                                .getAsString();
                                        assertEquals(FakeGenerator.expected(prompt, 200), text);
                                    }));
        }
        for (CompletableFuture<Void> answer : answers) {
            answer.get();
        }
        assertEquals(64, generator.statistics().finished());
    }

    @Test
    void tooManyRequestsAreToldToComeAgain() throws Exception {
        List<CompletableFuture<HttpResponse<String>>> hanging =
                IntStream.range(0, FakeGenerator.MAX_RUNNING)
                        .mapToObj(
                                i ->
                                        client.sendAsync(
                                                post("/v1/completions", "{'prompt':'HANG'}"),
                                                BodyHandlers.ofString()))
                        .toList();
        while (generator.statistics().running() < FakeGenerator.MAX_RUNNING) {
            Thread.sleep(1);
        }
        HttpResponse<String> response = send(post("/v1/completions", "{'prompt':'x'}"));
        assertEquals(429, response.statusCode(), response::body);
        assertEquals("1", response.headers().firstValue("retry-after").orElseThrow());
        hanging.forEach(request -> request.cancel(true));
        generator.awaitCancelled(FakeGenerator.MAX_RUNNING);
        assertEquals(200, send(post("/v1/completions", "{'prompt':'x'}")).statusCode());
    }

    @Test
    void asksForTheToken() throws Exception {
        start("s3cret", 200, LONG, LONG);
        HttpRequest completion = post("/v1/completions", "{'prompt':'x'}");
        HttpResponse<String> none = send(completion);
        assertEquals(401, none.statusCode());
        assertEquals("Bearer", none.headers().firstValue("www-authenticate").orElseThrow());
        assertTrue(error(none).contains("Authorization: Bearer"), none::body);
        for (String wrong : List.of("Bearer s3cre", "Bearer s3cret2", "s3cret", "Basic s3cret")) {
            HttpRequest request =
                    HttpRequest.newBuilder(completion, (name, value) -> true)
                            .header("Authorization", wrong)
                            .build();
            assertEquals(401, send(request).statusCode(), wrong);
        }
        HttpRequest right =
                HttpRequest.newBuilder(completion, (name, value) -> true)
                        .header("Authorization", "Bearer s3cret")
                        .build();
        assertEquals(200, send(right).statusCode());
        assertEquals(401, send(request("/metrics").build()).statusCode());
        assertEquals(401, send(request("/v1/models").build()).statusCode());
        assertEquals(401, send(request("/v1/models/other").build()).statusCode());
        assertEquals(200, send(request("/health").build()).statusCode());
        assertEquals(200, send(request("/").build()).statusCode());
        assertThrows(IllegalArgumentException.class, () -> start("", 1, LONG, LONG));
        assertThrows(IllegalArgumentException.class, () -> start("a b", 1, LONG, LONG));
    }

    /** Sends bytes and returns what comes until the server closes. */
    private String exchange(String request) throws IOException {
        try (Socket socket = new Socket("127.0.0.1", server.port())) {
            socket.getOutputStream().write(request.getBytes(StandardCharsets.UTF_8));
            return new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        }
    }

    @Test
    void refusesWhatIsNotHttp() throws Exception {
        String answer = exchange("what is this\r\n\r\n");
        assertTrue(answer.startsWith("HTTP/1.1 400"), answer);
        answer = exchange("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n");
        assertTrue(answer.startsWith("HTTP/1.1 400"), answer);
    }

    @Test
    void clientsOfHttp10GetTheirStream() throws Exception {
        String json = "{\"prompt\":\"ab\",\"max_tokens\":3,\"stream\":true}";
        String answer =
                exchange(
                        "POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
                                + "Content-Length: "
                                + json.length()
                                + "\r\n\r\n"
                                + json);
        assertFalse(answer.contains("chunked"), answer);
        String body = answer.substring(answer.indexOf("\r\n\r\n") + 4);
        assertEquals("aba", text(body.lines()));
    }

    @Test
    void slowRequestsEnd() throws Exception {
        start(null, 200, SHORT, LONG);
        assertEquals("", exchange("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"));
        assertEquals("", exchange(""));
    }

    @Test
    void slowAnswersEnd() throws Exception {
        start(null, 200, LONG, SHORT);
        HttpResponse<String> whole = send(post("/v1/completions", "{'prompt':'HANG'}"));
        assertEquals(504, whole.statusCode(), whole::body);
        generator.awaitCancelled(1);
        HttpResponse<String> streamed =
                send(post("/v1/completions", "{'prompt':'HANG','stream':true}"));
        assertTrue(streamed.body().contains("has taken longer than"), streamed::body);
        generator.awaitCancelled(2);
    }

    @Test
    void aClientThatDoesNotReadIsGivenUp() throws Exception {
        start(null, 200, LONG, Duration.ofSeconds(2));
        String json = "{\"prompt\":\"ab\",\"max_tokens\":250000,\"stream\":true}";
        try (Socket socket = new Socket()) {
            socket.setReceiveBufferSize(4096);
            socket.connect(new java.net.InetSocketAddress("127.0.0.1", server.port()));
            socket.getOutputStream()
                    .write(
                            ("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                            + "Content-Type: application/json\r\nContent-Length: "
                                            + json.length()
                                            + "\r\n\r\n"
                                            + json)
                                    .getBytes(StandardCharsets.UTF_8));
            while (server.metrics.connections.get() > 0) {
                Thread.sleep(10);
            }
        }
    }

    @Test
    void aSlowReaderGetsItAll() throws Exception {
        HttpResponse<InputStream> response =
                client.send(
                        post("/v1/completions", "{'prompt':'ab','max_tokens':20000,'stream':true}"),
                        BodyHandlers.ofInputStream());
        generator.awaitFinished(1); // Most of it waits.
        String body = new String(response.body().readAllBytes(), StandardCharsets.UTF_8);
        assertEquals("ab".repeat(10_000), text(body.lines()));
    }

    @Test
    void connectionsAreBounded() throws Exception {
        start(null, 1, LONG, LONG);
        try (Socket first = new Socket("127.0.0.1", server.port())) {
            first.getOutputStream()
                    .write(
                            "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
                                    .getBytes(StandardCharsets.UTF_8));
            assertEquals('H', first.getInputStream().read());
            String answer = exchange("");
            assertTrue(answer.startsWith("HTTP/1.1 503"), answer);
        }
        while (server.metrics.connections.get() > 0) {
            Thread.sleep(1);
        }
        assertEquals(200, send(request("/health").build()).statusCode());
    }

    @Test
    void metricsAreInPrometheusFormat() throws Exception {
        send(post("/v1/completions", "{'prompt':'x'}"));
        send(post("/v1/completions", "{"));
        send(post("/v1/completions", " ".repeat(MAX_BODY + 1)));
        String metrics = send(request("/metrics").build()).body();
        String sample = "[a-z0-9_:]+\\{[a-z_]+=\"[^\"]*\"(,[a-z_]+=\"[^\"]*\")*} [0-9.E-]+";
        metrics.lines()
                .filter(line -> !line.startsWith("# "))
                .forEach(line -> assertTrue(line.matches(sample), line));
        String model = "{model_name=\"tiny\"";
        String requests = "djlx_http_requests_total" + model + ",path=\"/v1/completions\",code=";
        for (String line :
                List.of(
                        requests + "\"200\"} 1",
                        requests + "\"400\"} 1",
                        requests + "\"413\"} 1",
                        "vllm:time_to_first_token_seconds_bucket" + model + ",le=\"+Inf\"} 1",
                        "vllm:request_time_per_output_token_seconds_count" + model + "} 1",
                        "vllm:e2e_request_latency_seconds_count" + model + "} 1",
                        "vllm:request_success_total" + model + ",finished_reason=\"length\"} 1",
                        "vllm:num_requests_running" + model + "} 0",
                        "vllm:num_requests_waiting" + model + "} 0",
                        "# TYPE vllm:kv_cache_usage_perc gauge",
                        "vllm:kv_cache_usage_perc" + model + "} 0.3",
                        "vllm:prefix_cache_queries_total" + model + "} 7",
                        "vllm:prefix_cache_hits_total" + model + "} 4",
                        "# TYPE vllm:num_preemptions_total counter",
                        "vllm:num_preemptions_total" + model + "} 2",
                        "vllm:prompt_tokens_total" + model + "} 5",
                        "vllm:generation_tokens_total" + model + "} 6")) {
            assertTrue(metrics.lines().anyMatch(line::equals), line + " in " + metrics);
        }
    }

    @Test
    void responsesAreStreamedAsNamedEvents() throws Exception {
        String request = "{'input':'ab','max_output_tokens':4";
        HttpResponse<String> whole = send(post("/v1/responses", request + "}"));
        String text = TestJson.at(whole.body(), "output.0.content.0.text").getAsString();
        assertEquals(4, text.length());
        assertEquals("incomplete", TestJson.at(whole.body(), "status").getAsString());
        HttpResponse<String> streamed = send(post("/v1/responses", request + ",'stream':true}"));
        assertEquals("text/event-stream", type(streamed));
        assertTrue(streamed.body().startsWith("event: response.created\ndata: {"), streamed.body());
        assertTrue(streamed.body().contains("event: response.incomplete\n"), streamed.body());
    }

    private static String type(HttpResponse<String> response) {
        return response.headers().firstValue("content-type").orElse("");
    }

    @Test
    void promptsAreTokenized() throws Exception {
        HttpResponse<String> tokens = send(post("/tokenize", "{'prompt':'ab'}"));
        assertEquals(200, tokens.statusCode());
        assertTrue(
                tokens.body()
                        .startsWith("{\"count\":2,\"max_model_len\":300000,\"tokens\":[97,98]"));
        assertEquals(400, send(post("/tokenize", "{}")).statusCode());
    }

    @Test
    void pingAndVersionAnswer() throws Exception {
        assertEquals(200, send(request("/ping").build()).statusCode());
        String version = send(request("/version").build()).body();
        assertTrue(version.matches("\\{\"version\":\"[0-9]+\\.[0-9][^\"$]*\"}"), version);
        generator.setUnavailable("a rank has failed");
        assertEquals(503, send(request("/ping").build()).statusCode());
    }

    @Test
    void everyReplyHasTheIdOfItsRequest() throws Exception {
        HttpRequest own =
                HttpRequest.newBuilder(
                                post("/v1/completions", "{'prompt':'x','stream':true}"),
                                (n, v) -> true)
                        .header("X-Request-Id", "mine-1")
                        .build();
        assertEquals(List.of("mine-1"), send(own).headers().allValues("x-request-id"));
        String first = send(request("/health").build()).headers().firstValue("x-request-id").get();
        String second =
                send(post("/v1/completions", "{")).headers().firstValue("x-request-id").get();
        assertTrue(first.startsWith("req_") && second.startsWith("req_"), first + second);
        assertFalse(first.equals(second));
        String answer =
                exchange(
                        "GET /none HTTP/1.1\r\n"
                                + "Host: localhost\r\n"
                                + "Connection: close\r\n"
                                + "X-Request-Id: a b\r\n\r\n");
        assertTrue(answer.contains("x-request-id: req_"), answer);
        assertTrue(exchange("no HTTP\r\n\r\n").contains("x-request-id: req_"));
    }

    @Test
    void everyReplyIsALineOfTheAccessLog() throws Exception {
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        AbstractAppender appender =
                new AbstractAppender("access", null, null, false, Property.EMPTY_ARRAY) {
                    @Override
                    public void append(LogEvent event) {
                        lines.add(event.getMessage().getFormattedMessage());
                    }
                };
        appender.start();
        Logger logger = (Logger) LogManager.getLogger("org.djlx.llm.server.access");
        logger.addAppender(appender);
        try {
            send(post("/v1/completions?key=secret", "{'prompt':'x','stream':true}"));
            String line = lines.take();
            assertTrue(
                    line.matches(
                            "/127.0.0.1:[0-9]+ \"POST /v1/completions\" 200 [0-9]+ ms"
                                    + " req_[-0-9a-f]+"),
                    line);
            exchange(
                    "GET /a\u00e9b HTTP/1.1\r\n"
                            + "Host: localhost\r\n"
                            + "Connection: close\r\n"
                            + "X-Request-Id: 7\r\n\r\n");
            line = lines.take();
            assertTrue(line.contains("\"GET /a??b\" 404 ") && line.endsWith(" ms 7"), line);
            String refused = exchange("GET /a\u0007b HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assertTrue(refused.startsWith("HTTP/1.1 400"), refused);
        } finally {
            logger.removeAppender(appender);
        }
    }

    @Test
    void healthIsThatOfTheModel() throws Exception {
        assertEquals("{\"status\":\"Healthy\"}", send(request("/health").build()).body());
        generator.setUnavailable("the process of rank 1 (pid 4711) has ended; see /tmp/hs_err");
        HttpResponse<String> sick = send(request("/health").build());
        assertEquals(503, sick.statusCode());
        assertEquals(
                "{\"status\":\"Unhealthy\",\"cause\":\"" + GenerationServer.UNAVAILABLE + "\"}",
                sick.body());
        HttpResponse<String> refused = send(post("/v1/completions", "{'prompt':'x'}"));
        assertEquals(503, refused.statusCode());
        assertEquals(GenerationServer.UNAVAILABLE, error(refused));
    }

    @Test
    void thePageLoadsNothingFromElsewhere() throws Exception {
        HttpResponse<String> page = send(request("/?x=1").build());
        assertEquals(200, page.statusCode());
        assertTrue(
                page.headers()
                        .firstValue("content-security-policy")
                        .orElseThrow()
                        .startsWith("default-src 'none'"));
        String[] parts = page.body().split("<script>"); // the page, its libraries, its own script
        assertFalse((parts[0] + parts[parts.length - 1]).matches("(?s).*(src|href)=.*"));
        assertTrue(page.body().contains("@license DOMPurify") && page.body().contains("marked v"));
        assertTrue(page.body().contains("place.innerHTML = DOMPurify.sanitize("));
    }

    @Test
    void closingLetsAnswersEndAndCancelsTheRest() throws Exception {
        HttpResponse<InputStream> hanging =
                client.send(
                        post("/v1/completions", "{'prompt':'HANG','stream':true}"),
                        BodyHandlers.ofInputStream());
        try (Socket idle = new Socket("127.0.0.1", server.port())) {
            int port = server.port();
            CompletableFuture<Void> closed = CompletableFuture.runAsync(server::close);
            assertEquals(-1, idle.getInputStream().read());
            assertFalse(closed.isDone(), "an answer is under way");
            while (isListening(port)) {
                Thread.sleep(1);
            }
            hanging.body().close();
            closed.get();
        }
        generator.awaitCancelled(1);
        server.await();
    }

    @ParameterizedTest
    @ValueSource(booleans = {true, false})
    void closingTellsClientsWhoseAnswersDoNotEnd(boolean streamed) throws Exception {
        server.close();
        server = server(null, 200, LONG, LONG, Duration.ZERO);
        CompletableFuture<HttpResponse<String>> response =
                client.sendAsync(
                        post("/v1/completions", "{'prompt':'HANG','stream':" + streamed + "}"),
                        BodyHandlers.ofString());
        while (generator.statistics().running() == 0) {
            Thread.sleep(1);
        }
        server.close();
        assertTrue(response.get().body().contains("the server is shutting down"), streamed + "");
        if (!streamed) {
            assertEquals(503, response.get().statusCode());
        }
        generator.awaitCancelled(1);
    }

    private static boolean isListening(int port) {
        try {
            new Socket("127.0.0.1", port).close();
            return true;
        } catch (IOException e) {
            return false;
        }
    }

    private String whyItCannotListen(String host, int port) {
        ServerOptions options =
                new ServerOptions(host, port, null, List.of(), 1, 1, 1, LONG, LONG, SHORT);
        IOException ofServer =
                assertThrows(IOException.class, () -> new GenerationServer(server.models, options));
        assertTrue(
                ofServer.getMessage()
                        .startsWith("cannot listen on " + host + " port " + port + ": "),
                ofServer.getMessage());
        IOException before =
                assertThrows(IOException.class, () -> GenerationServer.checkAddress(options));
        assertTrue(
                before.getMessage().startsWith("cannot listen on " + host + " port " + port),
                before.getMessage());
        return ofServer.getMessage();
    }

    @Test
    void aPortThatIsTakenIsNamed() {
        assertTrue(whyItCannotListen("127.0.0.1", server.port()).contains("in use"));
    }

    @Test
    void aHostThatIsNotKnownIsNamed() {
        assertTrue(
                whyItCannotListen("host.invalid", 0).endsWith("no address is known for this name"));
    }
}
