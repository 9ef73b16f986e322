// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
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
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.djlx.llm.files.FakeHub;
import org.djlx.llm.files.GgufWriter;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.nativeops.TestJson;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A server process with a model of two ranks. */
@Timeout(180)
@Tag("slow")
class ServeCommandTest extends CommandTest {

    @TempDir private Path folder;
    private final HttpClient client = HttpClient.newHttpClient();
    private final List<String> lines = new ArrayList<>();
    private String model;
    private String name = "tiny";
    private String endpoint = "";
    private Process process;
    private BufferedReader output;
    private String address;

    @BeforeEach
    void writeModel() {
        model = folder.resolve("tiny").toString();
        output(0, "serve-model", model);
    }

    /** As {@link #start(String...)}, with a model of a hub. */
    @Test
    void servesAModelByItsName() throws Exception {
        try (FakeHub hub = new FakeHub(Path.of(model))) {
            name = model = FakeHub.NAME;
            endpoint = hub.endpoint();
            start();
            assertTrue(
                    lines.get(0).matches("Downloading org/tiny-1.0: [\\d,]+ bytes in 1 file .*"),
                    lines::toString);
            HttpRequest models =
                    HttpRequest.newBuilder(URI.create(address + "v1/models/org%2Ftiny-1.0"))
                            .header("Authorization", "Bearer t0ken")
                            .build();
            assertEquals(200, send(models).statusCode());
            String chat =
                    "{'model':'org/tiny-1.0','messages':[{'role':'user','content':'Hello'}],"
                            + "'max_tokens':8,'temperature':0,'ignore_eos':true}";
            HttpResponse<String> answer = send(post("v1/chat/completions", chat));
            assertEquals(200, answer.statusCode(), answer::body);
            assertTrue(answer.body().contains("\"completion_tokens\":8"), answer::body);
        }
    }

    /** A chat, a call and an answer that has a schema; the file has the template, too. */
    @Test
    void servesAGgufFile() throws Exception {
        ModelConfig config = LlamaFiles.decodable(ScalarType.FLOAT32, false, 16);
        String template =
                "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                        + "{% if tools %}<tool_call>{{ tools | tojson }}</tool_call>{% endif %}";
        name = "small";
        model =
                GgufWriter.random(folder.resolve("original"), config)
                        .put("tokenizer.chat_template", template)
                        .write(folder.resolve("small.gguf"))
                        .toString();
        start();
        String chat = "{'messages':[{'role':'user','content':'Hello'}],'max_tokens':60,'seed':1";
        String plain = body("v1/chat/completions", chat + ",'ignore_eos':true}");
        assertEquals(60, TestJson.at(plain, "usage.completion_tokens").getAsInt());
        String schema =
                "{'type':'object','properties':{'size':{'enum':['small','large']}},"
                        + "'required':['size'],'additionalProperties':false}";
        String object = "\\s*\\{\\s*\"size\"\\s*:\\s*\"(small|large)\"\\s*\\}\\s*";
        String format = "'json_schema':{'name':'s','schema':" + schema + "}}}";
        String shaped =
                body(
                        "v1/chat/completions",
                        chat + ",'response_format':{'type':'json_schema'," + format);
        String content = TestJson.at(shaped, "choices.0.message.content").getAsString();
        assertTrue(content.matches(object), content);
        String tool = "{'type':'function','function':{'name':'buy','parameters':" + schema + "}}";
        String called =
                body(
                        "v1/chat/completions",
                        chat + ",'tools':[" + tool + "],'tool_choice':'required'}");
        String call = "choices.0.message.tool_calls.0.function.";
        assertEquals("buy", TestJson.at(called, call + "name").getAsString());
        String arguments = TestJson.at(called, call + "arguments").getAsString();
        assertTrue(arguments.matches(object), arguments);
    }

    private String body(String path, String json) throws IOException, InterruptedException {
        HttpResponse<String> answer = send(post(path, json));
        assertEquals(200, answer.statusCode(), answer::body);
        return answer.body();
    }

