// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.model.EncoderFiles;
import org.djlx.llm.text.ChatTemplate;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code /v1/embeddings} over HTTP, with a small random model. */
@Timeout(120)
class EmbeddingServerTest {

    @TempDir private static Path directory;
    private static EmbeddingModel model;
    private static GenerationServer server;
    private static final HttpClient client = HttpClient.newHttpClient();

    @BeforeAll
    static void start() throws IOException {
        EncoderFiles.write(directory, "bert", "", "mean_tokens");
        model = EmbeddingModel.of(directory.toString());
        server = new GenerationServer(new EmbeddingApi("tiny", model), model, options());
    }

    private static ServerOptions options() {
        Duration limit = Duration.ofMinutes(1);
        return new ServerOptions(
                "127.0.0.1", 0, null, List.of(), 1 << 20, 1 << 22, 10, limit, limit, limit);
    }

    @AfterAll
    static void stop() {
        server.close();
        model.close();
    }

    private HttpResponse<String> send(GenerationServer server, String path, String json)
            throws Exception {
        URI uri = URI.create("http://127.0.0.1:" + server.port() + path);
        HttpRequest.Builder request = HttpRequest.newBuilder(uri);
        if (json != null) {
            request.header("Content-Type", "application/json")
                    .POST(HttpRequest.BodyPublishers.ofString(json.replace('\'', '"')));
        }
        return client.send(request.build(), HttpResponse.BodyHandlers.ofString());
    }

    private JsonObject embed(String json) throws Exception {
        HttpResponse<String> reply = send(server, "/v1/embeddings", json);
        assertEquals(200, reply.statusCode(), reply.body());
        return JsonParser.parseString(reply.body()).getAsJsonObject();
    }

    private static float[] vector(JsonObject answer, int index) {
        JsonObject data = answer.getAsJsonArray("data").get(index).getAsJsonObject();
        assertEquals(index, data.get("index").getAsInt());
        assertEquals("embedding", data.get("object").getAsString());
        JsonArray values = data.getAsJsonArray("embedding");
        float[] vector = new float[values.size()];
        for (int i = 0; i < vector.length; i++) {
            vector[i] = values.get(i).getAsFloat();
        }
        return vector;
    }

    @Test
    void textsAndTokensHaveTheVectorsOfTheModel() throws Exception {
        JsonObject answer = embed("{'model': 'tiny', 'input': ['a b', 'zed'], 'user': 'me'}");
        assertEquals("list", answer.get("object").getAsString());
        assertEquals("tiny", answer.get("model").getAsString());
        assertEquals(2, answer.getAsJsonArray("data").size());
        int tokens = model.encode("a b", null).length + model.encode("zed", null).length;
        JsonObject usage = answer.getAsJsonObject("usage");
        assertEquals(tokens, usage.get("prompt_tokens").getAsInt());
        assertEquals(tokens, usage.get("total_tokens").getAsInt());
        float[][] expected = model.embed(List.of("a b", "zed"));
        assertArrayEquals(expected[0], vector(answer, 0), 1e-6f);
        assertArrayEquals(expected[1], vector(answer, 1), 1e-6f);
        assertArrayEquals(expected[0], vector(embed("{'input': 'a b'}"), 0), 1e-6f);
        assertArrayEquals(expected[0], vector(embed("{'input': [0, 4, 6, 2]}"), 0), 1e-6f);
        JsonObject mixed = embed("{'input': [[0, 4, 6, 2], 'zed', [2], 'a b']}");
        assertArrayEquals(expected[0], vector(mixed, 0), 1e-6f);
        assertArrayEquals(expected[1], vector(mixed, 1), 1e-6f);
        assertArrayEquals(expected[0], vector(mixed, 3), 1e-6f);
        JsonObject arrays = embed("{'input': [[2], [0, 4, 6, 2]]}");
        assertArrayEquals(expected[0], vector(arrays, 1), 1e-6f);
    }

    @Test
    void base64HasTheSameFloats() throws Exception {
        JsonObject answer = embed("{'input': 'a b', 'encoding_format': 'base64'}");
        JsonObject data = answer.getAsJsonArray("data").get(0).getAsJsonObject();
        byte[] bytes = Base64.getDecoder().decode(data.get("embedding").getAsString());
        float[] vector = new float[bytes.length / 4];
        ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer().get(vector);
        assertArrayEquals(model.embed("a b"), vector, 1e-6f);
    }

    @Test
    void dimensionsAndPromptsAreChosen() throws Exception {
        float[] expected =
                model.embedTokens(List.of(model.encode("z", "query")), 5).vectors().get(0);
        JsonObject answer = embed("{'input': 'z', 'dimensions': 5, 'prompt_name': 'query'}");
        assertArrayEquals(expected, vector(answer, 0), 1e-6f);
    }

