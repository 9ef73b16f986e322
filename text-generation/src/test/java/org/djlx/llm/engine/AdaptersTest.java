// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static java.nio.charset.StandardCharsets.ISO_8859_1;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.reflect.Proxy;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Stream;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.Generation;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.TextGenerator;
import org.djlx.llm.model.AdapterFiles;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.ReferenceModels;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** LoRA adapters beside the weights, compared with models that have them merged. */
@Timeout(120)
class AdaptersTest {

    private static final Duration LONG = Duration.ofSeconds(60);
    private static final List<AdapterFiles> ADAPTERS =
            List.of(
                    new AdapterFiles(5, 3, false, AdapterFiles.ALL, 1),
                    new AdapterFiles(64, 16, true, AdapterFiles.ALL, 2),
                    new AdapterFiles(1, 2, false, "self_attn.v_proj|mlp.(up|down)_proj", 3),
                    new AdapterFiles(8, 8, false, "self_attn.(q|o)_proj", 4));

    @TempDir private static Path directory;

    @BeforeAll
    static void write() throws IOException {
        ByteTokens.writeModel(directory.resolve("base"), 3);
        for (int i = 0; i < ADAPTERS.size(); i++) {
            ADAPTERS.get(i).write(directory.resolve("base"), adapter(i));
            ADAPTERS.get(i).merge(directory.resolve("base"), directory.resolve("merged-" + i));
        }
    }

    private static Path adapter(int index) {
        return directory.resolve("adapter-" + index);
    }

    private static int[] prompt(int length, int seed) {
        return new Random(seed).ints(length, 0, 131).toArray();
    }

    private static GenerationRequest request(String adapter, int[] prompt, int tokens) {
        return TextEngineTest.request(prompt).optMaxTokens(tokens).optAdapter(adapter).build();
    }

    private static List<GeneratedPiece> generate(TextGenerator generator, GenerationRequest request)
            throws Exception {
        return generator.submit(request).await(LONG);
    }

    /** Generates with a model that has no adapters. */
    private static List<GeneratedPiece> generate(Path model, int[] prompt, int tokens)
            throws Exception {
        try (TextEngine merged = TextEngine.builder().setDirectory(model).build()) {
            return generate(merged, request(null, prompt, tokens));
        }
    }

    private static int[] tokens(List<GeneratedPiece> pieces) {
        return pieces.stream().mapToInt(GeneratedPiece::token).toArray();
    }

    private static void assertSame(List<GeneratedPiece> expected, List<GeneratedPiece> actual) {
        assertArrayEquals(tokens(expected), tokens(actual));
        for (int i = 0; i < expected.size(); i++) {
            assertEquals(
                    expected.get(i).logProbability(), actual.get(i).logProbability(), 1e-4, "" + i);
        }
    }

    /** Several adapters in one batch, with prompts of one token, few, and many tokens. */
    @ParameterizedTest
    @CsvSource({"1, 4096", "2, 4096", "4, 4096", "2, 16"})
    void generatesWhatMergedModelsGenerate(int ranks, int prefillTokens) throws Exception {
        TextEngine.Builder builder =
                TextEngine.builder()
                        .setDirectory(directory.resolve("base"))
                        .optRanks(ranks)
                        .optPrefillTokens(prefillTokens);
        for (int i = 0; i < ADAPTERS.size(); i++) {
            builder.optAdapter("a" + i, adapter(i));
        }
        try (TextEngine generator = builder.build()) {
            assertEquals(List.of("a0", "a1", "a2", "a3"), generator.adapters());
            List<GenerationRequest> requests = new ArrayList<>();
            List<List<GeneratedPiece>> expected = new ArrayList<>();
            for (int length : new int[] {1, 6, 70}) {
                int[] prompt = prompt(length, length);
                expected.add(generate(directory.resolve("base"), prompt, 12));
                requests.add(request(null, prompt, 12));
                for (int i = 0; i < ADAPTERS.size(); i++) {
                    expected.add(generate(directory.resolve("merged-" + i), prompt, 12));
                    requests.add(request("a" + i, prompt, 12));
                }
            }
            long different =
                    expected.stream().map(each -> Arrays.hashCode(tokens(each))).distinct().count();
            assertEquals(expected.size(), different); // Otherwise this would show little.
            List<Generation> generations = generator.submitAll(requests);
            for (int i = 0; i < expected.size(); i++) {
                assertSame(expected.get(i), generations.get(i).await(LONG));
            }
        }
    }

