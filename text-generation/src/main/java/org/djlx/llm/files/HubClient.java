// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.net.ConnectException;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodySubscribers;
import java.net.http.HttpResponse.ResponseInfo;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.LongSupplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.djlx.nativeops.host.FileWrites;

/**
 * Requests of one model to a hub. Thread-safe.
 *
 * <ul>
 *   <li>A failure that may be over in a while is tried again, {@value #ATTEMPTS} times without a
 *       byte of progress, after the time that the hub asks for.
 *   <li>Redirects go to https, or from http to http. The token goes to the hub's own host only.
 *   <li>A request without progress fails after once to twice the patience.
 * </ul>
 */
final class HubClient {

    private static final int ATTEMPTS = 5;
    private static final int REDIRECTS = 10;
    private static final int MAX_LIST = 64 << 20; // bytes of a list of files
    private static final Duration MAX_WAIT = Duration.ofMinutes(5);
    private static final Pattern RATE_LIMIT = Pattern.compile(";\\s*t=(\\d+)");

    private final HttpClient http =
            HttpClient.newBuilder()
                    .version(HttpClient.Version.HTTP_1_1) // A connection for each file.
                    .followRedirects(HttpClient.Redirect.NEVER)
                    .connectTimeout(Duration.ofSeconds(10))
                    .build();
    private final URI endpoint;
    private final Optional<String> token;
    private final String name;
    private final Duration backoff;
    private final Duration patience;

    /**
     * Creates a client.
     *
     * @param name the model, ORG/NAME
     * @param backoff the time before the second attempt; doubled for each further one
     * @param patience how long a request may be without progress
     */
    HubClient(
            URI endpoint,
            Optional<String> token,
            String name,
            Duration backoff,
            Duration patience) {
        this.endpoint = endpoint;
        this.token = token;
        this.name = name;
        this.backoff = backoff;
        this.patience = patience;
    }

    /** The commit that a branch or tag stands for, and the names of its files. */
    record Listing(String commit, List<String> files) {}

    /** A file of a commit: its hash, which is also the name of its blob, and its bytes. */
    record RemoteFile(String name, String etag, long size) {}

    /** Takes the body of an answer. Its exceptions end the request, which is not tried again. */
    interface Sink {

        /** Begins with an answer of status 200, the whole, or 206, the range that was asked for. */
        void begin(int status, HttpHeaders headers) throws IOException;

        void write(ByteBuffer bytes) throws IOException;
    }

    /** Lists the files of a commit, branch or tag. */
    Listing list(String revision, boolean patient) throws IOException {
        URI uri = uri("/api/models/" + name + "/revision/" + quote(revision));
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        attempt(
                patient ? ATTEMPTS : 1,
                bytes::size,
                () -> {
                    bytes.reset();
                    return get(uri, 0, new ListSink(bytes));
                });
        try {
            JsonObject json =
                    JsonParser.parseString(bytes.toString(StandardCharsets.UTF_8))
                            .getAsJsonObject();
            String commit = json.get("sha").getAsString();
            List<String> files = new ArrayList<>();
            json.getAsJsonArray("siblings")
                    .forEach(each -> files.add(text(each.getAsJsonObject(), "rfilename")));
            check(HubCache.COMMIT.matcher(commit).matches(), "%s: '%s' is no commit", uri, commit);
            for (String file : files) {
                check(isSafe(file), "%s lists the file '%s', which is not a path below", uri, file);
            }
            return new Listing(commit, files);
        } catch (RuntimeException e) {
            throw HubException.lasting(uri + " is not a list of a model's files: " + e);
        }
    }

    private static String text(JsonObject json, String key) {
        return json.get(key).getAsString();
    }

    private record ListSink(ByteArrayOutputStream bytes) implements Sink {

        @Override
        public void begin(int status, HttpHeaders headers) {}

        @Override
        public void write(ByteBuffer part) throws IOException {
            check(bytes.size() + part.remaining() <= MAX_LIST, "the list of files is too long");
            byte[] copy = new byte[part.remaining()];
            part.get(copy);
            bytes.writeBytes(copy);
        }
    }

    /** Returns whether a name stays below the directory that it is resolved against. */
    static boolean isSafe(String file) {
        for (String part : file.split("/", -1)) {
            if (part.isEmpty() || part.equals(".") || part.equals("..")) {
                return false;
            }
        }
        return file.indexOf('\\') < 0 && file.indexOf('\0') < 0;
    }

