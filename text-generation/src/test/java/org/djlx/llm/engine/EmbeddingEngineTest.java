// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.engine;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.types.DataType;
import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.llm.EmbeddingModel;
import org.djlx.llm.Embeddings;
import org.djlx.llm.files.FakeHub;
import org.djlx.llm.files.GgufDirectory;
import org.djlx.llm.files.ModelHub;
import org.djlx.llm.model.EmbeddingConfig;
import org.djlx.llm.model.EncoderFiles;
import org.djlx.llm.model.EncoderReference;
import org.djlx.llm.ops.SequenceEncoder;
import org.djlx.llm.text.ContextLengthException;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CpuKernels;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Embeddings of random models equal those of a reference in float64. */
class EmbeddingEngineTest {

    /** In float32, of vectors of length 1; the limit. */
    private static final double TOLERANCE = 1e-5;

    @TempDir private Path directory;

    static Stream<Arguments> models() {
        return EncoderFiles.MODEL_TYPES.stream()
                .flatMap(type -> Stream.of(1, 2).map(ranks -> Arguments.of(type, ranks)));
    }

    static List<int[]> texts(int... lengths) {
        Random random = new Random(lengths.length);
        return IntStream.of(lengths)
                .mapToObj(length -> random.ints(length, 0, 58).toArray())
                .toList();
    }

    private static void check(
            EmbeddingModel model, EncoderReference reference, List<int[]> texts, String pooling) {
        check(model, reference, texts, pooling, TOLERANCE);
    }

    static void check(
            EmbeddingModel model,
            EncoderReference reference,
            List<int[]> texts,
            String pooling,
            double tolerance) {
        Embeddings result = model.embedTokens(texts, model.dimensions());
        assertEquals(texts.stream().mapToInt(text -> text.length).sum(), result.tokens());
        assertEquals(texts.size(), result.vectors().size());
        for (int i = 0; i < texts.size(); i++) {
            double[] expected = reference.vector(texts.get(i), pooling, model.dimensions());
            float[] actual = result.vectors().get(i);
            for (int k = 0; k < expected.length; k++) {
                assertEquals(expected[k], actual[k], tolerance, "text " + i + ", element " + k);
            }
        }
    }

    @ParameterizedTest(name = "{0}, {1} ranks")
    @MethodSource("models")
    void equalsTheReferenceForBatchesOfMixedLengths(String type, int ranks) throws IOException {
        EncoderFiles.write(directory, type, "", "mean_tokens");
        EncoderReference reference = new EncoderReference(directory, "");
        try (EmbeddingModel model =
                EmbeddingEngine.builder()
                        .setDirectory(directory)
                        .optRanks(ranks)
                        .optBatchTokens(64)
                        .build()) {
            check(model, reference, texts(1), "mean_tokens");
            check(model, reference, texts(5, 5, 5), "mean_tokens");
            check(model, reference, texts(3, 150, 1, 17, 64, 17, 2, 33, 150, 90), "mean_tokens");
        }
    }

    /** The weights, the attention of blocks and the norms without a bias in 16 bits. */
    @ParameterizedTest
    @CsvSource({"FLOAT16, 4e-3", "BFLOAT16, 3e-2"})
    void equalsTheReferenceIn16Bits(DataType type, double tolerance) throws IOException {
        for (String model : EncoderFiles.MODEL_TYPES) {
            EncoderFiles.write(directory, model, "", "mean_tokens");
            EncoderReference reference = new EncoderReference(directory, "");
            try (EmbeddingModel own =
                    EmbeddingEngine.builder().setDirectory(directory).optDataType(type).build()) {
                check(own, reference, texts(3, 150, 17, 64), "mean_tokens", tolerance);
            }
        }
    }

