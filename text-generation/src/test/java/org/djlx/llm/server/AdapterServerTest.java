// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.djlx.llm.engine.ByteTokens;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.model.AdapterFiles;
import org.djlx.llm.text.ChatTemplate;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** LoRA adapters over HTTP, with a small random model. */
@Timeout(120)
class AdapterServerTest {

    private static final String LOAD = "/v1/load_lora_adapter";
    private static final String UNLOAD = "/v1/unload_lora_adapter";
    private static final AdapterFiles FIRST = new AdapterFiles(4, 8, false, AdapterFiles.ALL, 1);
    private static final AdapterFiles SECOND = new AdapterFiles(2, 8, false, AdapterFiles.ALL, 2);

    @TempDir private Path directory;
    private Path base;
    private TextEngine generator;
    private GenerationServer server;
    private final HttpClient client = HttpClient.newHttpClient();

    @BeforeEach
    void start() throws IOException {
        base = directory.resolve("base");
        ByteTokens.writeModel(base, 3);
        FIRST.write(base, directory.resolve("first"));
        SECOND.write(base, directory.resolve("second"));
        generator =
                TextEngine.builder()
                        .setDirectory(base)
                        .optRanks(2)
                        .optAdapter("first", directory.resolve("first"))
                        .build();
        server = server(generator, true);
    }

    private static GenerationServer server(TextEngine generator, boolean updates)
            throws IOException {
        TextApi api = new TextApi("base", generator, ChatTemplate.PLAIN);
        Duration limit = Duration.ofMinutes(1);
        ServerOptions options =
                new ServerOptions(
                        "127.0.0.1", 0, null, List.of(), 1 << 20, 1 << 22, 10, limit, limit, limit);
        return new GenerationServer(
                List.of(new ServedModel.Generator(api, generator, updates)), options);
    }

    @AfterEach
    void stop() {
        server.close();
        generator.close();
    }

    private HttpResponse<String> send(String path, String json) throws Exception {
        URI uri = URI.create("http://127.0.0.1:" + server.port() + path);
        HttpRequest.Builder request = HttpRequest.newBuilder(uri);
        if (json != null) {
            request.header("Content-Type", "application/json")
                    .POST(HttpRequest.BodyPublishers.ofString(json.replace('\'', '"')));
        }
        return client.send(request.build(), HttpResponse.BodyHandlers.ofString());
    }

    private JsonObject answer(String path, String json) throws Exception {
        HttpResponse<String> reply = send(path, json);
        assertEquals(200, reply.statusCode(), reply.body());
        return JsonParser.parseString(reply.body()).getAsJsonObject();
    }

    private void assertRefused(int status, String named, String path, String json)
            throws Exception {
        HttpResponse<String> reply = send(path, json);
        assertEquals(status, reply.statusCode(), reply.body());
        assertTrue(reply.body().contains(named), reply.body());
    }

    private String text(String model) throws Exception {
        JsonObject answer = answer("/v1/completions", prompt(model));
        assertEquals(model, answer.get("model").getAsString());
        return answer.getAsJsonArray("choices").get(0).getAsJsonObject().get("text").getAsString();
    }

    private static String prompt(String model) {
        return "{'model': '%s', 'prompt': 'Once upon', 'max_tokens': 9, 'temperature': 0}"
                .formatted(model);
    }

    /** Returns what a model with the adapter merged answers. */
    private String merged(AdapterFiles adapter) throws Exception {
        Path merged = adapter.merge(base, directory.resolve("merged-" + adapter.seed()));
        GenerationServer own = server;
        try (TextEngine other = TextEngine.builder().setDirectory(merged).build();
                GenerationServer there = server(other, false)) {
            server = there;
            return text("base");
        } finally {
            server = own;
        }
    }

