// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.types.DataType;
import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.djlx.collectives.GpuTests;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.fusedops.FusedOps;
import org.djlx.fusedops.UsageCounter;
import org.djlx.llm.model.KvCacheDtype;
import org.djlx.llm.model.LlamaFiles;
import org.djlx.llm.model.LlamaReference;
import org.djlx.llm.model.ModelConfig;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.QuantizedReference;
import org.djlx.llm.model.TrainedLlama;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Logits of a small Llama with quantized weights on GPUs, against loops in float64. */
@Tag("gpu")
@Tag("beside")
@Timeout(120)
class QuantizationGpuTest {

    @TempDir private Path directory;

    /** In steps of up to 8 rows, or 32, activations have 16 bits: only the weights are rounded. */
    @ParameterizedTest
    @CsvSource({
        "FP8, BFLOAT16, true, 1",
        "FP8, BFLOAT16, false, 1",
        "FP8, BFLOAT16, true, 2",
        "FP8, BFLOAT16, false, 4",
        "INT4, BFLOAT16, true, 1",
        "INT4, FLOAT16, false, 1",
        "INT4, BFLOAT16, true, 2",
        "INT4, FLOAT16, false, 4"
    })
    void stepsHaveTheLogitsOfRoundedWeights(
            Quantization quantization, ScalarType type, boolean tied, int ranks) throws Exception {
        int most = ModelKernels.matmulRows(quantization, false);
        Case of = new Case(quantization, type, tied, ranks, most - 2, 1, 1, most, 7, 1);
        double tolerance = LlamaModelTest.tolerance(of.config);
        double[][] expected = of.expected(quantization);
        float[][] logits = of.logits();
        for (int i = 0; i < logits.length; i++) {
            for (int token = 0; token < logits[i].length; token++) {
                assertEquals(expected[i][token], logits[i][token], tolerance, i + ", " + token);
            }
        }
    }

    /**
     * A prompt, steps of 16 and of more than 32 rows, and steps after them. With FP8 their
     * activations are rounded to 4 bits, by 2.6 % in the root mean square, in five products of both
     * layers and in the last one. Projections may have biases. The rows of the prompt are divided
     * among 2 and 4 ranks, but not among 8.
     */
    @ParameterizedTest
    @CsvSource({
        "FP8, BFLOAT16, true, false, 1, 0.1",
        "FP8, BFLOAT16, true, true, 1, 0.1",
        "FP8, BFLOAT16, true, false, 2, 0.1",
        "FP8, BFLOAT16, true, true, 2, 0.1",
        "FP8, BFLOAT16, false, true, 4, 0.1",
        "FP8, BFLOAT16, true, true, 8, 0.1",
        "INT4, BFLOAT16, true, false, 1, 0.02",
        "INT4, FLOAT16, false, false, 1, 0.005",
        "INT4, BFLOAT16, true, true, 2, 0.02",
        "INT4, FLOAT16, false, false, 2, 0.005",
        "INT4, BFLOAT16, true, false, 4, 0.02",
        "INT4, BFLOAT16, false, false, 8, 0.02"
    })
    void promptsAndLargeStepsHaveThemButForRounding(
            Quantization quantization,
            ScalarType type,
            boolean tied,
            boolean biased,
            int ranks,
            double most)
            throws Exception {
        ModelConfig model = LlamaFiles.decodable(type, tied, 16, biased);
        Case of = new Case(quantization, model, ranks, 100, 1, 16, 50, 1);
        float[][] logits = of.logits();
        double[][] rounded = of.expected(quantization);
        double[][] exact = of.expected(Quantization.NONE);
        for (int i = 0; i < logits.length; i++) {
            double error = error(rounded[i], logits[i]);
            double all = error(exact[i], logits[i]);
            String errors =
                    String.format(
                            "%s, chunk %d: error %.4f, with that of rounded weights %.4f",
                            quantization, i, error, all);
            System.out.println(errors);
            assertTrue(error < most, errors);
            assertTrue(all > 0.01, errors); // The weights are rounded.
        }
    }

