// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.llm.model;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.types.DataType;
import java.io.IOException;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.djlx.collectives.ProcessGroup;
import org.djlx.collectives.ProcessGroups;
import org.djlx.collectives.internal.cudap2p.P2pRanks;
import org.djlx.collectives.safetensors.Safetensors;
import org.djlx.fusedops.QuantizedReference;
import org.djlx.nativeops.torch.ScalarType;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Logits of a small Llama with quantized weights on GPUs, against loops in float64. */
@Tag("gpu")
@Timeout(120)
class QuantizationGpuTest {

    @TempDir private Path directory;

    /** In steps of up to 8 rows, or 32, activations have 16 bits: only the weights are rounded. */
    @ParameterizedTest
    @CsvSource({
        "FP8, BFLOAT16, true",
        "FP8, BFLOAT16, false",
        "INT4, BFLOAT16, true",
        "INT4, FLOAT16, false"
    })
    void stepsHaveTheLogitsOfRoundedWeights(
            Quantization quantization, ScalarType type, boolean tied) throws Exception {
        int most = quantization.gpuRows(false);
        Case of = new Case(quantization, type, tied, most - 2, 1, 1, most, 7, 1);
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
     * layers and in the last one.
     */
    @ParameterizedTest
    @CsvSource({
        "FP8, BFLOAT16, true, 0.1",
        "INT4, BFLOAT16, true, 0.02",
        "INT4, FLOAT16, false, 0.005"
    })
    void promptsAndLargeStepsHaveThemButForRounding(
            Quantization quantization, ScalarType type, boolean tied, double most)
            throws Exception {
        Case of = new Case(quantization, type, tied, 100, 1, 16, 50, 1);
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

    /** As {@link QuantizationTest}'s, in bfloat16; steps of one token. */
    @Test
    void theLossOfATrainedModelRisesLittle() throws Exception {
        P2pRanks.require(1);
        TrainedLlama trained = TrainedLlama.write(directory);
        ModelConfig config = ModelConfig.read(directory, DataType.BFLOAT16);
        Map<Quantization, Double> losses = new EnumMap<>(Quantization.class);
        for (Quantization quantization :
                List.of(Quantization.NONE, Quantization.FP8, Quantization.INT4)) {
            float[][] logits = logits(config, quantization, trained.tokens(), trained.chunks());
            losses.put(quantization, trained.loss(logits));
        }
        System.out.println("losses " + losses);
        double exact = losses.get(Quantization.NONE);
        assertTrue(exact < TrainedLlama.ENTROPY + 0.3, losses::toString);
        assertTrue(losses.get(Quantization.FP8) - exact < 0.02, losses::toString);
        assertTrue(losses.get(Quantization.INT4) - exact < 0.03, losses::toString);
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
        private final int[] chunks;
        private final int[] tokens;

        Case(Quantization quantization, ScalarType type, boolean tied, int... chunks)
                throws IOException {
            P2pRanks.require(1);
            LlamaFiles.write(directory, LlamaFiles.decodable(type, tied, 16), 1);
            config = ModelConfig.read(directory);
            this.quantization = quantization;
            this.chunks = chunks;
            tokens = new Random(3).ints(Arrays.stream(chunks).sum(), 0, 203).toArray();
        }

        /** Returns the logits after each chunk, of weights as they are stored. */
        double[][] expected(Quantization of) throws IOException {
            LlamaReference reference =
                    new LlamaReference(
                            directory,
                            (spec, values) -> {
                                String name = spec.name();
                                if (name.contains("norm") || name.contains("embed_tokens")) {
                                    return values;
                                }
                                int depth = (int) spec.shape().get(1);
                                return QuantizedReference.rounded(values, depth, of);
                            });
            double[][] all = reference.logits(tokens);
            double[][] last = new double[chunks.length][];
            int end = 0;
            for (int i = 0; i < chunks.length; i++) {
                end += chunks[i];
                last[i] = all[end - 1];
            }
            return last;
        }

        /** Returns the logits after each chunk. */
        float[][] logits() throws Exception {
            return QuantizationGpuTest.this.logits(config, quantization, tokens, chunks);
        }
    }

    /** Returns the logits after each chunk of a sequence. */
    private float[][] logits(
            ModelConfig config, Quantization quantization, int[] tokens, int... chunks)
            throws Exception {
        List<ProcessGroup> groups = ProcessGroups.local("cuda_p2p", 1, P2pRanks.options().build());
        try (Safetensors files = Safetensors.open(directory)) {
            return ProcessGroups.run(
                            groups,
                            group ->
                                    QuantizationTest.read(
                                            group, config, quantization, files, tokens, chunks))
                    .get(0);
        } finally {
            groups.forEach(ProcessGroup::destroy);
        }
    }
}
