// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.function.Function;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.model.ModelFixture;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Models packed as AutoAWQ and AutoGPTQ do, beside the same weights unpacked. */
class PackedWeightsTest {

    private static final String FIXTURE = "llama-bias"; // Its layers have 32 to 64 inputs.
    private static final String LAYER = "model.layers.1.mlp.down_proj";

    /** AutoAWQ's order_map: the outputs of the eight numbers of an integer. */
    private static final int[] AWQ_ORDER = {0, 2, 4, 6, 1, 3, 5, 7};

    @TempDir private Path directory;
    private final Random random = new Random(7);
    private Path plain;
    private Path packed;
    private ModelFixture.Case request;

    /** The integers of a linear layer, and the weights that they stand for. */
    private record Linear(
            int outputs, int inputs, int[][] numbers, int[][] zeros, float[][] scales, int[] of) {

        float[] weights() {
            float[] weights = new float[outputs * inputs];
            for (int i = 0; i < weights.length; i++) {
                int output = i / inputs;
                int group = of[i % inputs];
                weights[i] =
                        scales[group][output]
                                * (numbers[output][i % inputs] - zeros[group][output]);
            }
            return weights;
        }

        int[] awqWords() {
            int[] words = new int[inputs * outputs / 8];
            for (int input = 0; input < inputs; input++) {
                for (int word = 0; word < outputs / 8; word++) {
                    for (int i = 0; i < 8; i++) {
                        int number = numbers[8 * word + AWQ_ORDER[i]][input];
                        words[input * (outputs / 8) + word] |= number << 4 * i;
                    }
                }
            }
            return words;
        }

        int[] gptqWords() {
            int[] words = new int[inputs / 8 * outputs];
            for (int word = 0; word < inputs / 8; word++) {
                for (int output = 0; output < outputs; output++) {
                    for (int i = 0; i < 8; i++) {
                        words[word * outputs + output] |= numbers[output][8 * word + i] << 4 * i;
                    }
                }
            }
            return words;
        }

        int[] zeroWords(boolean isAwq, int less) {
            int[] words = new int[zeros.length * outputs / 8];
            for (int group = 0; group < zeros.length; group++) {
                for (int output = 0; output < outputs; output++) {
                    int word = group * (outputs / 8) + output / 8;
                    int from = output / 8 * 8 + (isAwq ? AWQ_ORDER[output % 8] : output % 8);
                    words[word] |= (zeros[group][from] - less & 15) << 4 * (output % 8);
                }
            }
            return words;
        }
    }

    private Linear random(int outputs, int inputs, int groupSize, boolean ordered) {
        int groups = (inputs + groupSize - 1) / groupSize;
        int[][] numbers = new int[outputs][inputs];
        int[][] zeros = new int[groups][outputs];
        float[][] scales = new float[groups][outputs];
        int[] of = new int[inputs];
        for (int[] row : numbers) {
            for (int i = 0; i < inputs; i++) {
                row[i] = random.nextInt(16);
            }
        }
        for (int group = 0; group < groups; group++) {
            for (int i = 0; i < outputs; i++) {
                zeros[group][i] = random.nextInt(16);
                scales[group][i] = (1 + random.nextInt(15)) / 512f; // exact in float16
            }
        }
        for (int i = 0; i < inputs; i++) {
            of[i] = ordered ? i / groupSize : random.nextInt(groups);
        }
        return new Linear(outputs, inputs, numbers, zeros, scales, of);
    }

    @BeforeEach
    void createDirectories() throws IOException {
        request = ModelFixture.read(FIXTURE).cases().get(0);
        plain = Files.createDirectory(directory.resolve("plain"));
        packed = Files.createDirectory(directory.resolve("packed"));
    }

    /** Writes the fixture with random linear layers to both directories. */
    private void write(String method, String variant, int groupSize) throws IOException {
        boolean isAwq = method.equals("awq");
        boolean hasIndices = variant.equals("desc_act");
        Path original = Files.createDirectory(directory.resolve("original"));
        ModelFixture.write(FIXTURE, original, ScalarType.FLOAT32);
        Map<String, Function<NDManager, NDArray>> plainTensors = new LinkedHashMap<>();
        Map<String, Function<NDManager, NDArray>> packedTensors = new LinkedHashMap<>();
        try (NDManager manager = NDManager.newBaseManager();
                Safetensors files = Safetensors.open(original)) {
            for (TensorSpec spec : files.specs()) {
                String name = spec.name();
                if (!name.matches(".*_proj\\.weight")) {
                    NDArray array = manager.zeros(spec.shape());
                    files.read(name, array);
                    plainTensors.put(name, of -> array.duplicate());
                    packedTensors.put(name, of -> array.duplicate());
                    continue;
                }
                int outputs = (int) spec.shape().get(0);
                int inputs = (int) spec.shape().get(1);
                int size = groupSize < 0 ? inputs : groupSize;
                Linear linear = random(outputs, inputs, size, !hasIndices);
                plainTensors.put(name, of -> of.create(linear.weights(), spec.shape()));
                String layer = name.substring(0, name.length() - ".weight".length());
                Shape words =
                        isAwq ? new Shape(inputs, outputs / 8) : new Shape(inputs / 8, outputs);
                packedTensors.put(
                        layer + ".qweight",
                        of -> of.create(isAwq ? linear.awqWords() : linear.gptqWords(), words));
                int groups = linear.zeros.length;
                int less = isAwq || variant.equals("gptq_v2") ? 0 : 1;
                packedTensors.put(
                        layer + ".qzeros",
                        of ->
                                of.create(
                                        linear.zeroWords(isAwq, less),
                                        new Shape(groups, outputs / 8)));
                packedTensors.put(
                        layer + ".scales",
                        of -> of.create(linear.scales).toType(DataType.FLOAT16, false));
                if (hasIndices) {
                    packedTensors.put(layer + ".g_idx", of -> of.create(linear.of));
                }
            }
            write(plain, plainTensors, manager);
            write(packed, packedTensors, manager);
        }
        JsonObject config =
                JsonParser.parseString(Files.readString(original.resolve("config.json")))
                        .getAsJsonObject();
        Files.writeString(plain.resolve("config.json"), config.toString());
        JsonObject quantization = new JsonObject();
        quantization.addProperty("quant_method", method);
        quantization.addProperty("bits", 4);
        quantization.addProperty("group_size", groupSize);
        if (isAwq) {
            quantization.addProperty("version", variant);
        } else if (!hasIndices) {
            quantization.addProperty("checkpoint_format", variant);
        }
        config.add("quantization_config", quantization);
        Files.writeString(packed.resolve("config.json"), config.toString());
    }