    /**
     * Steps of so many sequences of one token each: by decode kernels up to 8 rows, by {@link
     * WideMatmul} up to 64, by cuBLASLt above. The first have 16-bit activations.
     */
    @ParameterizedTest
    @CsvSource({"1", "2", "4"})
    void stepsOfAnyNumberOfRowsHaveThemButForRounding(int ranks) throws Exception {
        ModelConfig model = LlamaFiles.decodable(ScalarType.BFLOAT16, false, 16);
        int[] rows = {1, 8, 9, 64, 65, 200};
        int[] chunks = new int[200];
        Arrays.fill(chunks, 1);
        Case of = new Case(Quantization.FP8, model, ranks, chunks);
        LlamaReference reference = of.reference(Quantization.FP8, KvCacheDtype.AUTO);
        List<TokenBatch> batches = new ArrayList<>();
        for (int count : rows) {
            List<TokenBatch.Chunk> step = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                int[] tokens = {of.tokens[i]};
                step.add(QuantizationTest.chunk(i, tokens, 0, LlamaModelTest.slots(i, 1)));
            }
            batches.add(new TokenBatch(step));
        }
        float[][] logits = logits(of.config, ranks, Quantization.FP8, batches);
        int next = 0;
        for (int count : rows) {
            double error = 0;
            for (int i = 0; i < count; i++) {
                double[] expected = reference.logits(new int[] {of.tokens[i]})[0];
                error += error(expected, logits[next++]) / count;
            }
            double most = count <= 8 ? 0.02 : 0.1;
            String text = ranks + " ranks, " + count + " rows: mean error " + error;
            System.out.println(text);
            assertTrue(error < most, text);
        }
        assertEquals(next, logits.length);
    }

    /**
     * Prompts in one prefill, whose last tokens are more rows than the decode kernels take. The
     * logits of another prompt have an error of 1 or more, which alone raises the mean above 0.1.
     */
    @ParameterizedTest
    @CsvSource({"1", "2", "4", "8"})
    void manyPromptsEndInOnePrefill(int ranks) throws Exception {
        int[] chunks = new int[16];
        Arrays.fill(chunks, 9);
        Case of = new Case(Quantization.FP8, ScalarType.BFLOAT16, true, ranks, chunks);
        List<TokenBatch.Chunk> prompts = new ArrayList<>();
        for (int i = 0; i < chunks.length; i++) { // Each ends where a chunk does.
            int[] tokens = Arrays.copyOf(of.tokens, (i + 1) * 9);
            int[] slots = LlamaModelTest.slots(9 * i, tokens.length);
            prompts.add(QuantizationTest.chunk(i, tokens, 0, slots));
        }
        TokenBatch batch = new TokenBatch(prompts);
        assertEquals(List.of(prompts), batch.prefills(true));
        assertTrue(prompts.size() > ModelKernels.matmulRows(of.quantization, false));
        float[][] logits;
        try (UsageCounter counter = FusedOps.countUsage()) {
            logits = logits(of.config, ranks, of.quantization, List.of(batch));
            // Four projections of the first layer, and the keys and values of the last one.
            long calls = 0;
            for (org.djlx.fusedops.cost.Path path : org.djlx.fusedops.cost.Path.values()) {
                calls += counter.calls("allGatherScaledMatmul", path);
                calls += counter.calls("scaledMatmulReduceScatter", path);
            }
            assertEquals(ranks > 1 ? 5L * ranks : 0, calls);
        }
        assertEquals(chunks.length, logits.length);
        double[][] rounded = of.expected(of.quantization);
        double error = 0;
        for (int i = 0; i < chunks.length; i++) {
            error += error(rounded[i], logits[i]) / chunks.length;
        }
        assertTrue(error < 0.1, "mean error " + error);
    }

    /**
     * Keys and values in fp8, beside a reference that rounds them. Single tokens and short chunks
     * attend to all as they are stored; a long first chunk attends to its own before they are
     * rounded, and later chunks to all as they are stored. Elements of 16 bits are rounded to
     * another number than the reference's if they lie near the middle of two e4m3.
     */
    @ParameterizedTest
    @CsvSource({
        "BFLOAT16, 1, 1, 1, 0.03",
        "FLOAT16, 1, 1, 1, 0.015",
        "BFLOAT16, 40, 30, 1, 0.03",
        "BFLOAT16, 100, 80, 1, 0.05",
        "FLOAT16, 100, 80, 1, 0.05",
        "BFLOAT16, 100, 80, 2, 0.05"
    })
    void promptsAndStepsAgreeOnRoundedKeysAndValues(
            ScalarType type, int first, int second, int ranks, double most) throws Exception {
        int[] chunks = new int[40];
        Arrays.fill(chunks, 1);
        chunks[0] = first;
        chunks[1] = second;
        Case of = new Case(Quantization.NONE, type, true, ranks, chunks);
        double[][] exact = of.expected(Quantization.NONE);
        double[][] rounded = of.expected(Quantization.NONE, KvCacheDtype.FP8);
        ModelConfig config = ModelConfig.read(directory, null, KvCacheDtype.FP8);
        float[][] logits = logits(config, ranks, Quantization.NONE, of.tokens, chunks);
        double own = 0;
        double all = 0;
        for (int i = 0; i < chunks.length; i++) {
            own += error(rounded[i], logits[i]) / chunks.length;
            all += error(exact[i], logits[i]) / chunks.length;
        }
        String errors =
                String.format(
                        "%s, chunks of %d and %d: mean error %.4f, with that of an fp8 cache %.4f",
                        type, first, second, own, all);
        System.out.println(errors);
        assertTrue(own < most, errors);
        assertTrue(all > 0.015 && all < 0.06, errors); // Keys and values are rounded.
    }

    /** As {@link QuantizationTest}'s, in bfloat16; steps of one token. */
    @ParameterizedTest
    @CsvSource({"1", "2"})
    void theLossOfATrainedModelRisesLittle(int ranks) throws Exception {
        P2pRanks.require(1);
        GpuTests.require(ranks);
        TrainedLlama trained = TrainedLlama.write(directory);
        Map<String, Double> losses = new LinkedHashMap<>();
        for (KvCacheDtype dtype : KvCacheDtype.values()) {
            ModelConfig config = ModelConfig.read(directory, DataType.BFLOAT16, dtype);
            for (Quantization quantization :
                    List.of(Quantization.NONE, Quantization.FP8, Quantization.INT4)) {
                float[][] logits =
                        logits(config, ranks, quantization, trained.tokens(), trained.chunks());
                losses.put(quantization + "/" + dtype, trained.loss(logits));
            }
        }
        System.out.println("losses, weights/cache " + losses);
        double exact = losses.get("none/auto");
        assertTrue(exact < TrainedLlama.ENTROPY + 0.3, losses::toString);
        assertTrue(losses.get("fp8/auto") - exact < 0.02, losses::toString);
        assertTrue(losses.get("int4/auto") - exact < 0.03, losses::toString);
        assertTrue(losses.get("none/fp8") - exact < 0.02, losses::toString);
        assertTrue(losses.get("fp8/fp8") - exact < 0.03, losses::toString);
        assertTrue(losses.get("int4/fp8") - exact < 0.04, losses::toString);
    }

    private static double error(double[] expected, float[] actual) {
        float[] floats = new float[expected.length];
        for (int i = 0; i < floats.length; i++) {
            floats[i] = (float) expected[i];
        }
        return QuantizationTest.error(floats, actual);
    }

    /** A model, and a sequence that it reads in chunks. */
    private final class Case {

        final ModelConfig config;
        private final Quantization quantization;
        private final int ranks;
        private final int[] chunks;
        private final int[] tokens;

        Case(Quantization quantization, ScalarType type, boolean tied, int ranks, int... chunks)
                throws IOException {
            this(quantization, LlamaFiles.decodable(type, tied, 16), ranks, chunks);
        }

        Case(Quantization quantization, ModelConfig model, int ranks, int... chunks)
                throws IOException {
            P2pRanks.require(1);
            LlamaFiles.write(directory, model, 1);
            config = ModelConfig.read(directory);
            this.quantization = quantization;
            this.ranks = ranks;
            this.chunks = chunks;
            tokens = new Random(3).ints(Arrays.stream(chunks).sum(), 0, 203).toArray();
        }

        /** Returns the logits after each chunk, of weights as they are stored. */
        double[][] expected(Quantization of) throws IOException {
            return expected(of, KvCacheDtype.AUTO);
        }

        /** Returns the logits after each chunk, also of keys and values as they are stored. */
        double[][] expected(Quantization of, KvCacheDtype cache) throws IOException {
            double[][] all = reference(of, cache).logits(tokens);
            double[][] last = new double[chunks.length][];
            int end = 0;
            for (int i = 0; i < chunks.length; i++) {
                end += chunks[i];
                last[i] = all[end - 1];
            }
            return last;
        }

        /** Each rank rounds its own rows, or its own columns of o_proj and down_proj. */
        LlamaReference reference(Quantization of, KvCacheDtype cache) throws IOException {
            int size = config.headSize();
            return new LlamaReference(
                    directory,
                    (spec, values) -> {
                        String name = spec.name();
                        if (name.contains("norm")
                                || name.contains("embed_tokens")
                                || name.endsWith(".bias")) {
                            return values;
                        }
                        boolean byColumns = name.contains("o_proj") || name.contains("down_proj");
                        int depth = (int) spec.shape().get(1) / (byColumns ? ranks : 1);
                        return QuantizedReference.rounded(values, depth, of);
                    },
                    heads ->
                            cache == KvCacheDtype.AUTO
                                    ? heads
                                    : QuantizedReference.fp8(heads, size));
        }

        /** Returns the logits after each chunk. */
        float[][] logits() throws Exception {
            return QuantizationGpuTest.this.logits(config, ranks, quantization, tokens, chunks);
        }
    }

    /** Returns the logits after each chunk of a sequence. */
    private float[][] logits(
            ModelConfig config, int ranks, Quantization quantization, int[] tokens, int... chunks)
            throws Exception {
        return logits(config, ranks, quantization, QuantizationTest.batches(tokens, chunks));
    }

    /** Returns the logits after each chunk of the batches. */
    private float[][] logits(
            ModelConfig config, int ranks, Quantization quantization, List<TokenBatch> batches)
            throws Exception {
        P2pRanks.require(1);
        GpuTests.require(ranks); // ranks that share a GPU would need streams of their own
        List<ProcessGroup> groups =
                ProcessGroups.local("cuda_p2p", ranks, P2pRanks.options().build());
        try (Safetensors files = Safetensors.open(directory)) {
            return ProcessGroups.run(
                            groups,
                            group ->
                                    QuantizationTest.read(
                                            group, config, quantization, files, batches))
                    .get(0);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