    /** Starts the server; its ranks are threads, or processes of launch. */
    private void start(String... launch) throws IOException {
        List<String> command = new ArrayList<>(List.of("env", "--default-signal=TERM"));
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-Xmx512m", "-XX:TieredStopAtLevel=1"));
        command.addAll(List.of("-cp", System.getProperty("java.class.path")));
        command.add(Main.class.getName());
        command.addAll(List.of(launch));
        if (launch.length > 0) {
            command.addAll(List.of("--jvm-arg", "-XX:TieredStopAtLevel=1"));
        }
        command.addAll(List.of("serve", model, "--ranks", "2"));
        command.addAll(List.of("--port", "0", "--shutdown-timeout", "100"));
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
        builder.environment().put("DJLX_SERVE_TOKEN", "t0ken");
        builder.environment().put("HF_ENDPOINT", endpoint);
        builder.environment().put("HF_HOME", folder.toString());
        process = builder.start();
        output = process.inputReader();
        awaitServing();
    }

    private void awaitServing() throws IOException {
        address = null;
        while (address == null) {
            String line = output.readLine();
            assertTrue(line != null, () -> "Ended early: " + lines);
            lines.add(line);
            int at = line.indexOf("Serving " + name + " at ");
            if (at >= 0) {
                address = line.substring(line.indexOf(" at ", at) + " at ".length());
            }
        }
    }

    @AfterEach
    void kill() {
        if (process != null) {
            process.destroyForcibly();
        }
    }

    private HttpRequest post(String path, String json) {
        return HttpRequest.newBuilder(URI.create(address + path))
                .header("Content-Type", "application/json")
                .header("Authorization", "Bearer t0ken")
                .POST(BodyPublishers.ofString(json.replace('\'', '"')))
                .build();
    }

