// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.files.GgufDirectory;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.ModelFixture;
import org.djlx.llm.model.Quantization;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;

/** Weights that stay in the mapped files, beside copies of them. */
class WeightsInPlaceTest {

    private static final int TOKENS = 90; // enough to divide a prompt among 4 ranks
    private static final int STEPS = 3;

    @TempDir private Path directory;

    static Stream<Arguments> models() throws IOException {
        return ModelFixture.names().stream()
                .flatMap(
                        name ->
                                Stream.of(ScalarType.FLOAT32, ScalarType.BFLOAT16)
                                        .flatMap(
                                                type ->
                                                        Stream.of(1, 2, 4)
                                                                .map(
                                                                        ranks ->
                                                                                Arguments.of(
                                                                                        name, type,
                                                                                        ranks))));
    }

    /** Prompts are multiplied by more than one matrix, which libtorch may sum in another order. */
    @ParameterizedTest(name = "{0}, {1}, {2} ranks")
    @MethodSource("models")
    void decodeStepsHaveTheBitsOfCopies(String name, ScalarType type, int ranks) throws Exception {
        ModelFixture.write(name, directory, type);
        ModelConfig config = ModelConfig.read(directory);
        int length = Math.min(config.maxLength(), TOKENS + STEPS);
        List<float[]> copied = logits(config, ranks, false, length - STEPS);
        List<float[]> inPlace = logits(config, ranks, true, length - STEPS);
        for (int i = 0; i < STEPS; i++) {
            assertArrayEquals(copied.get(i), inPlace.get(i), "decode step " + i);
        }
        double error = QuantizationTest.error(copied.get(STEPS), inPlace.get(STEPS));
        assertTrue(error < (type == ScalarType.FLOAT32 ? 1e-5 : 1e-2), "prompt " + error);
    }

    /** Returns the logits of decode steps from the first token on, then those of a prompt. */
    private List<float[]> logits(ModelConfig config, int ranks, boolean inPlace, int prompt)
            throws Exception {
        int[] all = IntStream.range(0, prompt + STEPS).map(i -> (37 * i + 11) % 90).toArray();
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        try (TensorFiles files = GgufDirectory.openWeights(directory)) {
            return ProcessGroups.run(
                            groups,
                            group -> {
                                List<float[]> rows = new ArrayList<>();
                                try (TransformerModel model =
                                        ModelFixturesTest.model(
                                                config, group, files, inPlace, all.length)) {
                                    for (int i = 0; i < STEPS; i++) {
                                        rows.addAll(
                                                ModelFixturesTest.logits(
                                                        model, chunk(0, all, i, 1)));
                                    }
                                    rows.addAll(
                                            ModelFixturesTest.logits(
                                                    model, chunk(1, all, 0, prompt)));
                                }
                                return rows;
                            })
                    .get(0);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    private static TokenBatch.Chunk chunk(int sequence, int[] all, int start, int count) {
        return ModelFixturesTest.chunk(sequence, all, start, count, true);
    }

    @ParameterizedTest
    @CsvSource({"FLOAT32, true", "BFLOAT16, false"})
    void weightsOfTheModelsTypeAreMappedUntilTheyAreClosed(ScalarType type, boolean mapped)
            throws IOException {
        ModelConfig written = LlamaFiles.config(ScalarType.FLOAT32, false);
        LlamaFiles.write(directory, written, 1);
        ModelConfig config = LlamaFiles.config(type, false);
        Safetensors files = Safetensors.open(directory);
        ModelWeights weights =
                ModelWeights.read(
                        config,
                        0,
                        1,
                        Device.cpu(),
                        new WeightFormat(Quantization.NONE),
                        files,
                        true,
                        bytes -> {});
        files.close();
        assertEquals(mapped, isMapped());
        weights.close();
        assertFalse(isMapped());
    }

    private boolean isMapped() throws IOException {
        return Files.readString(Path.of("/proc/self/maps")).contains(directory.toString());
    }

    @Test
    void aModelWorksAfterItsFilesAreDeleted() throws Exception {
        LlamaFiles.write(directory, LlamaFiles.decodable(ScalarType.FLOAT32, true, 16), 1);
        GenerationRequest request =
                GenerationRequest.builder()
                        .setPromptTokens(1, 2, 3)
                        .optMaxTokens(5)
                        .optIgnoreEndOfText(true)
                        .build();
        try (TextEngine engine = TextEngine.builder().setDirectory(directory).optRanks(2).build()) {
            List<?> before = engine.submit(request).await(Duration.ofMinutes(1));
            try (DirectoryStream<Path> entries = Files.newDirectoryStream(directory)) {
                for (Path file : entries) {
                    Files.delete(file);
                }
            }
            assertTrue(isMapped());
            assertEquals(before, engine.submit(request).await(Duration.ofMinutes(1)));
        }
        assertFalse(isMapped());
    }

    @Test
    void weightsOfAnotherTypeAreCopied() throws Exception {
        LlamaFiles.write(directory, LlamaFiles.decodable(ScalarType.FLOAT32, true, 16), 1);
        try (TextEngine engine =
                TextEngine.builder()
                        .setDirectory(directory)
                        .optDataType(DataType.BFLOAT16)
                        .build()) {
            assertFalse(isMapped(), engine::toString);
        }
    }

    @Test
    void partsAreQuantizedLikeTheWholeMatrix() throws IOException {
        ModelConfig config = LlamaFiles.config(ScalarType.BFLOAT16, false, 430_001, 7);
        LlamaFiles.write(directory, config, 1);
        try (Safetensors files = Safetensors.open(directory);
                NDManager manager = NDManager.newBaseManager(Device.cpu());
                ModelWeights weights =
                        ModelWeights.read(
                                config,
                                0,
                                1,
                                Device.cpu(),
                                new WeightFormat(Quantization.INT4),
                                files,
                                true,
                                bytes -> {})) {
            NDArray head = Torch.empty(manager, weights.embedding().getShape(), config.type());
            files.read("lm_head.weight", head);
            try (QuantizedMatrix whole =
                    QuantizedMatrix.allocate(
                            head.getShape(),
                            new WeightFormat(Quantization.INT4),
                            Optional.empty())) {
                whole.put(0, head);
                assertEquals(bytes(manager, whole), bytes(manager, weights.output().quantized()));
            }
        }
    }

    private static NDArray bytes(NDManager manager, QuantizedMatrix matrix) {
        Shape shape = new Shape(matrix.memory().byteSize());
        return Torch.view(manager, matrix.memory(), 0, shape, ScalarType.UINT8);
    }
}