    static Stream<String> models() {
        return ReferenceModels.names().stream();
    }

    /** Fused and interleaved projections, partial rotation, experts, norms of results. */
    @ParameterizedTest
    @MethodSource("models")
    void generatesWithEveryArchitecture(String name, @TempDir Path files) throws Exception {
        Path base = Files.createDirectories(files.resolve("base"));
        ReferenceModels.write(name, base);
        AdapterFiles adapter = new AdapterFiles(4, 8, false, AdapterFiles.ALL, 7);
        adapter.write(base, files.resolve("adapter"));
        Path merged = adapter.merge(base, files.resolve("merged"));
        for (int ranks : new int[] {1, 2}) {
            try (TextEngine generator =
                    TextEngine.builder()
                            .setDirectory(base)
                            .optRanks(ranks)
                            .optAdapter("a", files.resolve("adapter"))
                            .build()) {
                for (int length : new int[] {1, 40}) {
                    int[] prompt = prompt(length, 5);
                    assertSame(
                            generate(merged, prompt, 8),
                            generate(generator, request("a", prompt, 8)));
                }
            }
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"INT8", "INT4"})
    void adaptsQuantizedWeights(Quantization quantization) throws Exception {
        try (TextEngine generator =
                TextEngine.builder()
                        .setDirectory(directory.resolve("base"))
                        .optQuantization(quantization)
                        .optAdapter("a", adapter(0))
                        .build()) {
            int[] prompt = prompt(20, 1);
            List<GeneratedPiece> adapted = generate(generator, request("a", prompt, 4));
            double own = generate(generator, request(null, prompt, 1)).get(0).logProbability();
            double merged =
                    generate(directory.resolve("merged-0"), prompt, 1).get(0).logProbability();
            double distance = Math.abs(adapted.get(0).logProbability() - merged);
            assertTrue(distance < Math.abs(own - merged), distance + " " + own + " " + merged);
        }
    }

    @Test
    void prefixesAreSharedByRequestsOfOneAdapter() throws Exception {
        try (TextEngine generator =
                TextEngine.builder()
                        .setDirectory(directory.resolve("base"))
                        .optAdapter("a0", adapter(0))
                        .optAdapter("a1", adapter(1))
                        .build()) {
            int[] prompt = prompt(50, 9);
            for (String adapter : new String[] {null, "a0", "a1"}) {
                Generation first = generator.submit(request(adapter, prompt, 4));
                List<GeneratedPiece> pieces = first.await(LONG);
                Generation second = generator.submit(request(adapter, prompt, 4));
                assertArrayEquals(tokens(pieces), tokens(second.await(LONG)));
                assertEquals(0, first.cachedTokens(), adapter);
                assertEquals(48, second.cachedTokens(), adapter);
            }
        }
    }

    /** The first name's blocks must not be found by the adapter that gets the name later. */
    @Test
    void newAdapterMayReuseTheNameOfARemovedOne() throws Exception {
        try (TextEngine generator =
                TextEngine.builder().setDirectory(directory.resolve("base")).optRanks(2).build()) {
            int[] prompt = prompt(50, 4);
            for (int i = 0; i < 3; i++) {
                generator.loadAdapter("a", adapter(i));
                assertEquals(List.of("a"), generator.adapters());
                assertSame(
                        generate(directory.resolve("merged-" + i), prompt, 6),
                        generate(generator, request("a", prompt, 6)));
                generator.unloadAdapter("a");
                assertEquals(List.of(), generator.adapters());
            }
        }
    }

    @Test
    void runningRequestsKeepARemovedAdapter() throws Exception {
        try (TextEngine generator =
                TextEngine.builder().setDirectory(directory.resolve("base")).optRanks(2).build()) {
            generator.loadAdapter("a", adapter(1));
            int[] prompt = prompt(20, 4);
            CountDownLatch hold = TextEngineTest.hold(generator);
            Generation running = generator.submit(request("a", prompt, 30));
            generator.unloadAdapter("a");
            GenerationRequest next = request("a", prompt, 1);
            String message =
                    assertThrows(IllegalArgumentException.class, () -> generator.submit(next))
                            .getMessage();
            assertTrue(message.contains("there is no adapter 'a'"), message);
            hold.countDown();
            assertSame(generate(directory.resolve("merged-1"), prompt, 30), running.await(LONG));
            generator.loadAdapter("a", adapter(0));
            assertSame(
                    generate(directory.resolve("merged-0"), prompt, 5),
                    generate(generator, request("a", prompt, 5)));
        }
    }

