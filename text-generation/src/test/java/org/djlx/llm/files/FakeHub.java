// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.stream.Stream;

/**
 * A server that speaks the hub's protocol, with one model. Large files are redirected to another
 * host, small ones to another path, as huggingface.co does.
 */
public final class FakeHub implements AutoCloseable {

    public static final String NAME = "org/tiny-1.0";
    static final String COMMIT = "0123456789abcdef0123456789abcdef01234567";

    /** Answers a request itself, or returns false. */
    interface Fault {
        boolean answers(HttpExchange exchange) throws IOException;
    }

    final Map<String, byte[]> files = new TreeMap<>();

    /** Method, path and range of each request; with " token=X" if it has a token. */
    final List<String> requests = Collections.synchronizedList(new ArrayList<>());

    volatile Fault fault = exchange -> false;
    volatile boolean hasRanges = true;
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final HttpServer hub;
    private final HttpServer storage;

    /** Starts a hub without files. */
    FakeHub() throws IOException {
        hub = server(InetAddress.getByName("127.0.0.1"));
        storage = server(InetAddress.getByName("127.0.0.2"));
    }

    /** Starts a hub with the files of a directory. */
    public FakeHub(Path directory) throws IOException {
        this();
        try (Stream<Path> all = Files.walk(directory)) {
            for (Path file : all.filter(Files::isRegularFile).toList()) {
                files.put(directory.relativize(file).toString(), Files.readAllBytes(file));
            }
        }
    }

    private HttpServer server(InetAddress address) throws IOException {
        HttpServer server = HttpServer.create(new InetSocketAddress(address, 0), 0);
        server.createContext("/", this::handle);
        server.setExecutor(threads);
        server.start();
        return server;
    }

    public String endpoint() {
        return address(hub);
    }

    private static String address(HttpServer server) {
        InetSocketAddress address = server.getAddress();
        return "http://" + address.getHostString() + ":" + address.getPort();
    }

    private void handle(HttpExchange exchange) throws IOException {
        String path = exchange.getRequestURI().getRawPath();
        String token = exchange.getRequestHeaders().getFirst("Authorization");
        String range = exchange.getRequestHeaders().getFirst("Range");
        requests.add(
                exchange.getRequestMethod()
                        + " "
                        + (exchange.getLocalAddress().equals(hub.getAddress()) ? "" : "storage")
                        + path
                        + (range == null ? "" : " " + range)
                        + (token == null ? "" : " token=" + token));
        try (exchange) {
            if (fault.answers(exchange)) {
                return;
            }
            String resolve = "/" + NAME + "/resolve/";
            if (path.startsWith("/api/models/" + NAME + "/revision/")) {
                String revision = path.substring(path.lastIndexOf('/') + 1);
                if (List.of("main", "refs%2Fpr%2F1", COMMIT).contains(revision)) {
                    sendList(exchange);
                } else {
                    exchange.getResponseHeaders().add("X-Error-Code", "RevisionNotFound");
                    exchange.sendResponseHeaders(404, -1);
                }
            } else if (path.startsWith(resolve)) {
                String rest = path.substring(resolve.length());
                redirect(exchange, rest.substring(rest.indexOf('/') + 1));
            } else if (path.startsWith("/stored/")) {
                byte[] bytes = files.get(decoded(path.substring("/stored/".length())));
                exchange.getResponseHeaders().add("ETag", '"' + hash(bytes) + '"');
                exchange.getResponseHeaders().add("X-Repo-Commit", COMMIT);
                send(exchange, bytes, Integer.MAX_VALUE, hasRanges);
            } else {
                exchange.getResponseHeaders().add("X-Error-Code", "RepoNotFound");
                exchange.sendResponseHeaders(404, -1);
            }
        }
    }

    private static String decoded(String path) {
        return URLDecoder.decode(path, StandardCharsets.UTF_8);
    }