    @ParameterizedTest
    @CsvSource({
        "bert, bert., cls_token",
        "xlm-roberta, roberta., max_tokens",
        "modernbert, model., weightedmean_tokens",
        "qwen3, model., lasttoken",
        "bert, '', mean_sqrt_len_tokens"
    })
    void poolsAsItsModulesSay(String type, String prefix, String pooling) throws IOException {
        EncoderFiles.write(directory, type, prefix, pooling);
        EncoderReference reference = new EncoderReference(directory, prefix);
        for (Runnable choice : instructionSets()) {
            choice.run();
            try (EmbeddingModel model = EmbeddingModel.of(directory.toString())) {
                check(model, reference, texts(1, 9, 40, 9, 2), pooling);
            }
        }
    }

    /** Returns what chooses each of the instruction sets of the CPU's kernels, the default last. */
    private static List<Runnable> instructionSets() {
        return NativeLibrary.CPU_KERNELS.isAvailable()
                ? List.of(
                        () -> CpuKernels.useAvx512(false),
                        () -> CpuKernels.useAmx(false),
                        () -> CpuKernels.useAmx(true))
                : List.of(() -> {});
    }

    private EmbeddingModel load() throws IOException {
        return EmbeddingModel.of(directory.toString());
    }

    private static void change(Path file, String entry, Object value) throws IOException {
        JsonObject json =
                Files.exists(file)
                        ? JsonParser.parseString(Files.readString(file)).getAsJsonObject()
                        : new JsonObject();
        json.add(entry, new Gson().toJsonTree(value));
        Files.writeString(file, json.toString());
    }

    @ParameterizedTest
    @CsvSource({"bert, AB zed, 0 56 54 13 11 2", "xlm-roberta, abcd z, 0 56 57 54 2"})
    void tokenizesWithWordPieceAndUnigram(String type, String text, String tokens)
            throws IOException {
        EncoderFiles.write(directory, type, "", "cls_token");
        int[] expected = Stream.of(tokens.split(" ")).mapToInt(Integer::parseInt).toArray();
        try (EmbeddingModel model = load()) {
            assertArrayEquals(expected, model.encode(text, null));
            assertArrayEquals(
                    model.embedTokens(List.of(expected), model.dimensions()).vectors().get(0),
                    model.embed(text));
        }
    }