    private List<String> models() throws Exception {
        List<String> names = new ArrayList<>();
        for (JsonElement each : answer("/v1/models", null).getAsJsonArray("data")) {
            JsonObject model = each.getAsJsonObject();
            String parent = model.has("parent") ? " of " + model.get("parent").getAsString() : "";
            names.add(model.get("id").getAsString() + parent);
        }
        return names;
    }

    @Test
    void requestsChooseTheAdapterAsTheirModel() throws Exception {
        assertEquals(List.of("base", "first of base"), models());
        assertEquals("base", answer("/v1/models/first", null).get("parent").getAsString());
        assertEquals(merged(FIRST), text("first"));
        assertNotEquals(text("base"), text("first"));
        String options = "'max_tokens': 9, 'temperature': 0, 'model': '%s'}";
        String chat = "{'messages': [{'role': 'user', 'content': 'Hi'}], ";
        for (String schema : new String[] {chat, "{'inputs': 'Hi', "}) {
            boolean isChat = schema.equals(chat);
            String path = isChat ? "/v1/chat/completions" : "/invocations";
            String rest = isChat ? options : "'model': '%s'}";
            String own = answers(path, schema + rest.formatted("base"));
            assertNotEquals(own, answers(path, schema + rest.formatted("first")));
        }
        String response =
                "{'input': 'Hi', 'max_output_tokens': 9, 'temperature': 0, 'model': '%s'}";
        assertNotEquals(
                answers("/v1/responses", response.formatted("base")),
                answers("/v1/responses", response.formatted("first")));
        assertRefused(404, "unknown model 'other'", "/v1/completions", prompt("other"));
    }

    /** Returns the texts of an answer, which differ from one model to the other. */
    private String answers(String path, String json) throws Exception {
        JsonObject answer = answer(path, json);
        return answer.has("choices")
                ? answer.getAsJsonArray("choices").toString()
                : answer.has("output")
                        ? answer.getAsJsonArray("output")
                                .get(0)
                                .getAsJsonObject()
                                .getAsJsonArray("content")
                                .toString()
                        : answer.get("generated_text").getAsString();
    }

    @Test
    void adaptersAreLoadedAndRemovedByRequests() throws Exception {
        String load =
                "{'lora_name': 'second', 'lora_path': '%s'}".formatted(directory.resolve("second"));
        assertTrue(answer(LOAD, load).get("message").getAsString().contains("'second' added"));
        assertEquals(List.of("base", "first of base", "second of base"), models());
        assertEquals(merged(SECOND), text("second"));
        assertRefused(400, "has already been loaded", LOAD, load);
        answer(UNLOAD, "{'lora_name': 'second'}");
        assertEquals(List.of("base", "first of base"), models());
        assertRefused(404, "unknown model 'second'", "/v1/completions", prompt("second"));
        assertRefused(404, "there is no adapter 'second'", UNLOAD, "{'lora_name': 'second'}");
        assertRefused(400, "lora_name", UNLOAD, "{}");
        assertRefused(400, "lora_path", LOAD, "{'lora_name': 'x'}");
        assertRefused(404, "lora_path", LOAD, "{'lora_name': 'x', 'lora_path': '/no/such'}");
        assertRefused(
                400,
                "another name than that of the model",
                LOAD,
                load.replace("'lora_name': 'second'", "'lora_name': 'base'"));
        Path dora = SECOND.write(base, directory.resolve("dora"));
        AdapterFiles.set(dora, "use_dora", "true");
        assertRefused(
                400,
                "use_dora is not supported",
                LOAD,
                "{'lora_name': 'x', 'lora_path': '%s'}".formatted(dora));
        assertEquals(405, send(LOAD, null).statusCode());
        assertTrue(Files.exists(dora));
    }

    @Test
    void endpointsAreOffUnlessAllowed() throws Exception {
        GenerationServer own = server;
        try (GenerationServer closed = server(generator, false)) {
            server = closed;
            assertEquals(404, send(LOAD, "{}").statusCode());
            assertEquals(404, send(UNLOAD, "{}").statusCode());
            text("first");
        } finally {
            server = own;
        }
    }
}