    private static void write(
            Path to, Map<String, Function<NDManager, NDArray>> tensors, NDManager manager)
            throws IOException {
        List<TensorSpec> specs = new ArrayList<>();
        tensors.forEach(
                (name, values) -> {
                    try (NDArray array = values.apply(manager)) {
                        ScalarType type =
                                switch (array.getDataType()) {
                                    case INT32 -> ScalarType.INT32;
                                    case FLOAT16 -> ScalarType.FLOAT16;
                                    default -> ScalarType.FLOAT32;
                                };
                        specs.add(TensorSpec.of(name, type, array.getShape()));
                    }
                });
        SafetensorsWriter.write(
                to.resolve("model.safetensors"),
                specs,
                spec -> tensors.get(spec.name()).apply(manager));
    }

    private List<GeneratedPiece> generate(Path model, int ranks) throws Exception {
        try (TextEngine engine =
                TextEngine.builder()
                        .setDirectory(model)
                        .optRanks(ranks)
                        .optMaxLength(request.length())
                        .build()) {
            return engine.submit(
                            GenerationRequest.builder()
                                    .setPromptTokens(request.prompt())
                                    .optMaxTokens(request.tokens().length)
                                    .optIgnoreEndOfText(true)
                                    .build())
                    .await(Duration.ofMinutes(1));
        }
    }

    @ParameterizedTest
    @CsvSource({
        "awq, gemm, 32",
        "awq, gemm, -1",
        "gptq, gptq, 32",
        "gptq, gptq_v2, 16",
        "gptq, desc_act, 32",
        "gptq, gptq, -1"
    })
    void packedModelGeneratesWhatItsWeightsGenerate(String method, String variant, int groupSize)
            throws Exception {
        write(method, variant, groupSize);
        try (TensorFiles expected = GgufDirectory.openWeights(plain);
                TensorFiles actual = GgufDirectory.openWeights(packed);
                NDManager manager = NDManager.newBaseManager()) {
            for (TensorSpec spec : expected.specs()) {
                assertEquals(spec.shape(), actual.spec(spec.name()).shape());
            }
            assertEquals(expected.specs().size(), actual.specs().size());
            String name = LAYER + ".weight";
            for (int dimension = 0; dimension < 2; dimension++) {
                Shape part = dimension == 0 ? new Shape(11, 64) : new Shape(64, 11);
                NDArray some = manager.zeros(part);
                NDArray same = manager.zeros(part);
                expected.read(name, dimension, 13, 24, some);
                actual.read(name, dimension, 13, 24, same);
                assertArrayEquals(some.toFloatArray(), same.toFloatArray());
            }
        }
        for (int ranks = 1; ranks <= 2; ranks++) {
            assertEquals(generate(plain, ranks), generate(packed, ranks), ranks + " ranks");
        }
    }

    @Test
    void shapesThatDoNotFitTogetherAreRefusedByName() throws Exception {
        write("gptq", "gptq", 32);
        Path config = packed.resolve("config.json");
        Files.writeString(
                config, Files.readString(config).replace("\"group_size\":32", "\"group_size\":16"));
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class, () -> GgufDirectory.openWeights(packed));
        assertTrue(e.getMessage().contains("model.safetensors"), e.getMessage());
        assertTrue(e.getMessage().contains("must have the shape (4, "), e.getMessage());
    }

    @Test
    void packedNumbersOfAnotherTypeAreRefusedByName() throws Exception {
        write("gptq", "gptq", 32);
        Path file = packed.resolve("model.safetensors");
        byte[] bytes = Files.readAllBytes(file);
        String text = new String(bytes, StandardCharsets.ISO_8859_1);
        String entry = "\"" + LAYER + ".qweight\":{\"dtype\":\"";
        int at = text.indexOf(entry) + entry.length();
        assertEquals("I32", text.substring(at, at + 3));
        bytes[at] = 'F';
        Files.write(file, bytes);
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class, () -> GgufDirectory.openWeights(packed));
        assertTrue(e.getMessage().contains(LAYER + ".qweight"), e.getMessage());
        assertTrue(e.getMessage().contains("INT32"), e.getMessage());
    }
}