    @Test
    void putsTheChosenOrDefaultPromptBeforeATextAndRefusesUnknownOnes() throws IOException {
        EncoderFiles.write(directory, "bert", "", "mean_tokens");
        int[] plain;
        int[] prompted;
        try (EmbeddingModel model = load()) {
            plain = model.encode("c", null);
            prompted = model.encode("c", "query");
            assertArrayEquals(model.encode("ab c", null), prompted);
            assertTrue(
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> model.encode("c", "document"))
                            .getMessage()
                            .contains("no prompt 'document', but [query]"));
        }
        Path file = directory.resolve("config_sentence_transformers.json");
        change(file, "default_prompt_name", "query");
        try (EmbeddingModel model = load()) {
            assertArrayEquals(prompted, model.encode("c", null));
        }
        assertEquals(plain.length + 1, prompted.length);
    }

    @Test
    void refusesTextsThatAreTooLongUnlessItTruncates() throws IOException {
        EncoderFiles.write(directory, "bert", "", "mean_tokens");
        change(directory.resolve("sentence_bert_config.json"), "max_seq_length", 6);
        String text = "a b c d e f g";
        try (EmbeddingModel model = load()) {
            assertEquals(6, model.maxLength());
            assertThrows(ContextLengthException.class, () -> model.embed(text));
            assertThrows(
                    ContextLengthException.class,
                    () -> model.embedTokens(List.of(new int[7]), model.dimensions()));
        }
        try (EmbeddingModel model = load()) {
            List<String> texts = new ArrayList<>(Collections.nCopies(200, "a"));
            Collections.fill(texts.subList(100, 200), text + " " + text);
            texts.set(99, text);
            Exception first = assertThrows(Exception.class, () -> model.encode(text, null));
            Exception e =
                    assertThrows(ContextLengthException.class, () -> model.encode(texts, null));
            assertEquals(first.getMessage(), e.getMessage());
        }
        try (EmbeddingModel model =
                EmbeddingEngine.builder().setDirectory(directory).optTruncation(true).build()) {
            assertArrayEquals(model.encode("a b c d", null), model.encode(text, null));
        }
    }

    @Test
    void cutsOffDimensionsAndNormalizesTheRest() throws IOException {
        EncoderFiles.write(directory, "bert", "", "mean_tokens");
        EncoderReference reference = new EncoderReference(directory, "");
        int[] text = {0, 5, 9, 2};
        try (EmbeddingModel model = load()) {
            double[] expected = reference.vector(text, "mean_tokens", 7);
            float[] actual = model.embedTokens(List.of(text), 7).vectors().get(0);
            assertEquals(7, actual.length);
            for (int i = 0; i < 7; i++) {
                assertEquals(expected[i], actual[i], TOLERANCE);
            }
            for (int dimensions : new int[] {0, model.dimensions() + 1}) {
                assertThrows(
                        IllegalArgumentException.class,
                        () -> model.embedTokens(List.of(text), dimensions));
            }
        }
    }

    @Test
    void refusesTokensThatAreNotInTheVocabulary() throws IOException {
        EncoderFiles.write(directory, "bert", "", "mean_tokens");
        try (EmbeddingModel model = load()) {
            for (int[] tokens : List.of(new int[] {60}, new int[] {-1}, new int[0])) {
                assertThrows(
                        IllegalArgumentException.class,
                        () -> model.embedTokens(List.of(tokens), model.dimensions()));
            }
        }
    }

    @Test
    void anEncoderRefusesSequencesThatAreNotSorted() throws IOException {
        EncoderFiles.write(directory, "bert", "", "mean_tokens");
        try (TensorFiles files = GgufDirectory.openWeights(directory);
                SequenceEncoder encoder =
                        SequenceEncoder.load(directory, files, Device.cpu(), null)) {
            for (List<int[]> each : List.of(texts(5, 3), texts(0, 3))) {
                Exception e =
                        assertThrows(
                                IllegalArgumentException.class,
                                () -> encoder.encode(each, EmbeddingConfig.Pooling.MEAN));
                assertTrue(e.getMessage().contains("sort sequences"), e.getMessage());
            }
        }
    }

    @Test
    void answersCallersAtTheSameTimeAndRefusesThemWhenClosed() throws Exception {
        EncoderFiles.write(directory, "bert", "", "mean_tokens");
        EncoderReference reference = new EncoderReference(directory, "");
        EmbeddingModel model =
                EmbeddingEngine.builder()
                        .setDirectory(directory)
                        .optRanks(2)
                        .optBatchTokens(32)
                        .build();
        List<Thread> callers = new ArrayList<>();
        List<Throwable> failures = Collections.synchronizedList(new ArrayList<>());
        for (int i = 0; i < 8; i++) {
            int[] lengths = {i + 1, 3, 12};
            Thread caller =
                    new Thread(() -> check(model, reference, texts(lengths), "mean_tokens"));
            caller.setUncaughtExceptionHandler((thread, failure) -> failures.add(failure));
            caller.start();
            callers.add(caller);
        }
        for (Thread caller : callers) {
            caller.join();
        }
        assertEquals(List.of(), failures);
        model.close();
        model.close();
        assertThrows(
                IllegalStateException.class,
                () -> model.embedTokens(List.of(new int[] {1}), model.dimensions()));
    }

    static Stream<Arguments> wrongFiles() {
        return Stream.of(
                Arguments.of("config.json", "num_hidden_layers", 5, "encoder.layer.4."),
                Arguments.of("config.json", "num_hidden_layers", 3, "encoder.layer.3."),
                Arguments.of("config.json", "intermediate_size", 41, "requires (41, 24)"),
                Arguments.of("config.json", "hidden_act", "mish", "not 'mish'"),
                Arguments.of("config.json", "position_embedding_type", "rotary", "absolute"),
                Arguments.of("config.json", "num_attention_heads", 5, "not a multiple"),
                Arguments.of("1_Pooling/config.json", "include_prompt", false, "include_prompt"),
                Arguments.of(
                        "1_Pooling/config.json", "pooling_mode_cls_token", true, "[CLS, MEAN]"),
                Arguments.of(
                        "config_sentence_transformers.json",
                        "default_prompt_name",
                        "passage",
                        "'passage'"));
    }

    @ParameterizedTest(name = "{0} {1} {2}")
    @MethodSource("wrongFiles")
    void namesWhatIsWrongInFiles(String file, String entry, Object value, String named)
            throws IOException {
        EncoderFiles.write(directory, "bert", "", "mean_tokens");
        change(directory.resolve(file), entry, value);
        String message = assertThrows(IllegalArgumentException.class, this::load).getMessage();
        assertTrue(message.contains(named), message);
    }

    @ParameterizedTest
    @ValueSource(strings = {"chunked_attention", "full_attention"})
    void namesLayerTypesThatItDoesNotHaveOrThatAreTooFew(String type) throws IOException {
        EncoderFiles.write(directory, "modernbert", "model.", "mean_tokens");
        change(directory.resolve("config.json"), "layer_types", List.of(type));
        String message = assertThrows(IllegalArgumentException.class, this::load).getMessage();
        assertTrue(message.contains("layer_types"), message);
    }

    @Test
    void refusesModulesThatItDoesNotHave() throws IOException {
        EncoderFiles.write(directory, "bert", "", "mean_tokens");
        EncoderFiles.write(
                directory.resolve("modules.json"),
                List.of(Map.of("path", "", "type", "sentence_transformers.models.WordWeights")));
        String message = assertThrows(IllegalArgumentException.class, this::load).getMessage();
        assertTrue(message.contains("WordWeights"), message);
    }

    @ParameterizedTest
    @ValueSource(strings = {"", "null", "[1]", "[null]", "{}", "["})
    void namesModulesThatAreNoList(String modules) throws IOException {
        Files.writeString(directory.resolve("modules.json"), modules);
        Exception e =
                assertThrows(IllegalArgumentException.class, () -> EmbeddingConfig.read(directory));
        assertTrue(e.getMessage().contains("modules.json"), e.getMessage());
    }

    @Test
    void vectorsThatAreNoNumbersAreAnError() throws IOException {
        EncoderFiles.write(directory, "bert", "", "mean_tokens");
        for (Path file : list(directory)) {
            if (file.toString().endsWith(".safetensors")) {
                byte[] bytes = Files.readAllBytes(file);
                Arrays.fill(bytes, bytes.length - 4, bytes.length, (byte) -1); // NaN
                Files.write(file, bytes);
            }
        }
        try (EmbeddingModel model = load()) {
            List<int[]> texts = List.of(new int[] {1, 2});
            Exception e =
                    assertThrows(
                            IllegalStateException.class,
                            () -> model.embedTokens(texts, model.dimensions()));
            assertTrue(e.getMessage().contains("NaN"), e.getMessage());
        }
    }

    private static List<Path> list(Path directory) throws IOException {
        try (Stream<Path> files = Files.list(directory)) {
            return files.toList();
        }
    }

    @Test
    void loadsAModelOfAHubWithItsModules() throws IOException {
        EncoderFiles.write(directory, "bert", "", "cls_token");
        int[] text = {0, 5, 9, 2};
        double[] expected = new EncoderReference(directory, "").vector(text, "cls_token", 24);
        try (FakeHub hub = new FakeHub(directory)) {
            Path snapshot =
                    ModelHub.builder()
                            .optEndpoint(hub.endpoint())
                            .optCache(directory.resolve("cache"))
                            .build()
                            .download(FakeHub.NAME);
            try (EmbeddingModel model = EmbeddingModel.of(snapshot.toString())) {
                float[] actual = model.embedTokens(List.of(text), 24).vectors().get(0);
                for (int i = 0; i < 24; i++) {
                    assertEquals(expected[i], actual[i], TOLERANCE);
                }
            }
        }
    }
}
