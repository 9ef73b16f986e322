// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.net.http.WebSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;

/**
 * Chromium without a window, steered over the <a
 * href="https://chromedevtools.github.io/devtools-protocol/">DevTools protocol</a>: types and
 * clicks as a person does.
 */
final class Browser implements AutoCloseable {

    private final Process process;
    private final HttpClient client = HttpClient.newHttpClient();
    private final Map<Integer, CompletableFuture<JsonObject>> answers = new ConcurrentHashMap<>();
    private final WebSocket socket;
    private int calls;

    /**
     * Starts one.
     *
     * @param program the program
     * @param profile an empty directory
     */
    Browser(Path program, Path profile) throws IOException, InterruptedException {
        ProcessBuilder builder =
                new ProcessBuilder(
                                program.toString(),
                                "--headless=new",
                                "--no-sandbox", // The sandbox does not work for root.
                                "--disable-gpu",
                                "--disable-dev-shm-usage",
                                "--no-first-run",
                                "--remote-debugging-port=0",
                                "--window-size=900,700",
                                "--user-data-dir=" + profile,
                                "about:blank")
                        .redirectErrorStream(true);
        builder.environment().put("TMPDIR", profile.toString()); // Killed, it leaves files there.
        process = builder.start();
        BufferedReader output = process.inputReader();
        String line = output.readLine();
        while (line != null && !line.startsWith("DevTools listening on ")) {
            line = output.readLine();
        }
        if (line == null) {
            throw new IOException(program + " does not start");
        }
        URI debugger = URI.create(line.substring("DevTools listening on ".length()));
        Thread drain = new Thread(() -> output.lines().forEach(ignored -> {}), "browser-output");
        drain.setDaemon(true);
        drain.start();
        socket =
                client.newWebSocketBuilder()
                        .buildAsync(page(debugger.getPort()), new Listener())
                        .join();
    }

    /** Returns the program if this host has one. */
    static Optional<Path> find() {
        return Stream.of(System.getenv("PATH").split(File.pathSeparator))
                .flatMap(
                        folder ->
                                List.of("chromium", "chromium-browser", "google-chrome").stream()
                                        .map(name -> Path.of(folder, name)))
                .filter(Files::isExecutable)
                .findFirst();
    }

    private URI page(int port) throws IOException, InterruptedException {
        URI list = URI.create("http://127.0.0.1:" + port + "/json/list");
        while (true) {
            String json =
                    client.send(HttpRequest.newBuilder(list).build(), BodyHandlers.ofString())
                            .body();
            for (JsonElement target : JsonParser.parseString(json).getAsJsonArray()) {
                JsonObject object = target.getAsJsonObject();
                if (object.get("type").getAsString().equals("page")) {
                    return URI.create(object.get("webSocketDebuggerUrl").getAsString());
                }
            }
            Thread.sleep(20);
        }
    }

    /** Puts messages together and hands answers to the calls that wait for them. */
    private final class Listener implements WebSocket.Listener {

        private final StringBuilder text = new StringBuilder();

        @Override
        public CompletionStage<?> onText(WebSocket socket, CharSequence data, boolean last) {
            text.append(data);
            if (last) {
                JsonObject message = JsonParser.parseString(text.toString()).getAsJsonObject();
                text.setLength(0);
                if (message.has("id")) {
                    answers.remove(message.get("id").getAsInt()).complete(message);
                }
            }
            socket.request(1);
            return null;
        }

        @Override
        public void onError(WebSocket socket, Throwable error) {
            answers.values().forEach(answer -> answer.completeExceptionally(error));
        }
    }

    private JsonObject call(String method, JsonObject parameters) {
        CompletableFuture<JsonObject> answer = new CompletableFuture<>();
        int id = ++calls;
        answers.put(id, answer);
        JsonObject message = new JsonObject();
        message.addProperty("id", id);
        message.addProperty("method", method);
        message.add("params", parameters);
        socket.sendText(message.toString(), true).join();
        JsonObject result = answer.join();
        if (!result.has("result")) {
            throw new IllegalStateException(method + ": " + result);
        }
        return result.getAsJsonObject("result");
    }

    void open(String address) {
        JsonObject parameters = new JsonObject();
        parameters.addProperty("url", address);
        call("Page.navigate", parameters);
    }

    /** Returns the value of an expression. */
    String evaluate(String expression) {
        JsonObject parameters = new JsonObject();
        parameters.addProperty("expression", expression);
        parameters.addProperty("returnByValue", true);
        JsonObject result = call("Runtime.evaluate", parameters);
        if (result.has("exceptionDetails")) {
            throw new IllegalStateException(expression + ": " + result);
        }
        JsonElement value = result.getAsJsonObject("result").get("value");
        return value == null || !value.isJsonPrimitive() ? "" : value.getAsString();
    }

    /** Waits until an expression is true; the test's own timeout is the limit. */
    void await(String condition) throws InterruptedException {
        while (!evaluate("!!(" + condition + ")").equals("true")) {
            Thread.sleep(10);
        }
    }

    /** Types into what has the focus. */
    void type(String text) {
        JsonObject parameters = new JsonObject();
        parameters.addProperty("text", text);
        call("Input.insertText", parameters);
    }

    void pressEnter() {
        for (String type : List.of("keyDown", "keyUp")) {
            JsonObject parameters = new JsonObject();
            parameters.addProperty("type", type);
            parameters.addProperty("key", "Enter");
            parameters.addProperty("code", "Enter");
            parameters.addProperty("text", "\r");
            parameters.addProperty("windowsVirtualKeyCode", 13);
            call("Input.dispatchKeyEvent", parameters);
        }
    }

    /** Sets the size of the page, and which colours the reader prefers. */
    void resize(int width, int height, boolean dark) {
        JsonObject size = new JsonObject();
        size.addProperty("width", width);
        size.addProperty("height", height);
        size.addProperty("deviceScaleFactor", 1);
        size.addProperty("mobile", false);
        call("Emulation.setDeviceMetricsOverride", size);
        JsonObject media = new JsonObject();
        String scheme = "[{\"name\": \"prefers-color-scheme\", \"value\": \"%s\"}]";
        media.add("features", JsonParser.parseString(scheme.formatted(dark ? "dark" : "light")));
        call("Emulation.setEmulatedMedia", media);
    }

    /** Clicks on the middle of the first element of a CSS selector. */
    void click(String selector) {
        String found = "document.querySelector(`" + selector + "`)";
        evaluate(found + ".scrollIntoView({block: 'nearest'})");
        String box = found + ".getBoundingClientRect()";
        for (String type : List.of("mousePressed", "mouseReleased")) {
            JsonObject parameters = new JsonObject();
            parameters.addProperty("type", type);
            parameters.addProperty("x", number(box + ".x + " + box + ".width / 2"));
            parameters.addProperty("y", number(box + ".y + " + box + ".height / 2"));
            parameters.addProperty("button", "left");
            parameters.addProperty("clickCount", 1);
            call("Input.dispatchMouseEvent", parameters);
        }
    }

    private double number(String expression) {
        return Double.parseDouble(evaluate(expression));
    }

    /** Writes what is to be seen to a PNG file. */
    void photograph(Path file) throws IOException {
        String data = call("Page.captureScreenshot", new JsonObject()).get("data").getAsString();
        Files.createDirectories(file.toAbsolutePath().getParent());
        Files.write(file, Base64.getDecoder().decode(data));
    }

    @Override
    public void close() {
        socket.abort();
        process.descendants().forEach(ProcessHandle::destroyForcibly);
        process.destroyForcibly();
        process.onExit().join();
    }
}
