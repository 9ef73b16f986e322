// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import com.sun.net.httpserver.HttpExchange;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import org.djlx.llm.engine.LoadingProgress;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(120)
class ModelHubTest {

    private static final String FIRST = "model-00001-of-00002.safetensors";
    private static final String SECOND = "model-00002-of-00002.safetensors";
    private static final List<String> NEEDED =
            List.of(
                    "additional_chat_templates/tool_use.jinja",
                    "chat_template.jinja",
                    "config.json",
                    "generation_config.json",
                    FIRST,
                    SECOND,
                    "model.safetensors.index.json",
                    "tokenizer.json",
                    "tokenizer_config.json");

    @TempDir private Path folder;
    private FakeHub hub;

    @BeforeEach
    void start() throws IOException {
        hub = new FakeHub();
        put(
                "config.json",
                LlamaFiles.json(LlamaFiles.config(ScalarType.FLOAT32, false)).toString());
        for (String file : NEEDED) {
            if (!hub.files.containsKey(file)) {
                put(file, "{\"of\": \"" + file + "\"}");
            }
        }
        put(
                "model.safetensors.index.json",
                "{\"weight_map\": {\"a\": \"%s\", \"b\": \"%s\"}}".formatted(FIRST, SECOND));
        for (String file : List.of(FIRST, SECOND)) {
            byte[] bytes = new byte[300_000];
            new Random(file.hashCode()).nextBytes(bytes);
            hub.files.put(file, bytes);
        }
        put("README.md", "not needed");
        put("pytorch_model.bin", "not needed");
        put("original/model.safetensors", "not needed");
        put("onnx/config.json", "not needed");
    }

    @AfterEach
    void stop() {
        hub.close();
    }

    private void put(String file, String text) {
        hub.files.put(file, text.getBytes(StandardCharsets.UTF_8));
    }

    private ModelHub.Builder builder() {
        Map<String, String> environment =
                Map.of("HF_HOME", folder.toString(), "HF_ENDPOINT", hub.endpoint());
        ModelHub.Builder builder = ModelHub.builder(environment);
        builder.backoff = Duration.ofMillis(1);
        return builder;
    }

    private Path download() throws IOException {
        return builder().build().download(FakeHub.NAME);
    }

    private String refused(UnaryOperator<ModelHub.Builder> options) {
        return assertThrows(
                        IOException.class,
                        () -> options.apply(builder()).build().download(FakeHub.NAME))
                .getMessage();
    }

    private String refused() {
        return refused(builder -> builder);
    }

    private Path model() {
        return folder.resolve("hub/models--org--tiny-1.0");
    }

    private Path blob(String file) {
        return model().resolve("blobs/" + FakeHub.hash(hub.files.get(file), true));
    }

    private static List<String> below(Path directory) throws IOException {
        try (Stream<Path> all = Files.walk(directory)) {
            return all.filter(each -> !Files.isDirectory(each))
                    .map(each -> directory.relativize(each).toString())
                    .sorted()
                    .toList();
        }
    }

    private void checkFiles(Path snapshot) throws IOException {
        assertEquals(new ArrayList<>(new TreeSet<>(NEEDED)), below(snapshot));
        for (String file : NEEDED) {
            assertArrayEquals(
                    hub.files.get(file), Files.readAllBytes(snapshot.resolve(file)), file);
        }
    }

    @Test
    void filesThatAreNeededLieInTheLayoutOfHuggingfaceHub() throws Exception {
        Path snapshot = download();
        assertEquals(model().resolve("snapshots/" + FakeHub.COMMIT), snapshot);
        checkFiles(snapshot);
        assertEquals(FakeHub.COMMIT, Files.readString(model().resolve("refs/main")));
        Path small = Files.readSymbolicLink(snapshot.resolve("config.json"));
        String sha1 = FakeHub.hash(hub.files.get("config.json"), false);
        assertEquals("../../blobs/" + sha1, small.toString());
        Path deep = snapshot.resolve("additional_chat_templates/tool_use.jinja");
        assertTrue(Files.readSymbolicLink(deep).toString().startsWith("../../../blobs/"));
        Path large = Files.readSymbolicLink(snapshot.resolve(FIRST));
        assertEquals("../../blobs/" + blob(FIRST).getFileName(), large.toString());
        assertEquals(NEEDED.size(), below(model().resolve("blobs")).size());
        // Nothing is loaded again.
        hub.requests.clear();
        assertEquals(snapshot, download());
        assertEquals(List.of("GET /api/models/org/tiny-1.0/revision/main"), hub.requests);
        hub.requests.clear();
        assertEquals(
                snapshot, builder().optRevision(FakeHub.COMMIT).build().download(FakeHub.NAME));
        assertEquals(List.of(), hub.requests);
    }