    @ParameterizedTest
    @CsvSource(
            quoteCharacter = '`',
            delimiter = '|',
            value = {
                "{'model': 'other', 'input': 'a'} | 404 | model | unknown model 'other'",
                "{'input': ''} | 400 | input | non-empty text",
                "{} | 400 | input | non-empty text",
                "{'input': []} | 400 | input | non-empty text",
                "{'input': [[]]} | 400 | input[0] | non-empty text",
                "{'input': ['a', 1]} | 400 | input[1] | must be",
                "{'input': [99]} | 400 | input | token id 99 is out of range",
                "{'input': 'a', 'encoding_format': 'hex'} | 400 | encoding_format | float or"
                        + " base64",
                "{'input': 'a', 'dimensions': 25} | 400 | dimensions | from 1 to 24",
                "{'input': 'a', 'prompt_name': 'x'} | 400 | prompt_name | one of [query]",
                "{'input': 'a', 'stream': true} | 400 | stream | unknown"
            })
    void errorsNameTheField(String json, int status, String field, String message)
            throws Exception {
        HttpResponse<String> reply = send(server, "/v1/embeddings", json);
        assertEquals(status, reply.statusCode(), reply.body());
        JsonObject error =
                JsonParser.parseString(reply.body()).getAsJsonObject().getAsJsonObject("error");
        assertEquals(field, error.get("param").getAsString());
        assertTrue(error.get("message").getAsString().contains(message), reply.body());
    }

    @Test
    void textsThatAreTooLongHaveOpenAisCode() throws Exception {
        String json = "{'input': '" + "a ".repeat(200) + "'}";
        HttpResponse<String> reply = send(server, "/v1/embeddings", json);
        assertEquals(400, reply.statusCode());
        assertTrue(reply.body().contains("context_length_exceeded"), reply.body());
    }

    /** Returns the model, whose vectors are computed once the latch is down. */
    private static EmbeddingModel waiting(CountDownLatch asked, CountDownLatch goes) {
        return (EmbeddingModel)
                Proxy.newProxyInstance(
                        EmbeddingModel.class.getClassLoader(),
                        new Class<?>[] {EmbeddingModel.class},
                        (proxy, method, arguments) -> {
                            if (method.getName().equals("embedTokens")) {
                                asked.countDown();
                                goes.await();
                            }
                            return method.invoke(model, arguments);
                        });
    }

    private static String texts(int count) {
        return "{'input': [" + "'a', ".repeat(count - 1) + "'a']}";
    }

    /** A vector of 24 numbers takes up to 512 bytes. */
    @Test
    void answersAreCountedAsBufferedUntilTheyAreSent() throws Exception {
        Duration limit = Duration.ofMinutes(1);
        ServerOptions small =
                new ServerOptions(
                        "127.0.0.1", 0, null, List.of(), 900, 4000, 10, limit, limit, limit);
        CountDownLatch asked = new CountDownLatch(1);
        CountDownLatch goes = new CountDownLatch(1);
        EmbeddingModel slow = waiting(asked, goes);
        try (GenerationServer own =
                new GenerationServer(new EmbeddingApi("x", slow), slow, small)) {
            HttpResponse<String> large = send(own, "/v1/embeddings", texts(8));
            assertEquals(400, large.statusCode(), large.body());
            assertTrue(large.body().contains("may have 4096 bytes"), large.body());
            CompletableFuture<HttpResponse<String>> first =
                    CompletableFuture.supplyAsync(() -> embed(own, texts(5)));
            asked.await();
            assertEquals(429, send(own, "/v1/embeddings", texts(5)).statusCode());
            goes.countDown();
            assertEquals(200, first.join().statusCode());
            while (own.bodies.availablePermits() < 4000) { // The class has a timeout.
                Thread.onSpinWait();
            }
            assertEquals(200, send(own, "/v1/embeddings", texts(7)).statusCode());
        } finally {
            goes.countDown();
        }
    }

    private HttpResponse<String> embed(GenerationServer server, String json) {
        try {
            return send(server, "/v1/embeddings", json);
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    @Test
    void otherPathsAreThoseOfAServerWithoutAGenerator() throws Exception {
        assertEquals(404, send(server, "/v1/chat/completions", "{}").statusCode());
        assertEquals(404, send(server, "/", null).statusCode());
        assertEquals(200, send(server, "/health", null).statusCode());
        String metrics = send(server, "/metrics", null).body();
        assertTrue(metrics.contains("djlx_http_connections{model_name=\"tiny\"}"), metrics);
        String models = send(server, "/v1/models", null).body();
        assertTrue(models.contains("\"max_model_len\":160"), models);
        assertEquals(200, send(server, "/v1/models/tiny", null).statusCode());
    }

    @Test
    void aServerMayHaveAGeneratorAndAnEmbeddingModel() throws Exception {
        try (FakeGenerator generator = new FakeGenerator()) {
            TextApi api = new TextApi("talker", generator, ChatTemplate.PLAIN);
            List<ServedModel> models =
                    List.of(
                            new ServedModel.Generator(api, generator, false),
                            new ServedModel.Embedder(new EmbeddingApi("tiny", model), model));
            try (GenerationServer both = new GenerationServer(models, options())) {
                assertEquals(200, send(both, "/v1/embeddings", "{'input': 'a'}").statusCode());
                assertEquals(200, send(both, "/v1/completions", "{'prompt': 'a'}").statusCode());
                String listed = send(both, "/v1/models", null).body();
                assertTrue(listed.contains("talker") && listed.contains("tiny"), listed);
            }
        }
    }
}
