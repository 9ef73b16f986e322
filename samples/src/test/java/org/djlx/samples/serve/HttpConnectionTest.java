/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.serve;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Pattern;
import org.djlx.fusedops.llm.api.TextApi;
import org.djlx.fusedops.llm.text.ChatTemplate;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** The server's HTTP, byte by byte: what a client in Java cannot send. */
@Timeout(60)
class HttpConnectionTest {

    private static final int MAX_BODY = 2000;
    private static final int MAX_BUFFERED = 5000;
    private static final String TOKEN = "s3cret";

    private final FakeGenerator generator = new FakeGenerator();
    private final List<Socket> sockets = new ArrayList<>();
    private GenerationServer server;

    @BeforeEach
    void start() throws IOException {
        start(null);
    }

    private void start(String token) throws IOException {
        if (server != null) {
            server.close();
        }
        Duration patience = Duration.ofSeconds(50);
        server =
                new GenerationServer(
                        new TextApi("tiny", generator, ChatTemplate.PLAIN),
                        generator,
                        new ServerOptions(
                                "127.0.0.1",
                                0,
                                token,
                                List.of("LLM.default.svc"),
                                MAX_BODY,
                                MAX_BUFFERED,
                                200,
                                patience,
                                patience,
                                Duration.ZERO));
    }

    @AfterEach
    void stop() throws IOException {
        for (Socket socket : sockets) {
            socket.close();
        }
        server.close();
        generator.close();
    }

    private Socket connect() throws IOException {
        Socket socket = new Socket("127.0.0.1", server.port());
        socket.setSoTimeout(20_000);
        sockets.add(socket);
        return socket;
    }

    private static void write(Socket socket, String text) throws IOException {
        socket.getOutputStream().write(text.getBytes(StandardCharsets.UTF_8));
    }

    /** Connects and sends a text. */
    private Socket send(String text) throws IOException {
        Socket socket = connect();
        write(socket, text);
        return socket;
    }

    /** Reads until the server closes. */
    private static String readAll(Socket socket) throws IOException {
        return new String(socket.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    }

    /** Reads the head of a response. */
    private static String readHead(Socket socket) throws IOException {
        InputStream in = socket.getInputStream();
        StringBuilder head = new StringBuilder();
        while (head.indexOf("\r\n\r\n") < 0) {
            int next = in.read();
            assertTrue(next >= 0, () -> "closed after '" + head + "'");
            head.append((char) next);
        }
        return head.toString();
    }

    /** Reads a response with a content length, and returns its status and body. */
    private static String readReply(Socket socket) throws IOException {
        String head = readHead(socket);
        int length = Integer.parseInt(head.replaceAll("(?s).*content-length: ([0-9]+).*", "$1"));
        byte[] body = socket.getInputStream().readNBytes(length);
        return head.substring(9, 12) + ' ' + new String(body, StandardCharsets.UTF_8);
    }

    private static String get(String path, String... headers) {
        return head("GET", path, headers) + "\r\n";
    }

    private static String head(String method, String path, String... headers) {
        StringBuilder head = new StringBuilder(method + ' ' + path + " HTTP/1.1\r\n");
        for (String header : headers) {
            head.append(header).append("\r\n");
        }
        return head.toString();
    }

    private static String post(String prompt, int tokens, String... headers) {
        String json = "{\"prompt\":\"" + prompt + "\",\"max_tokens\":" + tokens + '}';
        return postHead(json.length(), headers) + json;
    }

    /** Returns the head of a completion request. */
    private static String postHead(int length, String... headers) {
        return head("POST", "/v1/completions", headers)
                + "Host: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                + length
                + "\r\n\r\n";
    }

    private static int count(String text, String part) {
        return text.split(Pattern.quote(part), -1).length - 1;
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "localhost",
                "LOCALHOST",
                "localhost.",
                "LocalHost.:80",
                "127.0.0.1:80",
                "[::1]",
                "[::1]:9",
                "llm.default.svc",
                "llm.DEFAULT.svc.:8080"
            })
    void allowsItsOwnNames(String host) throws IOException {
        String reply = readAll(send(get("/v1/models", "Host: " + host, "Connection: close")));
        assertTrue(reply.startsWith("HTTP/1.1 200"), reply);
    }

    @ParameterizedTest
    @ValueSource(strings = {"evil.example", "localhost.evil.example", "llm.default", "localhost.."})
    void refusesOtherNames(String host) throws IOException {
        String reply = readAll(send(get("/v1/models", "Host: " + host, "Connection: close")));
        assertTrue(reply.startsWith("HTTP/1.1 403"), reply);
        assertTrue(reply.contains("--allowed-host"), reply);
    }

    @ParameterizedTest
    @CsvSource({
        "Bearer s3cret, 200",
        "bearer s3cret, 200",
        "BEARER  s3cret, 200",
        "Bearer S3CRET, 401",
        "Basic s3cret, 401",
        "Bearers3cret, 401",
        "Bearer, 401"
    })
    void theSchemeOfTheTokenIsInAnyCase(String value, int status) throws IOException {
        start(TOKEN);
        String reply = readReply(send(get("/v1/models", "Host: x", "Authorization: " + value)));
        assertTrue(reply.startsWith(status + " "), reply);
    }
}