    @Test
    void branchesWithSlashesAndOptionsBeforeTheEnvironment() throws Exception {
        Path other = folder.resolve("other");
        Path snapshot =
                builder()
                        .optCache(other)
                        .optRevision("refs/pr/1")
                        .optToken("hf_own")
                        .build()
                        .directory(FakeHub.NAME);
        Path model = other.resolve("models--org--tiny-1.0");
        assertEquals(model.resolve("snapshots/" + FakeHub.COMMIT), snapshot);
        assertEquals(FakeHub.COMMIT, Files.readString(model.resolve("refs/refs/pr/1")));
        String first = "GET /api/models/org/tiny-1.0/revision/refs%2Fpr%2F1 token=Bearer hf_own";
        assertEquals(first, hub.requests.get(0));
    }

    @Test
    void tokenOfEnvironmentOrFileGoesToTheHubOnly() throws Exception {
        Files.writeString(folder.resolve("token"), "hf_file\n");
        Path snapshot = download();
        assertTrue(hub.requests("GET storage").size() > 2);
        for (String request : hub.requests) {
            boolean own = !request.contains(" storage");
            assertEquals(own, request.endsWith(" token=Bearer hf_file"), request);
        }
        hub.requests.clear();
        ModelHub.Builder builder =
                ModelHub.builder(
                        Map.of(
                                "HF_HUB_CACHE",
                                folder.resolve("hub").toString(),
                                "HF_ENDPOINT",
                                hub.endpoint() + "/",
                                "HF_TOKEN",
                                "hf_variable"));
        assertEquals(snapshot, builder.build().download(FakeHub.NAME));
        assertTrue(hub.requests.get(0).endsWith(" token=Bearer hf_variable"));
    }

    @Test
    void offlineUsesDownloadedFiles() throws Exception {
        String refused = refused(builder -> builder.optOffline(true));
        assertTrue(refused.contains("org/tiny-1.0 (main) is not complete in " + folder), refused);
        Path snapshot = download();
        hub.requests.clear();
        ModelHub.Builder builder =
                ModelHub.builder(Map.of("HF_HOME", folder.toString(), "HF_HUB_OFFLINE", "1"));
        assertEquals(snapshot, builder.build().download(FakeHub.NAME));
        assertEquals(List.of(), hub.requests);
        Files.delete(blob(SECOND));
        assertThrows(IOException.class, () -> builder.build().download(FakeHub.NAME));
    }

    @Test
    void unreachableHubTakesWhatIsThere() throws Exception {
        Path snapshot = download();
        hub.close();
        assertEquals(snapshot, download());
        Files.delete(snapshot.resolve("tokenizer.json"));
        String refused = refused();
        assertTrue(refused.contains(hub.endpoint()), refused);
        assertTrue(refused.contains("set a proxy by -Dhttps.proxyHost, another hub"), refused);
    }

    @Test
    void connectionsThatAreCutAreResumed() throws Exception {
        AtomicInteger cuts = new AtomicInteger();
        hub.fault =
                exchange -> {
                    String path = exchange.getRequestURI().getPath();
                    if (path.startsWith("/stored/model-") && cuts.getAndIncrement() < 20) {
                        String file = path.substring("/stored/".length());
                        FakeHub.send(exchange, hub.files.get(file), 20_000);
                        return true;
                    }
                    return false;
                };
        checkFiles(download());
        List<String> rest = hub.requests("GET storage/stored/" + FIRST + " bytes=");
        assertTrue(rest.contains("GET storage/stored/" + FIRST + " bytes=20000-"), rest::toString);
    }

    @Test
    void laterProgramResumes() throws Exception {
        byte[] bytes = hub.files.get(FIRST);
        Files.createDirectories(blob(FIRST).getParent());
        Path incomplete = Path.of(blob(FIRST) + ".incomplete");
        Files.write(incomplete, Arrays.copyOf(bytes, 123_456));
        List<String> lines = new ArrayList<>();
        checkFiles(
                builder()
                        .optProgress(new LoadingProgress(lines::add))
                        .build()
                        .download(FakeHub.NAME));
        assertEquals(
                List.of("GET storage/stored/" + FIRST + " bytes=123456-"),
                hub.requests("GET storage/stored/" + FIRST));
        assertFalse(Files.exists(incomplete));
        assertEquals(
                "Downloading org/tiny-1.0: 600,000 bytes in 2 files from " + hub.endpoint(),
                lines.get(0));
        assertTrue(lines.contains("Downloading org/tiny-1.0: 90 %"), lines::toString);
    }