    @Test
    void adaptersAreLoadedAgainAfterARankHasFailed() throws Exception {
        try (TextEngine generator =
                TextEngine.builder()
                        .setDirectory(directory.resolve("base"))
                        .optRanks(2)
                        .optAdapter("a", adapter(0))
                        .build()) {
            int[] prompt = prompt(20, 4);
            List<GeneratedPiece> before = generate(generator, request("a", prompt, 5));
            TextEngineTest.failWhileServing(generator);
            assertSame(before, generate(generator, request("a", prompt, 5)));
            assertEquals(1, generator.statistics().reloads());
        }
    }

    /** A path that runs code before the first call of a method. */
    private static Path running(Path path, String method, Callable<?> code) {
        AtomicBoolean done = new AtomicBoolean();
        return (Path)
                Proxy.newProxyInstance(
                        AdaptersTest.class.getClassLoader(),
                        new Class<?>[] {Path.class},
                        (proxy, called, values) -> {
                            if (called.getName().equals(method) && !done.getAndSet(true)) {
                                code.call();
                            }
                            return called.invoke(path, values);
                        });
    }

    /** Files may change after they were checked, and other processes may not have them. */
    @ParameterizedTest
    @ValueSource(ints = {1, 2})
    void requestsGoOnIfARankCannotReadAnAdapter(int ranks, @TempDir Path files) throws Exception {
        Path wrong = ADAPTERS.get(0).write(directory.resolve("base"), files.resolve("wrong"));
        try (TextEngine generator =
                TextEngine.builder()
                        .setDirectory(directory.resolve("base"))
                        .optRanks(ranks)
                        .optAdapter("a", adapter(1))
                        .build()) {
            int[] prompt = prompt(20, 4);
            Generation running = generator.submit(request("a", prompt, 60));
            Path vanishing =
                    running(
                            wrong,
                            "toAbsolutePath",
                            () -> Files.deleteIfExists(wrong.resolve("adapter_model.safetensors")));
            String message =
                    assertThrows(IOException.class, () -> generator.loadAdapter("b", vanishing))
                            .getMessage();
            assertTrue(message.contains("'b' could not be loaded"), message);
            assertTrue(message.contains(wrong.toString()), message);
            assertEquals(60, running.await(LONG).size());
            assertEquals(List.of("a"), generator.adapters());
            assertEquals(0, generator.statistics().reloads());
            generator.loadAdapter("b", adapter(0));
            assertSame(
                    generate(directory.resolve("merged-0"), prompt, 5),
                    generate(generator, request("b", prompt, 5)));
        }
    }

    @Test
    void theModelIsReloadedWithoutAdaptersThatAreGone(@TempDir Path files) throws Exception {
        Path gone = ADAPTERS.get(0).write(directory.resolve("base"), files.resolve("gone"));
        try (TextEngine generator =
                TextEngine.builder()
                        .setDirectory(directory.resolve("base"))
                        .optRanks(2)
                        .optAdapter("gone", gone)
                        .optAdapter("a", adapter(1))
                        .build()) {
            int[] prompt = prompt(20, 4);
            List<GeneratedPiece> before = generate(generator, request("a", prompt, 5));
            Files.delete(gone.resolve("adapter_config.json"));
            TextEngineTest.failWhileServing(generator);
            assertSame(before, generate(generator, request("a", prompt, 5)));
            assertEquals(List.of("a"), generator.adapters());
            assertEquals(1, generator.statistics().reloads());
        }
    }

