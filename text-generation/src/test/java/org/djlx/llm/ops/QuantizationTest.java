// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDManager;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.collectives.safetensors.SafetensorsWriter;
import org.djlx.collectives.safetensors.TensorSpec;
import org.djlx.llm.engine.TextEngine;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.LayerConfig;
import org.djlx.llm.model.LlamaConfig;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.ModelFixture;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.TrainedLlama;
import org.djlx.llm.model.WeightMap;
import org.djlx.llm.sampling.Logits;
import org.djlx.llm.sampling.SamplingParameters;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Logits of a small Llama with weights of 8 and 4 bits, beside those of its float32 weights. */
class QuantizationTest {

    private static final int TOKENS = 80; // enough to divide a prompt among 4 ranks
    private static final int STEPS = 6;

    @TempDir private Path directory;

    @ParameterizedTest
    @CsvSource({
        "INT8, FLOAT32, true, 1", "INT8, FLOAT32, false, 4", "INT8, BFLOAT16, true, 2",
        "INT4, FLOAT32, true, 1", "INT4, FLOAT32, false, 4", "INT4, BFLOAT16, true, 2"
    })
    void logitsAreThoseOfTheWeightsButForRounding(
            Quantization quantization, ScalarType type, boolean tied, int ranks) throws Exception {
        LlamaFiles.write(directory, LlamaFiles.decodable(type, tied, 16), 1);
        ModelConfig config = ModelConfig.read(directory);
        float[] exact = logits(config, Quantization.NONE, ranks, TOKENS);
        float[] decoded = logits(config, quantization, ranks, TOKENS);
        // As a prompt: the sums are rounded in another order, or to bfloat16.
        float[] prompt = logits(config, quantization, ranks, TOKENS + STEPS);
        double error = error(exact, decoded);
        // Rounding errors of a product's weights are 0.6 % of it with INT8, and 7 % with INT4; ten
        // products follow each other.
        double most = quantization == Quantization.INT8 ? 0.03 : 0.35;
        assertTrue(error > most / 100 && error < most, "error " + error);
        double difference = error(prompt, decoded);
        assertTrue(difference < 0.03, "prompt beside decode steps " + difference);
    }

    /** A router whose scores differ by more than 104, so that float32 rounds weights to 0. */
    @Test
    void expertsWithoutWeightAddNothing() throws Exception {
        LayerConfig.Experts experts = new LayerConfig.Experts(8, 4, true);
        LayerConfig layer = LayerConfig.llama(LlamaFiles.rope(16), 16, 64).withExperts(64, experts);
        ModelConfig config =
                LlamaConfig.builder().modelType("mixtral").tied(true).layers(2, layer).build();
        List<TensorSpec> specs = new ArrayList<>();
        WeightMap.shapes(config)
                .forEach((name, shape) -> specs.add(TensorSpec.of(name, config.type(), shape)));
        try (NDManager manager = NDManager.newBaseManager()) {
            SafetensorsWriter.writeModel(
                    directory,
                    specs,
                    1 << 20,
                    spec ->
                            LlamaFiles.values(manager, spec, 1)
                                    .mul(spec.name().endsWith("gate.weight") ? 1000 : 1));
        }
        float[] prompt = logits(config, Quantization.NONE, 1, TOKENS + STEPS);
        double difference = error(prompt, logits(config, Quantization.NONE, 1, TOKENS));
        assertTrue(difference < 1e-4, "prompt beside decode steps " + difference);
    }