    /** Its bytes are of another file, or more than the file has. */
    @ParameterizedTest
    @ValueSource(ints = {1000, 300_000, 300_001})
    void wrongBeginningIsLoadedAnew(int length) throws Exception {
        Files.createDirectories(blob(FIRST).getParent());
        Files.write(Path.of(blob(FIRST) + ".incomplete"), new byte[length]);
        checkFiles(download());
    }

    @Test
    void hostWithoutRangesSendsAllAgain() throws Exception {
        Files.createDirectories(blob(FIRST).getParent());
        Files.write(
                Path.of(blob(FIRST) + ".incomplete"), Arrays.copyOf(hub.files.get(FIRST), 1000));
        hub.hasRanges = false;
        checkFiles(download());
    }

    @Test
    void damagedFileIsRefusedAndNotKept() throws Exception {
        hub.fault =
                exchange -> {
                    if (exchange.getRequestURI().getPath().equals("/stored/" + FIRST)) {
                        FakeHub.send(exchange, new byte[300_000], Integer.MAX_VALUE);
                        return true;
                    }
                    return false;
                };
        String refused = refused();
        assertTrue(refused.contains(FIRST + " is damaged: 300,000 bytes with the hash"), refused);
        assertFalse(Files.exists(blob(FIRST)));
        assertFalse(Files.exists(model().resolve("refs/main")));
        hub.fault = exchange -> false;
        checkFiles(download());
    }

    @ParameterizedTest
    @ValueSource(ints = {299_999, 300_001})
    void wrongSizeIsRefused(int size) {
        hub.fault =
                exchange -> {
                    if (exchange.getRequestURI().getPath().equals("/stored/" + FIRST)) {
                        FakeHub.send(exchange, new byte[size], Integer.MAX_VALUE);
                        return true;
                    }
                    return false;
                };
        assertTrue(refused().contains(FIRST + ": the hub sends"), refused());
    }

    private static boolean status(HttpExchange exchange, int status, String... headers)
            throws IOException {
        for (int i = 0; i < headers.length; i += 2) {
            exchange.getResponseHeaders().add(headers[i], headers[i + 1]);
        }
        exchange.sendResponseHeaders(status, -1);
        return true;
    }

    @ParameterizedTest
    @CsvSource({
        "401, '', 'has no model org/tiny-1.0; if it is private, set HF_TOKEN'",
        "404, RepoNotFound, 'has no model org/tiny-1.0; if it is private, set HF_TOKEN'",
        "403, GatedRepo, 'is for accounts that have accepted its conditions: accept them at'",
        "404, RevisionNotFound, 'org/tiny-1.0 has no such branch, tag or commit'",
        "400, '', 'status 400'",
    })
    void refusalSaysWhatToDo(int status, String code, String message) {
        hub.fault = exchange -> status(exchange, status, "X-Error-Code", code);
        assertTrue(refused().contains(message), refused());
        assertEquals(2, hub.requests.size()); // One each: they are not tried again.
    }

    @Test
    void refusalOfATokenSaysSo() {
        hub.fault = exchange -> status(exchange, 401);
        String refused = refused(builder -> builder.optToken("hf_wrong"));
        assertTrue(refused.contains("or the token has no access to it"), refused);
        assertFalse(refused.contains("hf_wrong"), refused);
    }

    @ParameterizedTest
    @CsvSource({"429, Retry-After, 0", "429, RateLimit, '\"resolvers\";r=0;t=0'", "503, x, y"})
    void busyHubIsAskedAgain(int status, String header, String value) throws Exception {
        Map<String, Integer> asked = new ConcurrentHashMap<>();
        hub.fault =
                exchange ->
                        asked.merge(
                                                exchange.getRequestMethod()
                                                        + exchange.getRequestURI(),
                                                1,
                                                Integer::sum)
                                        < 3
                                && status(exchange, status, header, value);
        ModelHub.Builder builder = builder();
        // A wait that the hub names is not this one, which would take hours.
        builder.backoff = status == 429 ? Duration.ofHours(1) : builder.backoff;
        checkFiles(builder.build().download(FakeHub.NAME));
    }

