// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Pattern;
import org.djlx.llm.text.ChatTemplate;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
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
    void refusesHostsThatAreNotAllowed(String host) throws IOException {
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
        String reply =
                readReply(send(get("/v1/models", "Host: localhost", "Authorization: " + value)));
        assertTrue(reply.startsWith(status + " "), reply);
    }

    @Test
    void refusesBeforeTheBodyComes() throws IOException {
        start(TOKEN);
        Socket socket = send(postHead(MAX_BODY));
        String reply = readReply(socket);
        assertTrue(reply.startsWith("401 "), reply);
        // The body is dropped, and the connection goes on.
        write(socket, "x".repeat(MAX_BODY));
        write(socket, get("/health", "Host: localhost"));
        assertEquals("200 {\"status\":\"Healthy\"}", readReply(socket));
    }

    private void awaitPermits(int permits) throws InterruptedException {
        while (server.bodies.availablePermits() != permits) {
            Thread.sleep(1);
        }
    }

    @Test
    void bodiesInMemoryAreBounded() throws Exception {
        List<Socket> holders = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            holders.add(send(postHead(MAX_BODY) + " ".repeat(MAX_BODY - 1)));
        }
        Socket third = connect();
        String json = "{\"prompt\":\"ab\",\"max_tokens\":3}";
        String padded = json + " ".repeat(MAX_BODY - json.length());
        awaitPermits(MAX_BUFFERED - 2 * (MAX_BODY - 1));
        write(third, postHead(MAX_BODY) + padded);
        String reply = readReply(third);
        assertTrue(reply.startsWith("429 "), reply);
        // Small requests still fit, and the permits of all answered ones have come back.
        for (int i = 0; i < 200; i++) {
            write(third, post("ab", 3));
            assertTrue(readReply(third).contains("\"text\":\"aba\""));
        }
        for (Socket holder : holders) {
            holder.close();
        }
        awaitPermits(MAX_BUFFERED);
        write(third, postHead(MAX_BODY) + padded);
        assertTrue(readReply(third).contains("\"text\":\"aba\""));
    }

    @Test
    void pipelinedRequestsAreAnsweredInOrder() throws IOException {
        StringBuilder requests = new StringBuilder();
        requests.append(post("ab", 500));
        requests.append(post("cd", 3));
        requests.append(head("HEAD", "/health", "Host: localhost")).append("\r\n");
        requests.append(postHead(MAX_BODY + 1)).append(" ".repeat(MAX_BODY + 1));
        requests.append(get("/v2", "Host: localhost"));
        requests.append(post("ef", 3, "Connection: close"));
        requests.append(post("gh", 3));
        String replies = readAll(send(requests.toString()));
        String order = "(?s)200 .*\"ababab.*200 .*\"cdc\".*200 .*413 .*2000 bytes.*404 .*\"efe\".*";
        assertTrue(replies.replace("HTTP/1.1 ", "").matches(order), replies);
        assertEquals(6, count(replies, "HTTP/1.1 "), replies);
        assertEquals(1, count(replies, "connection: close"), replies);
    }

    @Test
    void pipelinedRequestsAreBounded() throws IOException {
        String requests = post("ab", 100_000) + get("/health", "Host: localhost").repeat(100);
        String replies = readAll(send(requests));
        assertEquals(17, count(replies, "HTTP/1.1 200"), replies);
        assertEquals(1, count(replies, "connection: close"), replies);
        assertEquals(MAX_BUFFERED, server.bodies.availablePermits());
    }

    @ParameterizedTest
    @ValueSource(strings = {"HTTP/1.1", "HTTP/1.0"})
    void aClientThatEndsItsOutputIsAnswered(String version) throws IOException {
        for (int tokens : new int[] {3, 20_000}) {
            Socket socket = send(post("ab", tokens).replace("HTTP/1.1", version));
            socket.shutdownOutput();
            String reply = readAll(socket);
            assertTrue(reply.contains('"' + FakeGenerator.expected("ab", tokens) + '"'), reply);
        }
        Socket idle = connect();
        idle.shutdownOutput();
        assertEquals("", readAll(idle));
        Socket partial = send(postHead(100) + "x");
        partial.shutdownOutput();
        assertEquals("", readAll(partial));
    }

    @ParameterizedTest
    @ValueSource(strings = {"", ",\"stream\":true"})
    void aClientThatEndsItsOutputAndLeavesIsNoticed(String stream) throws Exception {
        String json = "{\"prompt\":\"HANG\"" + stream + '}';
        Socket socket = send(postHead(json.length()) + json);
        while (generator.statistics().running() == 0) {
            Thread.sleep(1);
        }
        socket.shutdownOutput();
        String head = readHead(socket);
        assertTrue(head.startsWith(stream.isEmpty() ? "HTTP/1.1 102" : "HTTP/1.1 200"), head);
        assertEquals(1, generator.statistics().running());
        socket.close();
        generator.awaitCancelled(1);
    }

    @Test
    void aClientThatStillSendsGetsTheReply() throws IOException {
        int length = 20_000_000; // More than the sockets' buffers hold.
        Socket socket = send(postHead(length, "Connection: close"));
        byte[] body = new byte[length];
        socket.getOutputStream().write(body);
        String reply = readAll(socket);
        assertTrue(reply.startsWith("HTTP/1.1 413"), reply);
    }

    @Test
    void continuesOnlyAllowedRequests() throws IOException {
        start(TOKEN);
        String json = "{\"prompt\":\"ab\",\"max_tokens\":3}";
        String[] headers = {"Expect: 100-continue", "Authorization: Bearer " + TOKEN};
        Socket allowed = send(postHead(json.length(), headers));
        assertEquals("HTTP/1.1 100 Continue\r\n\r\n", readHead(allowed));
        write(
                allowed,
                json + head("HEAD", "/health", "Host: localhost", "Connection: close") + "\r\n");
        String reply = readAll(allowed);
        assertTrue(reply.contains("\"text\":\"aba\""), reply);
        assertEquals(2, count(reply, "HTTP/1.1 200"), reply);
        String refused = readAll(send(postHead(json.length(), "Expect: 100-continue")));
        assertTrue(refused.startsWith("HTTP/1.1 401"), refused);
        headers[0] = "Expect: something";
        reply = readReply(send(postHead(json.length(), headers)));
        assertTrue(reply.startsWith("417 "), reply);
    }

    @Test
    void headIsGetWithoutABody() throws IOException {
        for (String path : List.of("/", "/health", "/metrics", "/v1/models", "/v1/models/tiny")) {
            String reply =
                    readAll(
                            send(
                                    head("HEAD", path, "Host: localhost", "Connection: close")
                                            + "\r\n"));
            assertTrue(reply.matches("(?s)HTTP/1.1 200.*\r\ncontent-length: [1-9].*"), reply);
            assertTrue(reply.endsWith("\r\n\r\n"), reply);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "POST, /health, 'GET, HEAD'",
        "DELETE, /v1/models/tiny, 'GET, HEAD'",
        "GET, /v1/completions, POST",
        "HEAD, /invocations, POST"
    })
    void refusedMethodsComeWithTheAllowedOnes(String method, String path, String allowed)
            throws IOException {
        String reply = readHead(send(head(method, path, "Host: localhost") + "\r\n"));
        assertTrue(reply.startsWith("HTTP/1.1 405"), reply);
        assertTrue(reply.contains("\r\nallow: " + allowed + "\r\n"), reply);
    }

    @Test
    void aRequestHasOneHost() throws IOException {
        for (String token : new String[] {null, TOKEN}) {
            start(token);
            String reply = readReply(send(get("/health")));
            assertTrue(reply.startsWith("400 ") && reply.contains("one Host header"), reply);
            reply = readReply(send(get("/health", "Host: localhost", "Host: localhost")));
            assertTrue(reply.startsWith("400 "), reply);
            reply = readReply(send("GET /health HTTP/1.0\r\n\r\n"));
            assertTrue(reply.startsWith("200 "), reply);
        }
    }

    @Test
    void bodiesOfGetRequestsAreDropped() throws IOException {
        String body = "x".repeat(MAX_BUFFERED + 1);
        Socket socket = connect();
        for (int i = 0; i < 3; i++) {
            write(
                    socket,
                    get("/health", "Host: localhost", "Content-Length: " + body.length()) + body);
            assertTrue(readReply(socket).startsWith("200 "));
        }
        assertEquals(MAX_BUFFERED, server.bodies.availablePermits());
    }

    @Test
    void headerFieldsAreBounded() throws IOException {
        String[] fields = new String[100];
        Arrays.fill(fields, "a:");
        fields[0] = "Host: localhost";
        String reply = readReply(send(get("/health", fields)));
        assertTrue(reply.startsWith("200 "), reply);
        reply = readAll(send(head("GET", "/health", fields) + "a:\r\n\r\n"));
        assertTrue(reply.startsWith("HTTP/1.1 431"), reply);
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "Transfer-Encoding: xchunked",
                "Transfer-Encoding: gzip, chunked",
                "Transfer-Encoding: chunked, identity",
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
                "Transfer-Encoding: chunked",
                "Content-Length: 3"
            })
    void requestsWithAnUnclearEndAreRefused(String second) throws IOException {
        String body = "1e\r\n{\"prompt\":\"ab\",\"max_tokens\":3}\r\n0\r\n\r\n";
        String smuggled = get("/health", "Host: localhost");
        String reply = readAll(send(postHead(body.length(), second) + body + smuggled));
        assertTrue(reply.startsWith("HTTP/1.1 400"), reply);
        assertEquals(1, count(reply, "HTTP/1.1 "), reply);
    }
}