    /** Asks for hash and size of a file, without its bytes. */
    RemoteFile head(String commit, String file) throws IOException {
        URI uri = resolve(commit, file);
        HttpHeaders headers = attempt(ATTEMPTS, () -> 0, () -> headers(uri));
        String etag =
                headers.firstValue("X-Linked-Etag")
                        .or(() -> headers.firstValue("ETag"))
                        .orElse("")
                        .replaceFirst("^W/", "")
                        .replace("\"", "");
        OptionalLong size = headers.firstValueAsLong("X-Linked-Size");
        if (size.isEmpty() && headers.firstValue("Location").isEmpty()) {
            size = headers.firstValueAsLong("Content-Length");
        }
        check(
                etag.matches("[0-9a-f]{40}|[0-9a-f]{64}"),
                "%s has the ETag '%s', which is neither SHA-256 nor git's SHA-1: the file could not"
                        + " be checked",
                uri,
                etag);
        check(size.orElse(-1) >= 0, "%s has no size", uri);
        String found = headers.firstValue("X-Repo-Commit").orElse(commit);
        check(found.equals(commit), "%s is of the commit %s", uri, found);
        return new RemoteFile(file, etag, size.getAsLong());
    }

    /** Returns the headers of a file: those of the hub, not those of the host that stores it. */
    private HttpHeaders headers(URI uri) throws IOException {
        return send(
                        "HEAD",
                        uri,
                        0,
                        null,
                        (from, answer) ->
                                isSameOrigin(from.resolve(location(answer)), endpoint)
                                        && answer.firstValue("X-Linked-Etag").isEmpty())
                .headers();
    }

    /**
     * Downloads a file, or its rest. After a failure the download goes on behind {@code position}.
     */
    void download(String commit, String file, LongSupplier position, Sink sink) throws IOException {
        URI uri = resolve(commit, file);
        attempt(ATTEMPTS, position, () -> get(uri, position.getAsLong(), sink));
    }

    private HttpResponse<Void> get(URI uri, long from, Sink sink) throws IOException {
        return send("GET", uri, from, sink, (where, answer) -> true);
    }

    private URI resolve(String commit, String file) {
        return uri("/" + name + "/resolve/" + commit + "/" + quote(file).replace("%2F", "/"));
    }

    private URI uri(String path) {
        return URI.create(endpoint.toString().replaceFirst("/+$", "") + path);
    }

    private static String quote(String text) {
        return URLEncoder.encode(text, StandardCharsets.UTF_8).replace("+", "%20");
    }

    private interface Request<T> {
        T send() throws IOException;
    }

    /**
     * Sends a request up to {@code attempts} times, counted anew after each that has progressed.
     */
    private <T> T attempt(int attempts, LongSupplier progress, Request<T> request)
            throws IOException {
        for (int failed = 1; ; failed++) {
            long before = progress.getAsLong();
            try {
                return request.send();
            } catch (HubException e) {
                failed = progress.getAsLong() > before ? 1 : failed;
                if (!e.isTemporary() || failed >= attempts) {
                    throw e;
                }
                sleep(e.waitOr(backoff.multipliedBy(1L << (failed - 1))));
            }
        }
    }

    private static void sleep(Duration time) throws IOException {
        try {
            Thread.sleep(time.toMillis());
        } catch (InterruptedException e) {
            throw interrupted();
        }
    }

    private static IOException interrupted() {
        Thread.currentThread().interrupt();
        return new InterruptedIOException("interrupted while a model is downloaded");
    }

    private interface RedirectRule {
        boolean follows(URI from, HttpHeaders answer) throws IOException;
    }

    /**
     * Sends a request and follows redirects. Throws unless the status is 200, 206 or a redirect.
     */
    private HttpResponse<Void> send(
            String method, URI uri, long from, Sink sink, RedirectRule redirects)
            throws IOException {
        URI at = uri;
        for (int i = 0; i < REDIRECTS; i++) {
            HttpRequest.Builder request =
                    HttpRequest.newBuilder(at)
                            .method(method, BodyPublishers.noBody())
                            .header("User-Agent", "djl-collectives")
                            .header("Accept-Encoding", "identity");
            if (isSameOrigin(at, endpoint)) {
                token.ifPresent(each -> request.header("Authorization", "Bearer " + each));
            }
            if (from > 0) {
                request.header("Range", "bytes=" + from + "-");
            }
            HttpResponse<Void> response = exchange(request.build(), sink);
            if (response.statusCode() / 100 != 3) {
                throwIfRefused(at, response.statusCode(), response.headers());
                return response;
            }
            if (!redirects.follows(at, response.headers())) {
                return response;
            }
            URI next = at.resolve(location(response.headers()));
            boolean safe = "https".equalsIgnoreCase(next.getScheme());
            check(
                    safe || "http".equals(next.getScheme()) && "http".equals(at.getScheme()),
                    "%s redirects to %s: only https is followed, and http from http",
                    at,
                    next);
            at = next;
        }
        throw HubException.lasting(uri + " redirects more than " + REDIRECTS + " times");
    }

    private static String location(HttpHeaders headers) throws IOException {
        String location = headers.firstValue("Location").orElse("");
        check(!location.isEmpty(), "a redirect has no Location");
        try {
            return URI.create(location).toString();
        } catch (IllegalArgumentException e) {
            throw HubException.lasting("a redirect's Location is no URI: " + location);
        }
    }