    private void sendList(HttpExchange exchange) throws IOException {
        JsonObject json = new JsonObject();
        json.addProperty("id", NAME);
        json.addProperty("sha", COMMIT);
        JsonArray siblings = new JsonArray();
        for (String file : files.keySet()) {
            JsonObject each = new JsonObject();
            each.addProperty("rfilename", file);
            siblings.add(each);
        }
        json.add("siblings", siblings);
        exchange.getResponseHeaders().add("Content-Type", "application/json");
        send(exchange, json.toString().getBytes(StandardCharsets.UTF_8), Integer.MAX_VALUE);
    }

    private void redirect(HttpExchange exchange, String path) throws IOException {
        byte[] bytes = files.get(decoded(path));
        if (bytes == null) {
            exchange.getResponseHeaders().add("X-Error-Code", "EntryNotFound");
            exchange.getResponseHeaders().add("X-Repo-Commit", COMMIT);
            exchange.sendResponseHeaders(404, -1);
            return;
        }
        boolean large = isLarge(path);
        Map<String, String> headers =
                Map.of(
                        "X-Repo-Commit", COMMIT,
                        "X-Linked-Etag", '"' + hash(bytes, large) + '"',
                        "X-Linked-Size", "" + bytes.length,
                        "Location", (large ? address(storage) : "") + "/stored/" + path);
        headers.forEach(exchange.getResponseHeaders()::add);
        byte[] text = "Temporary Redirect".getBytes(StandardCharsets.UTF_8);
        boolean head = exchange.getRequestMethod().equals("HEAD");
        exchange.sendResponseHeaders(large ? 302 : 307, head ? -1 : text.length);
        if (!head) {
            exchange.getResponseBody().write(text);
        }
    }

    private static boolean isLarge(String file) {
        return file.endsWith(".safetensors") || file.endsWith("tokenizer.json");
    }

    /** Sends the range that is asked for; after {@code most} bytes of it, closes the connection. */
    static void send(HttpExchange exchange, byte[] bytes, int most) throws IOException {
        send(exchange, bytes, most, true);
    }

    private static void send(HttpExchange exchange, byte[] bytes, int most, boolean hasRanges)
            throws IOException {
        String range = exchange.getRequestHeaders().getFirst("Range");
        int from = range == null || !hasRanges ? 0 : Integer.parseInt(range.replaceAll("\\D", ""));
        if (from > 0) {
            exchange.getResponseHeaders()
                    .add(
                            "Content-Range",
                            "bytes %d-%d/%d".formatted(from, bytes.length - 1, bytes.length));
        }
        int length = bytes.length - from;
        if (exchange.getRequestMethod().equals("HEAD")) {
            exchange.getResponseHeaders().add("Content-Length", "" + length);
            exchange.sendResponseHeaders(200, -1);
            return;
        }
        exchange.sendResponseHeaders(from > 0 ? 206 : 200, length == 0 ? -1 : length);
        exchange.getResponseBody().write(bytes, from, Math.min(most, length));
        exchange.getResponseBody().flush();
    }

    private static String hash(byte[] bytes) {
        return hash(bytes, false);
    }

    /** SHA-256 of a large file, git's SHA-1 of a small one. */
    static String hash(byte[] bytes, boolean large) {
        try {
            MessageDigest digest = MessageDigest.getInstance(large ? "SHA-256" : "SHA-1");
            if (!large) {
                digest.update(("blob " + bytes.length + "\0").getBytes(StandardCharsets.UTF_8));
            }
            return HexFormat.of().formatHex(digest.digest(bytes));
        } catch (NoSuchAlgorithmException e) {
            throw new AssertionError(e);
        }
    }

    /** Returns the requests that begin with a text. */
    List<String> requests(String begin) {
        synchronized (requests) {
            return requests.stream().filter(each -> each.startsWith(begin)).toList();
        }
    }

    @Override
    public void close() {
        hub.stop(0);
        storage.stop(0);
        threads.shutdownNow();
    }
}