    @Test
    void hubThatStaysBusyIsGivenUp() {
        hub.fault = exchange -> status(exchange, 429, "Retry-After", "0");
        assertTrue(refused().contains("status 429"), refused());
        hub.requests.clear();
        refused();
        assertEquals(5, hub.requests.size());
    }

    @Test
    void hostThatSendsNothingIsGivenUp() throws Exception {
        CountDownLatch end = new CountDownLatch(1);
        hub.fault =
                exchange -> {
                    try {
                        end.await();
                    } catch (InterruptedException e) {
                        Thread.currentThread().interrupt();
                    }
                    return true;
                };
        ModelHub.Builder builder = builder();
        builder.patience = Duration.ofMillis(20);
        IOException e =
                assertThrows(IOException.class, () -> builder.build().download(FakeHub.NAME));
        assertTrue(e.getMessage().contains("sends nothing"), e.getMessage());
        end.countDown();
    }

    @ParameterizedTest
    @ValueSource(strings = {"file:///etc/passwd", "ftp://127.0.0.1/x", "http:///x y"})
    void redirectsToOtherSchemesAreRefused(String location) {
        hub.fault =
                exchange ->
                        exchange.getRequestMethod().equals("GET")
                                && exchange.getRequestURI().getPath().contains("/resolve/")
                                && status(exchange, 302, "Location", location);
        assertTrue(refused().contains(location), refused());
    }

    @Test
    void endlessRedirectsAreRefused() {
        hub.fault = exchange -> status(exchange, 302, "Location", "/again");
        assertTrue(refused().contains("redirects more than 10 times"), refused());
    }

    @ParameterizedTest
    @ValueSource(strings = {"../evil", "/etc/evil", "a/../../evil", "a//b", "a\\b", "."})
    void listsWithPathsToOtherDirectoriesAreRefused(String file) throws Exception {
        put(file, "evil");
        assertTrue(refused().contains("lists the file '" + file + "'"), refused());
        assertFalse(Files.exists(model()));
    }

    @ParameterizedTest
    @ValueSource(strings = {"../evil.safetensors", "/evil.safetensors", "a/b.safetensors", "x.bin"})
    void indexesWithPathsToOtherDirectoriesAreRefused(String file) {
        put("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"" + file + "\"}}");
        assertTrue(refused().contains("names the file '" + file + "'"), refused());
    }

    @Test
    void answersThatAreNotTheHubsAreRefused() {
        hub.fault =
                exchange -> {
                    FakeHub.send(exchange, "<html>".getBytes(StandardCharsets.UTF_8), 99);
                    return true;
                };
        assertTrue(refused().contains("is not a list of a model's files"), refused());
        hub.fault =
                exchange ->
                        exchange.getRequestMethod().equals("HEAD")
                                && status(exchange, 200, "ETag", "../../evil");
        assertTrue(refused().contains("the ETag '../../evil', which is neither"), refused());
    }

    @Test
    void modelsThatCannotBeLoadedAreRefusedBeforeTheirWeightsCome() {
        put("config.json", "{\"model_type\": \"mamba\"}");
        Exception e = assertThrows(IllegalArgumentException.class, this::download);
        assertTrue(e.getMessage().contains("mamba"), e.getMessage());
        assertEquals(List.of(), hub.requests("GET storage/stored/model"));
        hub.files.remove("tokenizer.json");
        assertTrue(refused().contains("has no tokenizer.json"), refused());
        hub.files.remove("model.safetensors.index.json");
        put("tokenizer.json", "{}");
        assertTrue(refused().contains("has no model.safetensors"), refused());
    }

