// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Operators that autograd records: attention and silu. */
class TorchRecordedTest {

    private final NDManager manager = NDManager.newBaseManager("PyTorch");
    private final Random random = new Random(5);

    @BeforeEach
    void switchGradientsOn() {
        JniUtils.setGradMode(true);
    }

    @AfterEach
    void close() {
        JniUtils.setGradMode(false);
        manager.close();
    }

    private NDArray random(Shape shape, ScalarType type) {
        double[] values = new double[(int) shape.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = random.nextGaussian();
        }
        return Torch.cast(manager.create(values, shape), type);
    }

    /** The result and the gradients of all three inputs. */
    private static List<double[]> run(NDArray[] inputs, boolean causal, NDArray weights) {
        List<double[]> results = new ArrayList<>();
        for (NDArray input : inputs) {
            input.setRequiresGradient(true);
        }
        NDArray y = Torch.attention(inputs[0], inputs[1], inputs[2], causal);
        JniUtils.backward((PtNDArray) y, (PtNDArray) weights, false, false);
        results.add(doubles(y.stopGradient()));
        for (NDArray input : inputs) {
            try (NDArray gradient = input.getGradient()) {
                results.add(doubles(gradient));
            }
        }
        return results;
    }

    private static double[] doubles(NDArray array) {
        return NoGradient.get(() -> Torch.cast(array, ScalarType.FLOAT64).toDoubleArray());
    }

    /** The same by matmuls and softmax, in float64. */
    private List<double[]> reference(NDArray[] originals, boolean causal, NDArray weights) {
        NDArray[] inputs = new NDArray[3];
        for (int i = 0; i < 3; i++) {
            NDArray original = originals[i].stopGradient();
            inputs[i] = NoGradient.get(() -> Torch.cast(original, ScalarType.FLOAT64));
            inputs[i].setRequiresGradient(true);
        }
        long queries = inputs[0].getShape().get(2);
        long keys = inputs[1].getShape().get(2);
        double[] mask = new double[(int) (queries * keys)];
        for (int q = 0; q < queries; q++) {
            for (int k = 0; k < keys; k++) {
                mask[(int) (q * keys + k)] = causal && k > q ? Double.NEGATIVE_INFINITY : 0;
            }
        }
        NDArray scale = manager.create(1 / Math.sqrt(inputs[0].getShape().get(3)));
        NDArray scores = inputs[0].matMul(inputs[1].transpose(0, 1, 3, 2)).mul(scale);
        NDArray seen = scores.add(manager.create(mask, new Shape(queries, keys)));
        NDArray y = seen.softmax(3).matMul(inputs[2]);
        NDArray wide = NoGradient.get(() -> Torch.cast(weights, ScalarType.FLOAT64));
        JniUtils.backward((PtNDArray) y, (PtNDArray) wide, false, false);
        List<double[]> results = new ArrayList<>();
        results.add(doubles(y.stopGradient()));
        for (NDArray input : inputs) {
            try (NDArray gradient = input.getGradient()) {
                results.add(doubles(gradient));
            }
        }
        return results;
    }

    @ParameterizedTest
    @CsvSource({
        "FLOAT64, true, 5, 5, 1e-12",
        "FLOAT64, false, 5, 7, 1e-12",
        "FLOAT32, true, 33, 33, 1e-4",
        "BFLOAT16, true, 33, 33, 0.1"
    })
    void equalsMatmulsAndSoftmax(
            ScalarType type, boolean causal, long queries, long keys, double tolerance) {
        NDArray[] inputs = {
            random(new Shape(2, 3, queries, 8), type),
            random(new Shape(2, 3, keys, 8), type),
            random(new Shape(2, 3, keys, 8), type)
        };
        NDArray weights = random(new Shape(2, 3, queries, 8), type);
        List<double[]> actual = run(inputs, causal, weights);
        List<double[]> expected = reference(inputs, causal, weights);
        for (int i = 0; i < 4; i++) {
            assertArrayEquals(expected.get(i), actual.get(i), tolerance, "number " + i);
        }
    }

    /** As with keys and values that are there once for each of their heads of queries. */
    @Test
    void headsOfQueriesShareKeys() {
        NDArray query = random(new Shape(2, 6, 9, 8), ScalarType.FLOAT32);
        NDArray key = random(new Shape(2, 2, 9, 8), ScalarType.FLOAT32);
        NDArray value = random(new Shape(2, 2, 9, 8), ScalarType.FLOAT32);
        double[] shared = doubles(Torch.attention(query, key, value, true));
        double[] repeated =
                doubles(Torch.attention(query, key.repeat(1, 3), value.repeat(1, 3), true));
        assertArrayEquals(repeated, shared, 1e-5);
    }