    /**
     * A trained model predicts about as well. Perplexities, the exponentials of the losses, rise by
     * as many percent as the losses by hundredths.
     */
    @Test
    void theLossOfATrainedModelRisesLittle() throws Exception {
        TrainedLlama trained = TrainedLlama.write(directory);
        ModelConfig config = ModelConfig.read(directory);
        double exact =
                trained.loss(
                        logits(config, Quantization.NONE, 1, trained.tokens(), trained.chunks()));
        double int8 =
                trained.loss(
                        logits(config, Quantization.INT8, 1, trained.tokens(), trained.chunks()));
        double int4 =
                trained.loss(
                        logits(config, Quantization.INT4, 1, trained.tokens(), trained.chunks()));
        String losses = String.format("losses %.4f, int8 %.4f, int4 %.4f", exact, int8, int4);
        System.out.println(losses);
        assertTrue(exact < TrainedLlama.ENTROPY + 0.3, losses);
        assertTrue(Math.abs(int8 - exact) < 0.01, losses);
        assertTrue(int4 - exact < 0.03, losses);
    }

    /**
     * Returns the logits after all tokens.
     *
     * @param promptTokens the tokens of the prompt; the others are decoded one by one
     */
    private float[] logits(
            ModelConfig config, Quantization quantization, int ranks, int promptTokens)
            throws Exception {
        int[] tokens = IntStream.range(0, TOKENS + STEPS).map(i -> (37 * i + 11) % 203).toArray();
        int[] chunks = new int[1 + tokens.length - promptTokens];
        Arrays.fill(chunks, 1);
        chunks[0] = promptTokens;
        return logits(config, quantization, ranks, tokens, chunks)[chunks.length - 1];
    }

