/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.serve;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.djlx.samples.Main;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import picocli.CommandLine;

/** The server with a model of two ranks, in a process of its own. */
@Timeout(180)
class ServeCommandTest {

    @TempDir private Path folder;
    private final HttpClient client = HttpClient.newHttpClient();
    private final List<String> lines = new ArrayList<>();
    private String model;
    private Process process;
    private BufferedReader output;
    private String address;

    private String run(int code, String... args) {
        StringWriter out = new StringWriter();
        CommandLine root = Main.commandLine();
        root.setOut(new PrintWriter(out, true)).setErr(new PrintWriter(out, true));
        assertEquals(code, root.execute(args), out::toString);
        return out.toString();
    }

    @BeforeEach
    void writeModel() {
        model = folder.resolve("tiny").toString();
        run(0, "serve-model", model, "--text", "../README.md");
    }

    private void start() throws IOException {
        List<String> command = new ArrayList<>(List.of("env", "--default-signal=TERM"));
        command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
        command.addAll(List.of("-Xmx512m", "-cp", System.getProperty("java.class.path")));
        command.addAll(List.of(Main.class.getName(), "serve", model));
        command.addAll(List.of("--ranks", "2", "--port", "0", "--shutdown-timeout", "100"));
        ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
        builder.environment().put("DJLX_SERVE_TOKEN", "t0ken");
        process = builder.start();
        output = process.inputReader();
        while (address == null) {
            String line = output.readLine();
            assertTrue(line != null, () -> "Ended early: " + lines);
            lines.add(line);
            if (line.startsWith("Serving tiny at ")) {
                address = line.substring("Serving tiny at ".length());
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

    @Test
    void servesAndEndsInOrder() throws Exception {
        start();
        assertTrue(address.startsWith("http://127.0.0.1:"), address);
        String port = address.replaceAll(".*:([0-9]+)/", "$1");
        assertTrue(run(1, "serve", model, "--port", port).contains("cannot listen on 127.0.0.1"));
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
        process.toHandle().destroy(); // SIGTERM: the answer comes to its end.
        String rest = new String(answer.body().readAllBytes(), StandardCharsets.UTF_8);
        assertTrue(rest.endsWith("\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n"), rest);
        output.lines().forEach(lines::add);
        assertEquals(143, process.waitFor(), lines::toString);
        assertTrue(
                lines.stream().noneMatch(line -> line.matches(".*(Exception|WARN|ERROR).*")),
                lines::toString);
    }

    private static String content(HttpResponse<String> response) {
        assertEquals(200, response.statusCode(), response::body);
        String body = response.body();
        return body.substring(body.indexOf("\"content\":"), body.indexOf("\"usage\""));
    }

    @Test
    void wrongArgumentsAreNamed() {
        assertTrue(run(2, "serve", model + "x").contains("is no directory"));
        assertTrue(run(2, "serve", model, "--max-body", "0").contains("must be 1 or more"));
        assertTrue(run(2, "serve", model, "--ranks", "5").contains("among 5 ranks"));
        assertTrue(run(2, "serve", model, "--port", "65536").contains("port"));
    }
}