    @Test
    void adaptersRemovedDuringAReloadServeTheirRequests() throws Exception {
        AtomicReference<Runnable> duringLoad = new AtomicReference<>(() -> {});
        LoadingProgress progress =
                new LoadingProgress(line -> duringLoad.getAndSet(() -> {}).run());
        try (TextEngine generator =
                TextEngine.builder()
                        .setDirectory(directory.resolve("base"))
                        .optRanks(2)
                        .optProgress(progress)
                        .optAdapter("a", adapter(1))
                        .build()) {
            int[] prompt = prompt(20, 4);
            List<GeneratedPiece> before = generate(generator, request("a", prompt, 5));
            CompletableFuture<Generation> last = new CompletableFuture<>();
            duringLoad.set(
                    () -> {
                        last.complete(generator.submit(request("a", prompt, 5)));
                        generator.unloadAdapter("a");
                    });
            TextEngineTest.failWhileServing(generator);
            assertSame(before, last.get(LONG.toSeconds(), TimeUnit.SECONDS).await(LONG));
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {"I32", "X32"})
    void refusesElementsThatAreNoFloatingPointNumbers(String type, @TempDir Path files)
            throws Exception {
        Path wrong = ADAPTERS.get(0).write(directory.resolve("base"), files.resolve("wrong"));
        Path weights = wrong.resolve("adapter_model.safetensors");
        String bytes = Files.readString(weights, ISO_8859_1);
        Files.writeString(weights, bytes.replace("F32", type), ISO_8859_1);
        try (TextEngine generator =
                TextEngine.builder().setDirectory(directory.resolve("base")).build()) {
            assertRefused(generator, "a", wrong, "elements of type");
        }
    }

    @ParameterizedTest
    @CsvSource(
            delimiter = '|',
            value = {
                "use_dora | true",
                "modules_to_save | [\"lm_head\"]",
                "bias | \"all\"",
                "lora_bias | true",
                "rank_pattern | {\"q_proj\": 4}",
                "peft_type | \"LOHA\"",
                "init_lora_weights | \"pissa\"",
                "r | 6",
                "r | 0",
                "lora_alpha | \"much\"",
            })
    void refusesUnsupportedEntriesByName(String entry, String value, @TempDir Path files)
            throws Exception {
        Path wrong = ADAPTERS.get(0).write(directory.resolve("base"), files.resolve("wrong"));
        AdapterFiles.set(wrong, entry, value);
        try (TextEngine generator =
                TextEngine.builder().setDirectory(directory.resolve("base")).build()) {
            String message =
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> generator.loadAdapter("a", wrong))
                            .getMessage();
            String named = entry.equals("r") && value.equals("6") ? "rank 6" : entry;
            assertTrue(message.contains(named), message);
            assertTrue(message.contains("wrong"), message);
            assertEquals(List.of(), generator.adapters());
            assertFalse(generate(generator, request(null, prompt(3, 1), 2)).isEmpty());
        }
    }

    @Test
    void refusesAdaptersOfOtherModelsAndTakenNames(@TempDir Path files) throws Exception {
        ReferenceModels.write("granite", Files.createDirectories(files.resolve("other")));
        Path other = ADAPTERS.get(0).write(files.resolve("other"), files.resolve("adapter"));
        Path none = Files.createDirectories(files.resolve("none"));
        try (TextEngine generator =
                TextEngine.builder()
                        .setDirectory(directory.resolve("base"))
                        .optAdapter("a", adapter(0))
                        .build()) {
            assertRefused(generator, "b", other, "take an adapter of this model");
            assertRefused(generator, "b", none, "has no adapter_config.json");
            assertRefused(generator, "a", adapter(1), "'a' is loaded already");
            assertRefused(generator, " ", adapter(1), "the name of an adapter is empty");
            assertRefused(generator, "b\n", adapter(1), "has control characters");
            Files.write(none.resolve("adapter_config.json"), new byte[] {'{', (byte) 0xff});
            assertRefused(generator, "b", none, "adapter_config.json: not JSON: it is not UTF-8");
            assertThrows(IllegalArgumentException.class, () -> generator.unloadAdapter("b"));
            assertEquals(List.of("a"), generator.adapters());
        }
        TextEngine.Builder builder =
                TextEngine.builder().setDirectory(directory.resolve("base")).optAdapter("a", other);
        assertThrows(IllegalArgumentException.class, builder::build);
        String twice =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> builder.optAdapter("a", adapter(0)))
                        .getMessage();
        assertTrue(twice.startsWith("the adapter 'a' is set already, from " + other), twice);
    }

    private static void assertRefused(
            TextGenerator generator, String name, Path adapter, String reason) {
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> generator.loadAdapter(name, adapter))
                        .getMessage();
        assertTrue(message.contains(reason), message);
        assertFalse(message.contains("generation request"), message);
    }

    @Test
    void closedGeneratorsLoadNoAdapters() throws Exception {
        TextEngine generator = TextEngine.builder().setDirectory(directory.resolve("base")).build();
        generator.close();
        assertThrows(IllegalStateException.class, () -> generator.loadAdapter("a", adapter(0)));
        TextEngine other = TextEngine.builder().setDirectory(directory.resolve("base")).build();
        Path closing =
                running(
                        adapter(0),
                        "resolve",
                        () -> {
                            other.close();
                            return null;
                        });
        assertTimeoutPreemptively(
                LONG,
                () ->
                        assertThrows(
                                IllegalStateException.class,
                                () -> other.loadAdapter("a", closing)));
    }
}