    /** The scores of all pairs alone would take 288 MiB. */
    @Test
    void headsThatShareKeysTakeNoMemoryForScores() throws IOException {
        int tokens = 3072;
        NDArray query = random(new Shape(1, 8, tokens, 16), ScalarType.FLOAT32);
        NDArray key = random(new Shape(1, 2, tokens, 16), ScalarType.FLOAT32);
        NoGradient.run(
                () -> Torch.attention(query, key, key, true).close()); // Loads what it takes.
        Path reset = Path.of("/proc/self/clear_refs");
        assumeTrue(Files.isWritable(reset), "the highest use of memory cannot be set back");
        Files.writeString(reset, "5");
        long before = mostMemory();
        NoGradient.run(() -> Torch.attention(query, key, key, true).close());
        long more = mostMemory() - before;
        assertTrue(more < 200L << 20, () -> more + " bytes more were used");
    }

    /** Returns the most memory that this process has had since that was set back, in bytes. */
    private static long mostMemory() throws IOException {
        String line =
                Files.readAllLines(Path.of("/proc/self/status")).stream()
                        .filter(each -> each.startsWith("VmHWM:"))
                        .findFirst()
                        .orElseThrow();
        return Long.parseLong(line.replaceAll("\\D", "")) << 10;
    }

    @Test
    void returnsAnArrayOfTheQuerysTypeAndManager() {
        NDArray query = random(new Shape(1, 2, 3, 4), ScalarType.BFLOAT16);
        NDArray y = Torch.attention(query, query, query, true);
        assertEquals(ScalarType.BFLOAT16, Torch.scalarType(y));
        assertEquals(query.getManager(), y.getManager());
        assertEquals(query.getShape(), y.getShape());
    }

    @ParameterizedTest
    @CsvSource({"FLOAT64, 1e-15", "FLOAT32, 1e-6", "BFLOAT16, 0.02"})
    void siluIsXTimesSigmoid(ScalarType type, double tolerance) {
        NDArray x = random(new Shape(3, 5), type);
        NDArray weights = random(new Shape(3, 5), type);
        double[] at = doubles(x);
        double[] weight = doubles(weights);
        x.setRequiresGradient(true);
        NDArray y = Torch.silu(x);
        JniUtils.backward((PtNDArray) y, (PtNDArray) weights, false, false);
        double[] expected = new double[at.length];
        double[] slopes = new double[at.length];
        for (int i = 0; i < at.length; i++) {
            double sigmoid = 1 / (1 + Math.exp(-at[i]));
            expected[i] = at[i] * sigmoid;
            slopes[i] = weight[i] * sigmoid * (1 + at[i] * (1 - sigmoid));
        }
        assertEquals(type, Torch.scalarType(y));
        assertArrayEquals(expected, doubles(y.stopGradient()), tolerance);
        try (NDArray gradient = x.getGradient()) {
            assertArrayEquals(slopes, doubles(gradient), tolerance);
        }
        NDArray whole = NoGradient.get(() -> Torch.cast(x, ScalarType.INT32));
        assertThrows(IllegalArgumentException.class, () -> Torch.silu(whole));
    }

    @Test
    void refusesWhatDoesNotFit() {
        NDArray query = random(new Shape(1, 2, 3, 4), ScalarType.FLOAT32);
        NDArray otherHeads = random(new Shape(1, 3, 3, 4), ScalarType.FLOAT32);
        NDArray matrix = random(new Shape(3, 4), ScalarType.FLOAT32);
        NDArray otherType = random(new Shape(1, 2, 3, 4), ScalarType.FLOAT64);
        NDArray whole = manager.ones(new Shape(1, 2, 3, 4)).toType(DataType.INT32, true);
        assertRefused("[1, 3, 3, 4]", query, otherHeads, otherHeads);
        assertRefused("[3, 4]", matrix, matrix, matrix);
        assertRefused("[1, 3, 3, 4]", query, query, otherHeads);
        assertRefused("FLOAT64", query, otherType, otherType);
        assertRefused("INT32", whole, whole, whole);
        assertRefused("the key is null", query, null, query);
    }

    @Test
    void refusesWhatHasNoAttentionOfLast() {
        NDArray query = random(new Shape(1, 2, 3, 8), ScalarType.FLOAT32);
        NDArray two = random(new Shape(2, 2, 3, 8), ScalarType.FLOAT32);
        NDArray fewer = random(new Shape(1, 2, 2, 8), ScalarType.FLOAT32);
        NDArray narrow = random(new Shape(1, 2, 3, 4), ScalarType.FLOAT32);
        NDArray wide = random(new Shape(1, 2, 3, 264), ScalarType.FLOAT32);
        NDArray headless = random(new Shape(1, 0, 3, 8), ScalarType.FLOAT32);
        NDArray none = random(new Shape(1, 2, 0, 8), ScalarType.FLOAT32);
        assertRefusedOfLast("the 3 queries and 3 keys of its packed sequences", query, fewer);
        assertRefusedOfLast("the 3 queries and 3 keys of its packed sequences", fewer, query);
        assertRefusedOfLast("a batch of 1", two, two);
        assertRefusedOfLast("multiple of 8 up to 256", narrow, narrow);
        assertRefusedOfLast("multiple of 8 up to 256", wide, wide);
        assertRefusedOfLast("shape [1, 0, 3, 8]", headless, headless);
        assertRefusedOfLast("shape [1, 2, 0, 8]", none, query);
        assertRefusedOfLast("not FLOAT32 on cpu()", query, query);
        query.setRequiresGradient(true);
        assertRefusedOfLast("has no gradient", query, query);
    }