    private static boolean isSameOrigin(URI a, URI b) {
        return a.getScheme().equalsIgnoreCase(b.getScheme())
                && String.valueOf(a.getHost()).equalsIgnoreCase(b.getHost())
                && port(a) == port(b);
    }

    private static int port(URI uri) {
        return uri.getPort() >= 0 ? uri.getPort() : uri.getScheme().length() == 5 ? 443 : 80;
    }

    private HttpResponse<Void> exchange(HttpRequest request, Sink sink) throws IOException {
        Body body = new Body(sink);
        CompletableFuture<HttpResponse<Void>> answer = http.sendAsync(request, body::subscriber);
        long seen = -1;
        try {
            while (true) {
                try {
                    return answer.get(patience.toMillis(), TimeUnit.MILLISECONDS);
                } catch (TimeoutException e) {
                    if (body.received == seen) {
                        throw HubException.temporary(
                                "%s sends nothing for %d s"
                                        .formatted(request.uri(), patience.toSeconds()),
                                null,
                                e);
                    }
                    seen = body.received;
                }
            }
        } catch (InterruptedException e) {
            throw interrupted();
        } catch (ExecutionException e) {
            if (body.failure != null) {
                throw body.failure;
            }
            Throwable cause = e.getCause();
            String message =
                    request.uri().resolve("/")
                            + ": "
                            + (cause.getMessage() == null ? cause : cause.getMessage());
            if (cause instanceof ConnectException) {
                message +=
                        "; without a connection to it, set a proxy by -Dhttps.proxyHost, another"
                                + " hub by HF_ENDPOINT, or use the directory of a model";
            }
            throw HubException.temporary(message, null, cause);
        } finally {
            answer.cancel(true);
        }
    }

    /** Passes the body of an answer with status 200 or 206 to a sink; ignores other bodies. */
    private static final class Body {

        private final Sink sink;
        private volatile long received;
        private volatile IOException failure; // of the sink

        Body(Sink sink) {
            this.sink = sink;
        }

        HttpResponse.BodySubscriber<Void> subscriber(ResponseInfo info) {
            int status = info.statusCode();
            if (sink == null || status != 200 && status != 206) {
                return BodySubscribers.replacing(null);
            }
            pass(() -> sink.begin(status, info.headers()));
            return BodySubscribers.ofByteArrayConsumer(part -> part.ifPresent(this::write));
        }

        private void write(byte[] part) {
            pass(() -> sink.write(ByteBuffer.wrap(part)));
            received += part.length;
        }

        /** Calls the sink; an exception of it ends the request. */
        private void pass(FileWrites.Body call) {
            try {
                call.run();
            } catch (IOException e) {
                failure = e;
                throw new UncheckedIOException(e);
            }
        }
    }

    private void throwIfRefused(URI uri, int status, HttpHeaders headers) throws IOException {
        if (status == 200 || status == 206) {
            return;
        }
        String code = headers.firstValue("X-Error-Code").orElse("");
        String said = headers.firstValue("X-Error-Message").map(each -> ": " + each).orElse("");
        if (status == 408 || status == 429 || status >= 500) {
            throw HubException.temporary(
                    "%s: status %d%s".formatted(uri, status, said), waitingTime(headers), null);
        }
        String advice =
                token.isEmpty()
                        ? "; if it is private, set HF_TOKEN"
                        : ", or the token has no access to it";
        throw HubException.lasting(
                switch (code.isEmpty() ? "" + status : code) {
                    case "GatedRepo" ->
                            ("%s is for accounts that have accepted its conditions: accept them at"
                                            + " %s, and set HF_TOKEN to a token of the account%s")
                                    .formatted(name, uri("/" + name), said);
                    case "RevisionNotFound" ->
                            "%s has no such branch, tag or commit: %s%s".formatted(name, uri, said);
                    case "RepoNotFound", "401", "403", "404" ->
                            "%s has no model %s%s%s (status %d)"
                                    .formatted(endpoint, name, advice, said, status);
                    default -> "%s: status %d%s".formatted(uri, status, said);
                });
    }

    /** Returns how long the hub asks to wait; null if it does not say. */
    private static Duration waitingTime(HttpHeaders headers) {
        String after = headers.firstValue("Retry-After").orElse("");
        Matcher limit = RATE_LIMIT.matcher(headers.firstValue("RateLimit").orElse(""));
        String seconds = after.matches("\\d{1,9}") ? after : limit.find() ? limit.group(1) : null;
        if (seconds == null || seconds.length() > 9) {
            return null;
        }
        Duration asked = Duration.ofSeconds(Long.parseLong(seconds));
        return asked.compareTo(MAX_WAIT) > 0 ? MAX_WAIT : asked;
    }

    private static void check(boolean right, String message, Object... arguments)
            throws IOException {
        if (!right) {
            throw HubException.lasting(String.format(Locale.ROOT, message, arguments));
        }
    }
}
