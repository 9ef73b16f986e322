// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.files;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.sun.jna.Memory;
import com.sun.jna.Pointer;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.function.Function;
import java.util.stream.DoubleStream;
import java.util.stream.IntStream;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorFiles;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.GeneratedPiece;
import org.djlx.llm.GenerationRequest;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.model.BlockFiles;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.TrainedLlama;
import org.djlx.llm.ops.WeightFormat;
import org.djlx.llm.sampling.TokenLogProbability;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * A trained model packed as AutoAWQ and AutoGPTQ do, beside the weights that its numbers stand for.
 */
class PackedWeightsTest {

    private static final String LAYER = "model.layers.1.mlp.down_proj"; // 64 outputs, 128 inputs
    private static final String UNCONVERTED = "model.layers.0.self_attn.k_proj.weight";
    private static final int TOKENS = 24;

    /** AutoAWQ's order_map: the outputs of the eight numbers of an integer. */
    private static final int[] AWQ_ORDER = {0, 2, 4, 6, 1, 3, 5, 7};

    @TempDir private static Path original;
    private static TrainedLlama trained;

    @TempDir private Path directory;
    private Path plain;
    private Path packed;

    /** The integers of a linear layer. Inputs are of the groups {@code of}. */
    private record Linear(
            int outputs, int inputs, int[][] numbers, int[][] zeros, double[][] scales, int[] of) {

        float[] weights() {
            float[] weights = new float[outputs * inputs];
            for (int i = 0; i < weights.length; i++) {
                int output = i / inputs;
                int group = of[i % inputs];
                double number = numbers[output][i % inputs] - zeros[group][output];
                weights[i] = (float) (scales[group][output] * number);
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

    /** Rounds weights to the nearest numbers; scales have 8 bits, which both 16-bit types have. */
    private static Linear quantize(
            float[] weights, int outputs, int inputs, int[] of, int groups, boolean isSymmetric) {
        int[][] numbers = new int[outputs][inputs];
        int[][] zeros = new int[groups][outputs];
        double[][] scales = new double[groups][outputs];
        for (int group = 0; group < groups; group++) {
            for (int output = 0; output < outputs; output++) {
                double least = 0;
                double most = 0;
                for (int i = 0; i < inputs; i++) {
                    if (of[i] == group) {
                        least = Math.min(least, weights[output * inputs + i]);
                        most = Math.max(most, weights[output * inputs + i]);
                    }
                }
                double scale = isSymmetric ? Math.max(-least, most) / 7 : (most - least) / 15;
                double unit = Math.scalb(1.0, Math.getExponent(scale) - 7);
                scale = Math.max(Math.ceil(scale / unit) * unit, 0x1p-20);
                scales[group][output] = scale;
                zeros[group][output] = isSymmetric ? 8 : (int) Math.rint(-least / scale);
                for (int i = 0; i < inputs; i++) {
                    if (of[i] == group) {
                        double number =
                                Math.rint(weights[output * inputs + i] / scale)
                                        + zeros[group][output];
                        numbers[output][i] = (int) Math.max(0, Math.min(15, number));
                    }
                }
            }
        }
        return new Linear(outputs, inputs, numbers, zeros, scales, of);
    }

    @BeforeAll
    static void train() throws Exception {
        trained = TrainedLlama.write(original);
    }

    @BeforeEach
    void createDirectories() throws IOException {
        plain = Files.createDirectory(directory.resolve("plain"));
        packed = Files.createDirectory(directory.resolve("packed"));
    }

    /**
     * Writes the model with the weights of its numbers, and packed. The variant {@code desc_act}
     * has inputs of random groups, {@code sym} zeros of 8 only.
     */
    private void write(String method, String variant, int groupSize, ScalarType scaleType)
            throws IOException {
        boolean isAwq = method.equals("awq");
        boolean isOrdered = !variant.equals("desc_act");
        Random random = new Random(7);
        Map<String, Function<NDManager, NDArray>> plainTensors = new LinkedHashMap<>();
        Map<String, Function<NDManager, NDArray>> packedTensors = new LinkedHashMap<>();
        try (NDManager manager = NDManager.newBaseManager();
                Safetensors files = Safetensors.open(original)) {
            for (TensorSpec spec : files.specs()) {
                String name = spec.name();
                NDArray array = manager.zeros(spec.shape());
                files.read(name, array);
                if (!name.matches(".*_proj\\.weight") || name.equals(UNCONVERTED)) {
                    plainTensors.put(name, of -> array.duplicate());
                    packedTensors.put(name, of -> array.duplicate());
                    continue;
                }
                int outputs = (int) spec.shape().get(0);
                int inputs = (int) spec.shape().get(1);
                int size = groupSize < 0 ? inputs : groupSize;
                int groups = (inputs + size - 1) / size;
                int[] indices =
                        IntStream.range(0, inputs)
                                .map(i -> isOrdered ? i / size : random.nextInt(groups))
                                .toArray();
                Linear linear =
                        quantize(
                                array.toFloatArray(),
                                outputs,
                                inputs,
                                indices.clone(),
                                groups,
                                variant.equals("sym"));
                plainTensors.put(name, of -> of.create(linear.weights(), spec.shape()));
                String layer = name.substring(0, name.length() - ".weight".length());
                Shape words =
                        isAwq ? new Shape(inputs, outputs / 8) : new Shape(inputs / 8, outputs);
                packedTensors.put(
                        layer + ".qweight",
                        of -> of.create(isAwq ? linear.awqWords() : linear.gptqWords(), words));
                int less = isAwq || variant.equals("gptq_v2") ? 0 : 1;
                packedTensors.put(
                        layer + ".qzeros",
                        of ->
                                of.create(
                                        linear.zeroWords(isAwq, less),
                                        new Shape(groups, outputs / 8)));
                double[] scales =
                        Stream.of(linear.scales).flatMapToDouble(DoubleStream::of).toArray();
                packedTensors.put(
                        layer + ".scales",
                        of -> Torch.cast(of.create(scales, new Shape(groups, outputs)), scaleType));
                if (!isAwq) {
                    if (variant.equals("out_of_range")) {
                        indices[3] = groups;
                    }
                    packedTensors.put(layer + ".g_idx", of -> of.create(indices));
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
        } else if (variant.startsWith("gptq")) {
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
                        specs.add(TensorSpec.of(name, Torch.scalarType(array), array.getShape()));
                    }
                });
        SafetensorsWriter.write(
                to.resolve("model.safetensors"),
                specs,
                spec -> tensors.get(spec.name()).apply(manager));
    }

    private static List<GeneratedPiece> generate(Path model, int ranks) throws Exception {
        return generate(TextEngine.builder().setDirectory(model).optRanks(ranks), TOKENS);
    }

    private static List<GeneratedPiece> generate(TextEngine.Builder builder, int length)
            throws Exception {
        int[] prompt = Arrays.copyOf(trained.tokens(), length);
        try (TextEngine engine = builder.optMaxLength(length + TOKENS).build()) {
            return engine.submit(
                            GenerationRequest.builder()
                                    .setPromptTokens(prompt)
                                    .optMaxTokens(TOKENS)
                                    .optIgnoreEndOfText(true)
                                    .optTopLogProbabilities(2)
                                    .build())
                    .await(Duration.ofMinutes(1));
        }
    }

    @ParameterizedTest
    @CsvSource({
        "awq, gemm, 32, FLOAT16, true",
        "awq, GEMM, 64, FLOAT16, true",
        "awq, gemm, 128, BFLOAT16, false",
        "awq, gemm, -1, FLOAT16, true",
        "gptq, gptq, 32, FLOAT16, true",
        "gptq, gptq_v2, 128, FLOAT16, true",
        "gptq, gptq_v2, 16, FLOAT16, false",
        "gptq, sym, 64, FLOAT16, true",
        "gptq, desc_act, 32, FLOAT16, false",
        "gptq, gptq, -1, FLOAT32, false"
    })
    void generatesTheTokensOfTheWeights(
            String method, String variant, int groupSize, ScalarType scales, boolean hasBlocks)
            throws Exception {
        write(method, variant, groupSize, scales);
        try (TensorFiles expected = GgufDirectory.openWeights(plain);
                BlockFiles actual = (BlockFiles) GgufDirectory.openWeights(packed);
                NDManager manager = NDManager.newBaseManager()) {
            for (TensorSpec spec : expected.specs()) {
                assertEquals(spec.shape(), actual.spec(spec.name()).shape());
            }
            assertEquals(expected.specs().size(), actual.specs().size());
            String name = LAYER + ".weight";
            for (int dimension = 0; dimension < 2; dimension++) {
                Shape part = dimension == 0 ? new Shape(11, 128) : new Shape(64, 11);
                NDArray some = manager.zeros(part);
                NDArray same = manager.zeros(part);
                expected.read(name, dimension, 13, 24, some);
                actual.read(name, dimension, 13, 24, same);
                assertArrayEquals(some.toFloatArray(), same.toFloatArray());
            }
            long[] some = {63, 5, -1, 20, 21, 22};
            long[] all = LongStream.range(0, 64).toArray();
            NDArray weights = manager.zeros(new Shape(64, 128));
            expected.read(name, 0, 0, 64, weights);
            for (BlockRange range :
                    List.of(
                            new BlockRange(some, 0, 128),
                            new BlockRange(all, 32, 96),
                            new BlockRange(some, 32, 96))) {
                Optional<BlockFiles.Blocks> blocks =
                        actual.blocks(name, range.rows, range.from, range.to, manager);
                assertEquals(hasBlocks, blocks.isPresent());
                if (hasBlocks) {
                    assertArrayEquals(
                            range.columns(weights.toFloatArray(), 128), range.unpack(blocks.get()));
                }
            }
            assertTrue(actual.blocks(name, all, 16, 48, manager).isEmpty());
            assertTrue(actual.blocks(UNCONVERTED, all, 0, 64, manager).isEmpty());
        }
        List<GeneratedPiece> expected = generate(plain, 1);
        for (int ranks : new int[] {1, 2, 4}) {
            List<GeneratedPiece> pieces = generate(packed, ranks);
            for (int i = 0; i < TOKENS; i++) {
                String at = ranks + " ranks, token " + i;
                assertEquals(expected.get(i).token(), pieces.get(i).token(), at);
                // Kernels round activations to 8 bits.
                double most = hasBlocks ? 0.05 : 1e-4;
                assertEquals(
                        expected.get(i).logProbability(), pieces.get(i).logProbability(), most, at);
            }
        }
    }

    /**
     * A GPU multiplies by the files' numbers, where 128 inputs have one group or several, beside
     * projections in 16 bits; otherwise by dequantised weights. Prompts of a decode step, and of a
     * prefill.
     */
    @Tag("gpu")
    @ParameterizedTest
    @CsvSource({
        "awq, gemm, 32, FLOAT16, FLOAT16, 32, 0.02",
        "awq, gemm, 64, FLOAT16, FLOAT16, 64, 0.02",
        "awq, gemm, 128, FLOAT16, BFLOAT16, 128, 0.15",
        "awq, gemm, 128, BFLOAT16, FLOAT16, 0, 0.02",
        "gptq, gptq, 32, FLOAT16, FLOAT16, 32, 0.02",
        "gptq, gptq_v2, -1, FLOAT16, FLOAT16, 128, 0.02",
        "gptq, sym, 64, FLOAT16, FLOAT16, 64, 0.02",
        "gptq, desc_act, 32, FLOAT16, FLOAT16, 0, 0.02"
    })
    void gpusMultiplyByTheNumbersOfFiles(
            String method,
            String variant,
            int groupSize,
            ScalarType scales,
            DataType type,
            int group,
            double most)
            throws Exception {
        Device gpu = Device.gpu(0);
        GpuTests.require(1, NativeLibrary.NCCL, NativeLibrary.NVRTC);
        write(method, variant, groupSize, scales);
        ModelConfig config = ModelConfig.read(packed, type, KvCacheDtype.AUTO);
        try (TensorFiles files = GgufDirectory.openWeights(packed)) {
            WeightFormat expected =
                    new WeightFormat(group == 0 ? Quantization.NONE : Quantization.INT4, group);
            assertEquals(expected, WeightFormat.of(config, gpu, 1, Quantization.NONE, files));
        }
        for (int length : new int[] {TOKENS, 5 * TOKENS}) {
            List<GeneratedPiece> expected =
                    generate(TextEngine.builder().setDirectory(plain), length);
            List<GeneratedPiece> actual =
                    generate(
                            TextEngine.builder()
                                    .setDirectory(packed)
                                    .optDataType(type)
                                    .optDevices(List.of(gpu)),
                            length);
            for (int i = 0; i < TOKENS; i++) {
                GeneratedPiece of = expected.get(i);
                GeneratedPiece piece = actual.get(i);
                String at = length + " tokens, and " + i;
                assertEquals(of.logProbability(), piece.logProbability(), most, at);
                if (piece.token() != of.token()) { // Two tokens are about as probable.
                    TokenLogProbability second = of.topLogProbabilities().get(1);
                    assertEquals(second.token(), piece.token(), at);
                    assertEquals(of.logProbability(), second.logProbability(), most, at);
                    break;
                }
            }
        }
    }

    private record BlockRange(long[] rows, int from, int to) {

        /** Returns the columns of the rows, one column after the other. */
        float[] columns(float[] weights, int inputs) {
            float[] some = new float[rows.length * (to - from)];
            for (int i = 0; i < some.length; i++) {
                int row = (int) rows[i % rows.length];
                some[i] = row < 0 ? 0 : weights[row * inputs + from + i / rows.length];
            }
            return some;
        }

        /** Multiplies packed blocks by rows with a single number each, which is exact in 8 bits. */
        float[] unpack(BlockFiles.Blocks blocks) {
            int inputs = to - from;
            int outputs = rows.length;
            long bytes = CpuKernels.djlx_cpu_quantized_bytes(blocks.type(), outputs, inputs);
            try (Memory addresses = new Memory(8L * outputs);
                    Memory packed = new Memory(bytes);
                    Memory x = new Memory(4L * inputs * inputs);
                    Memory out = new Memory(4L * inputs * outputs)) {
                addresses.write(0, blocks.rows(), 0, outputs);
                CpuKernels.djlx_cpu_pack(
                        1, blocks.type(), outputs, inputs, at(addresses), at(packed));
                x.clear();
                for (int i = 0; i < inputs; i++) {
                    x.setFloat(4L * (i * inputs + i), 127);
                }
                CpuKernels.djlx_cpu_product(
                        1,
                        blocks.type(),
                        inputs,
                        inputs,
                        outputs,
                        0,
                        outputs,
                        at(x),
                        at(packed),
                        0,
                        0,
                        at(out));
                float[] product = out.getFloatArray(0, inputs * outputs);
                for (int i = 0; i < product.length; i++) {
                    product[i] /= 127;
                }
                return product;
            }
        }

        private static long at(Memory memory) {
            return Pointer.nativeValue(memory);
        }
    }

    @Test
    void shapesThatDoNotFitTogetherAreRefusedByName() throws Exception {
        write("gptq", "gptq", 32, ScalarType.FLOAT16);
        Path config = packed.resolve("config.json");
        Files.writeString(
                config, Files.readString(config).replace("\"group_size\":32", "\"group_size\":16"));
        refuse("model.safetensors", "must have the shape (4, ");
    }

    @Test
    void groupThatDoesNotExistIsRefusedByName() throws Exception {
        write("gptq", "out_of_range", 32, ScalarType.FLOAT16);
        Exception e = assertThrows(Exception.class, () -> generate(packed, 1));
        String message = e.getMessage();
        assertTrue(message.contains("model.safetensors: model.layers.0.mlp."), message);
        assertTrue(message.contains(".g_idx names groups other than 0 to 1"), message);
    }

    private void refuse(String... parts) {
        String message =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> GgufDirectory.openWeights(packed))
                        .getMessage();
        for (String part : parts) {
            assertTrue(message.contains(part), message);
        }
    }

    /** Changes the header of the file; the text must keep its length. */
    @ParameterizedTest
    @CsvSource({
        ".qweight\":{\"dtype\":\"I32, .qweight\":{\"dtype\":\"F32, .qweight, INT32",
        ".qzeros\":{\"dtype\":\"I32, .qzeros\":{\"dtype\":\"F32, .qzeros, INT32",
        ".g_idx\":{\"dtype\":\"I32, .g_idx\":{\"dtype\":\"F32, .g_idx, INT32",
        ".scales\":{\"dtype\":\"F16, .scales\":{\"dtype\":\"I16, .scales, FLOAT16",
        ".scales, .scalez, .scales, missing",
        ".qzeros, .qzeroz, .qzeros, missing"
    })
    void damagedTensorIsRefusedByName(String text, String instead, String suffix, String problem)
            throws Exception {
        write("gptq", "gptq", 32, ScalarType.FLOAT16);
        Path file = packed.resolve("model.safetensors");
        String bytes = Files.readString(file, StandardCharsets.ISO_8859_1);
        assertTrue(bytes.contains(LAYER + text), text);
        Files.writeString(
                file, bytes.replace(LAYER + text, LAYER + instead), StandardCharsets.ISO_8859_1);
        refuse("model.safetensors", LAYER + suffix, problem);
    }
}