    @Test
    void refusesRowsThatAreNotAligned() {
        NDArray x = random(new Shape(2, 4, 16), ScalarType.FLOAT16);
        requireAligned(x);
        requireAligned(x.get(":, :, 8:"));
        requireAligned(x.get("1:, :, 8:").transpose(1, 0, 2));
        requireAligned(Torch.cast(x.transpose(2, 1, 0), ScalarType.FLOAT16).get(":, :1"));
        for (NDArray wrong :
                List.of(x.get(":, :, 4:"), x.transpose(0, 2, 1), x.reshape(2, 16, 4))) {
            String message =
                    assertThrows(IllegalArgumentException.class, () -> requireAligned(wrong))
                            .getMessage();
            assertTrue(message.contains("the key must be contiguous"), message);
        }
    }

    private static void requireAligned(NDArray array) {
        Tensors.requireAligned("the key", TorchChecks.tensor(array, "the key"));
    }

    @Test
    void packedSequencesHaveQueriesAndKeys() {
        int[][][] wrong = {
            {{}, {}}, {{1, 2}, {3}}, {{1, 0}, {1, 1}}, {{2, 3}, {2, 2}}, {{-1}, {2}}
        };
        for (int[][] each : wrong) {
            String message =
                    assertThrows(
                                    IllegalArgumentException.class,
                                    () -> new PackedSequences(manager, each[0], each[1]))
                            .getMessage();
            assertTrue(message.contains("at least one query, and no fewer keys"), message);
        }
        PackedSequences packed = new PackedSequences(manager, new int[] {2, 3}, new int[] {7, 4});
        assertEquals(2, packed.count());
        assertArrayEquals(new int[] {0, 2, 5}, packed.queryEnds.toIntArray());
        assertArrayEquals(new int[] {0, 7, 11}, packed.keyEnds.toIntArray());
        assertEquals(3, packed.maxQueries);
        assertEquals(7, packed.maxKeys);
    }

    @Test
    void aMaskHidesKeys() {
        NDArray query = random(new Shape(2, 3, 5, 8), ScalarType.FLOAT32);
        NDArray keys = random(new Shape(2, 3, 7, 8), ScalarType.FLOAT32);
        NDArray values = random(new Shape(2, 3, 7, 8), ScalarType.FLOAT32);
        float[] hidden = new float[2 * 7];
        hidden[5] = Float.NEGATIVE_INFINITY;
        hidden[6] = Float.NEGATIVE_INFINITY;
        NDArray mask = manager.create(hidden, new Shape(2, 1, 1, 7));
        double[] actual = doubles(Torch.attention(query, keys, values, mask));
        for (int i = 0; i < 2; i++) {
            int seen = i == 0 ? 5 : 7;
            NDArray alone =
                    Torch.attention(
                            Torch.narrow(query, 0, i, 1),
                            Torch.narrow(Torch.narrow(keys, 0, i, 1), 2, 0, seen),
                            Torch.narrow(Torch.narrow(values, 0, i, 1), 2, 0, seen),
                            false);
            double[] expected = doubles(alone);
            for (int e = 0; e < expected.length; e++) {
                assertEquals(expected[e], actual[i * expected.length + e], 1e-6);
            }
        }
    }

    @Test
    void aMaskOfAnotherShapeOrTypeIsRefused() {
        NDArray query = random(new Shape(2, 3, 5, 8), ScalarType.FLOAT32);
        List<NDArray> masks =
                List.of(
                        manager.zeros(new Shape(2, 1, 1, 6)),
                        manager.zeros(new Shape(5)),
                        random(new Shape(1, 1, 5, 5), ScalarType.FLOAT64));
        for (NDArray mask : masks) {
            IllegalArgumentException e =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> Torch.attention(query, query, query, mask));
            assertTrue(e.getMessage().contains("[2, 3, 5, 5]"), e.getMessage());
        }
        Exception e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> Torch.attention(query, query, query, null));
        assertTrue(e.getMessage().contains("the mask"), e.getMessage());
    }

    private void assertRefusedOfLast(String what, NDArray query, NDArray key) {
        PackedSequences packed = new PackedSequences(manager, new int[] {1, 2}, new int[] {1, 2});
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> Torch.attentionOfLast(query, key, key, packed, 0));
        assertTrue(e.getMessage().contains(what), e.getMessage());
    }

    private static void assertRefused(String what, NDArray query, NDArray key, NDArray value) {
        IllegalArgumentException e =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> Torch.attention(query, key, value, false));
        assertTrue(e.getMessage().contains(what), e.getMessage());
    }
}