    /** Returns the logits after each chunk of a sequence, of rank 0. */
    private float[][] logits(
            ModelConfig config, Quantization quantization, int ranks, int[] tokens, int... chunks)
            throws Exception {
        List<ProcessGroup> groups = ProcessGroups.local(ranks);
        List<TokenBatch> batches = batches(tokens, chunks);
        try (Safetensors files = Safetensors.open(directory)) {
            List<float[][]> all =
                    ProcessGroups.run(
                            groups, group -> read(group, config, quantization, files, batches));
            assertEquals(ranks, all.size());
            return all.get(0);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }

    /** Returns a batch for each chunk of a sequence. */
    static List<TokenBatch> batches(int[] tokens, int... chunks) {
        int[] slots = LlamaModelTest.slots(0, tokens.length);
        List<TokenBatch> batches = new ArrayList<>();
        int start = 0;
        for (int count : chunks) {
            int[] next = Arrays.copyOfRange(tokens, start, start + count);
            batches.add(new TokenBatch(List.of(chunk(0, next, start, slots))));
            start += count;
        }
        return batches;
    }

    static TokenBatch.Chunk chunk(int sequence, int[] tokens, int start, int[] slots) {
        return new TokenBatch.Chunk(
                sequence, tokens, start, slots, true, SamplingParameters.GREEDY, 0);
    }

    /** Returns the logits after each chunk of the batches. All ranks call this. */
    static float[][] read(
            ProcessGroup group,
            ModelConfig config,
            Quantization quantization,
            Safetensors files,
            List<TokenBatch> batches) {
        int ranks = group.worldSize();
        List<int[]> slots =
                batches.stream()
                        .flatMap(batch -> batch.chunks().stream())
                        .map(TokenBatch.Chunk::slots)
                        .toList();
        int cached = 1 + slots.stream().flatMapToInt(Arrays::stream).max().orElseThrow();
        int maxLength = slots.stream().mapToInt(each -> each.length).max().orElseThrow();
        ModelWeights weights =
                ModelWeights.read(
                        config,
                        group.rank(),
                        ranks,
                        group.device(),
                        new WeightFormat(quantization),
                        files,
                        true,
                        bytes -> {});
        KvCache cache = new KvCache(config, ranks, cached, group.device());
        List<float[]> rows = new ArrayList<>();
        try (TransformerModel model =
                        TransformerModel.create(config, group, weights, cache, maxLength, false);
                NDManager manager = NDManager.newBaseManager(group.device())) {
            assertEquals(group.device().isGpu(), model.hasDecoder());
            model.keepLogits();
            for (TokenBatch batch : batches) {
                Logits logits = model.forward(batch, manager);
                for (int i = 0; i < logits.count(); i++) {
                    rows.add(logits.toArray(i));
                }
            }
        }
        return rows.toArray(float[][]::new);
    }

    /** Kernels alone read a KV cache in fp8. */
    @Test
    void aModelWithoutKernelsRefusesFp8KeysAndValues() throws Exception {
        LlamaFiles.write(directory, LlamaFiles.config(ScalarType.BFLOAT16, true), 1);
        ModelConfig config = ModelConfig.read(directory, null, KvCacheDtype.FP8);
        Exception e =
                assertThrows(Exception.class, () -> logits(config, Quantization.NONE, 1, TOKENS));
        assertTrue(e.toString().contains("fp8 keys and values need kernels"), e::toString);
    }

    /** Returns the root mean square of the difference, relative to that of the expected. */
    static double error(float[] expected, float[] actual) {
        double difference = 0;
        double size = 0;
        for (int i = 0; i < expected.length; i++) {
            difference += Math.pow(expected[i] - actual[i], 2);
            size += Math.pow(expected[i], 2);
        }
        return Math.sqrt(difference / size);
    }

    @ParameterizedTest
    @CsvSource({
        "INT8, AUTO, BFLOAT16, 1, int8 weights are supported on CPUs only",
        "INT8, FP8, BFLOAT16, 2, int8 weights are supported on CPUs only",
        "FP8, AUTO, FLOAT16, 1, fp8 weights need a model in bfloat16",
        "FP8, AUTO, FLOAT16, 2, fp8 weights need a model in bfloat16",
        "FP8, AUTO, BFLOAT16, 0, fp8 weights are for GPUs; set a GPU as the device, or use int8",
        "NONE, FP8, BFLOAT16, 0, fp8 keys and values are for GPUs; set a GPU as the device, or the"
                + " KV cache dtype auto",
        "INT8, FP8, BFLOAT16, 0, fp8 keys and values are for GPUs; set a GPU as the device, or the"
                + " KV cache dtype auto",
        "NONE, FP8, FLOAT32, 1, fp8 keys and values need kernels",
        "NONE, , BFLOAT16, 1, the KV cache dtype is null; use KvCacheDtype.AUTO",
        ", AUTO, BFLOAT16, 1, the quantization is null; use Quantization.NONE"
    })
    void devicesRefuseWhatTheyCannotCompute(
            Quantization quantization,
            KvCacheDtype dtype,
            ScalarType type,
            int gpus,
            String message)
            throws Exception {
        LlamaFiles.write(directory, LlamaFiles.config(type, true), 1);
        refuses(quantization, dtype, gpus, message);
    }

    /** Whether there are kernels for the sizes and the GPU does not matter. */
    @ParameterizedTest
    @CsvSource({
        "FP8, AUTO, 1, fp8",
        "INT4, AUTO, 1, int4",
        "FP8, FP8, 2, fp8",
        "INT4, AUTO, 2, int4",
        "INT8, AUTO, 1, int8"
    })
    void gpusRefuseQuantizedExperts(
            Quantization quantization, KvCacheDtype dtype, int gpus, String text) throws Exception {
        ModelFixture.write("mixtral", directory, ScalarType.BFLOAT16);
        refuses(quantization, dtype, gpus, "experts need weights of 16 bits, not " + text);
    }

    private void refuses(Quantization quantization, KvCacheDtype dtype, int gpus, String message) {
        TextEngine.Builder builder =
                TextEngine.builder()
                        .setDirectory(directory)
                        .optQuantization(quantization)
                        .optKvCacheDtype(dtype);
        if (gpus > 0) {
            builder.optDevices(IntStream.range(0, gpus).mapToObj(Device::gpu).toList());
        }
        Exception e = assertThrows(IllegalArgumentException.class, builder::build);
        assertTrue(e.getMessage().contains(message), e::toString);
    }
}