    @ParameterizedTest
    @ValueSource(
            strings = {
                "tiny",
                "/a/b",
                "../a",
                "a/..",
                "a/b/c",
                "a/b--c",
                "a/b.git",
                "a/b.gguf",
                "a/b c",
                ""
            })
    void otherTextsAreNotNames(String text) {
        assertFalse(ModelHub.isName(text));
        assertThrows(IllegalArgumentException.class, () -> builder().build().download(text));
        if (!text.isEmpty()) { // This directory.
            Exception e =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> builder().build().directory(text));
            assertTrue(e.getMessage().contains("is not a directory"), e.getMessage());
        }
        assertEquals(List.of(), hub.requests);
    }

    @Test
    void wrongOptionsAreRefused() {
        for (String endpoint : List.of("hub", "ftp://hub", "https:///x", "https://a b")) {
            assertThrows(
                    IllegalArgumentException.class, () -> builder().optEndpoint(endpoint).build());
        }
        for (String revision : List.of("", "../main", "/main", "a/../b", "a b", "a//b")) {
            assertThrows(
                    IllegalArgumentException.class, () -> builder().optRevision(revision).build());
        }
        assertThrows(IllegalArgumentException.class, () -> builder().optToken("a\nb").build());
    }

    /** Each file comes once; who comes second waits for the first. */
    @Test
    void processesAtOnceShareTheDownload() throws Exception {
        CountDownLatch begun = new CountDownLatch(2); // A file of each process, or both of one.
        hub.fault =
                exchange -> {
                    if (exchange.getRequestURI().getPath().startsWith("/stored/model-")) {
                        begun.countDown();
                        try {
                            begun.await();
                        } catch (InterruptedException e) {
                            Thread.currentThread().interrupt();
                        }
                    }
                    return false;
                };
        List<Process> processes = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            ProcessBuilder java =
                    new ProcessBuilder(
                            Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                            "-XX:TieredStopAtLevel=1",
                            "-cp",
                            System.getProperty("java.class.path"),
                            Main.class.getName());
            java.environment().put("HF_HOME", folder.toString());
            java.environment().put("HF_ENDPOINT", hub.endpoint());
            processes.add(java.redirectErrorStream(true).start());
        }
        for (Process process : processes) {
            String output = new String(process.getInputStream().readAllBytes());
            assertEquals(0, process.waitFor(), output);
        }
        checkFiles(model().resolve("snapshots/" + FakeHub.COMMIT));
        for (String file : NEEDED) {
            long sent =
                    hub.requests.stream()
                            .filter(each -> each.matches("GET (storage)?/stored/" + file))
                            .count();
            assertEquals(1, sent, file);
        }
    }

    /** A process that downloads the model. */
    static final class Main {

        public static void main(String[] args) throws IOException {
            ModelHub.builder().build().download(FakeHub.NAME);
        }
    }

    private String python(Map<String, String> variables, String program) throws Exception {
        ProcessBuilder python = new ProcessBuilder("python3", "-c", program);
        python.environment().put("HF_HOME", folder.toString());
        python.environment().put("HF_ENDPOINT", hub.endpoint());
        python.environment().put("HF_HUB_DISABLE_TELEMETRY", "1");
        python.environment().putAll(variables);
        Process process = python.redirectErrorStream(true).start();
        String output = new String(process.getInputStream().readAllBytes()).strip();
        assertEquals(0, process.waitFor(), output);
        return output.substring(output.lastIndexOf('\n') + 1);
    }

    private void requireHuggingfaceHub() throws Exception {
        Process process =
                new ProcessBuilder("python3", "-c", "import huggingface_hub")
                        .redirectErrorStream(true)
                        .start();
        process.getInputStream().readAllBytes();
        assumeTrue(process.waitFor() == 0, "python3 has no huggingface_hub");
    }

    /** huggingface_hub itself downloads from the same server, and nothing is left to load. */
    @Test
    void findsDownloadsOfPython() throws Exception {
        requireHuggingfaceHub();
        String path =
                python(
                        Map.of(),
                        "from huggingface_hub import hf_hub_download as get\n"
                                + "for file in '''%s'''.split():\n"
                                        .formatted(String.join(" ", NEEDED))
                                + "    path = get('%s', file)\n".formatted(FakeHub.NAME)
                                + "print(path)");
        assertEquals(download().resolve("tokenizer_config.json"), Path.of(path));
        hub.requests.clear();
        checkFiles(download());
        assertEquals(List.of("GET /api/models/org/tiny-1.0/revision/main"), hub.requests);
        checkFiles(builder().optOffline(true).build().download(FakeHub.NAME));
    }

    @Test
    void pythonFindsDownloadedFiles() throws Exception {
        requireHuggingfaceHub();
        Path snapshot = download();
        hub.requests.clear();
        String program =
                "from huggingface_hub import hf_hub_download as get\n"
                        + "for file in '''%s'''.split():\n".formatted(String.join(" ", NEEDED))
                        + "    path = get('%s', file)\n".formatted(FakeHub.NAME)
                        + "print(path)";
        Path last = snapshot.resolve("tokenizer_config.json");
        assertEquals(last.toString(), python(Map.of("HF_HUB_OFFLINE", "1"), program));
        assertEquals(List.of(), hub.requests);
        assertEquals(last.toString(), python(Map.of(), program));
        assertEquals(List.of(), hub.requests("GET"));
    }
}