    private HttpResponse<String> send(HttpRequest request)
            throws IOException, InterruptedException {
        return client.send(request, BodyHandlers.ofString());
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "launch --nproc-per-node 2"})
    void servesAndEndsInOrder(String launch) throws Exception {
        start(launch.isEmpty() ? new String[0] : launch.split(" "));
        assertTrue(address.startsWith("http://127.0.0.1:"), address);
        String port = address.replaceAll(".*:([0-9]+)/", "$1");
        String taken = output(1, "serve", model, "--port", port);
        assertTrue(taken.contains("cannot listen on 127.0.0.1"), taken);
        assertFalse(taken.contains("Loading"), taken); // The port is checked before loading.
        HttpRequest chat =
                post(
                        "v1/chat/completions",
                        "{'messages':[{'role':'user','content':'Hello'}],'max_tokens':8,"
                                + "'temperature':0,'ignore_eos':true}");
        HttpResponse<String> alone = send(chat);
        assertEquals(200, alone.statusCode(), alone::body);
        assertTrue(alone.body().contains("\"completion_tokens\":8"), alone::body);
        assertEquals(400, send(post("v1/completions", "{'prompt':7}")).statusCode());

        List<CompletableFuture<HttpResponse<String>>> many =
                IntStream.range(0, 64)
                        .mapToObj(i -> client.sendAsync(chat, BodyHandlers.ofString()))
                        .toList();
        for (CompletableFuture<HttpResponse<String>> response : many) {
            assertEquals(content(alone), content(response.get()));
        }

        HttpRequest health = HttpRequest.newBuilder(URI.create(address + "health")).build();
        assertEquals(200, send(health).statusCode());
        HttpResponse<InputStream> answer =
                client.send(
                        post(
                                "v1/completions",
                                "{'prompt':'x','max_tokens':50,'ignore_eos':true,'stream':true}"),
                        BodyHandlers.ofInputStream());
        answer.body().read();
        process.toHandle().destroy(); // SIGTERM: the running answer is completed.
        String rest = new String(answer.body().readAllBytes(), StandardCharsets.UTF_8);
        assertTrue(rest.endsWith("\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n"), rest);
        output.lines().forEach(lines::add);
        assertEquals(143, process.waitFor(), lines::toString);
        assertTrue(
                lines.stream().noneMatch(line -> line.matches(".*(Exception|WARN|ERROR).*")),
                lines::toString);
    }

    @Test
    void isStartedAgainWhenARankIsKilled() throws Exception {
        start("launch", "--nproc-per-node", "2", "--max-restarts", "1");
        HttpRequest request = post("v1/completions", "{'prompt':'x','temperature':0}");
        assertEquals(200, send(request).statusCode());
        List<ProcessHandle> first = process.descendants().toList();
        assertTrue(rankOne(first).destroyForcibly());
        awaitServing();
        for (ProcessHandle rank : first) {
            rank.onExit().join();
        }
        request = post("v1/completions", "{'prompt':'x','temperature':0}");
        assertEquals(200, send(request).statusCode());
        List<ProcessHandle> second = process.descendants().toList();
        process.toHandle().destroy();
        output.lines().forEach(lines::add);
        assertEquals(143, process.waitFor(), lines::toString);
        for (ProcessHandle rank : second) {
            rank.onExit().join();
        }
    }

    private static ProcessHandle rankOne(List<ProcessHandle> processes) throws IOException {
        for (ProcessHandle each : processes) {
            Path environment = Path.of("/proc", "" + each.pid(), "environ");
            String variables = Files.readString(environment, StandardCharsets.ISO_8859_1);
            if (List.of(variables.split("\0")).contains("RANK=1")) {
                return each;
            }
        }
        throw new AssertionError("no process is rank 1");
    }

    private static String content(HttpResponse<String> response) {
        assertEquals(200, response.statusCode(), response::body);
        String body = response.body();
        return body.substring(body.indexOf("\"content\":"), body.indexOf("\"usage\""));
    }

    @Test
    void wrongArgumentsAreNamed() {
        assertTrue(output(2, "serve", model + "x").contains("is not a directory"));
        String revision = output(2, "serve", model, "--revision", "main");
        assertTrue(revision.contains("--revision is for models of a hub"), revision);
        String offline = output(1, "serve", "org/x", "--offline", "--hub-cache", folder);
        assertTrue(offline.contains("org/x (main) is not complete in " + folder), offline);
        assertTrue(output(2, "serve", "org/x", "--hub", "x").contains("form https://HOST"));
        assertTrue(output(2, "serve", model, "--max-body", "0").contains("1 byte or more"));
        assertTrue(output(2, "serve", model, "--max-buffered", "9").contains("of 9 bytes is less"));
        assertTrue(output(2, "serve", model, "--allowed-host", "a:1").contains("not 'a:1'"));
        assertTrue(output(2, "serve", model, "--ranks", "5").contains("among 5 ranks"));
        for (String option : List.of("--ranks", "--max-length", "--cache-bytes", "--max-running")) {
            String refused = output(2, "serve", model, option, "0");
            assertTrue(refused.contains(option + " must be "), refused);
        }
        assertTrue(output(2, "serve", model, "--port", "65536").contains("port"));
        assertTrue(output(2, "serve", model, "--shutdown-timeout", "-1").contains("0 s or more"));
        assertTrue(output(2, "serve", model, "--name", "").contains("--name must not be empty"));
        String adapter = output(2, "serve", model, "--lora", "tiny=" + folder);
        assertTrue(adapter.contains("the adapter has the model's name"), adapter);
        String twice = output(2, "serve", model, "--lora", "a=x", "--lora", "a=y");
        assertTrue(twice.contains("--lora names two adapters 'a'"), twice);
        String nameless = output(2, "serve", model, "--lora", "x");
        assertTrue(nameless.contains("--lora must be NAME=DIR, not 'x'"), nameless);
        String missing = output(2, "serve", model, "--lora", "a=" + folder);
        assertTrue(missing.contains("has no adapter_config.json"), missing);
        String format = output(2, "serve", model, "--tool-call-parser", "x");
        assertTrue(format.contains("unknown format of tool calls 'x'"), format);
    }
}
