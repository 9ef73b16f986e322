// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.fail;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.IntStream;
import org.djlx.collectives.GpuTests;
import org.djlx.llm.model.LayerConfig;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Mixtures of experts, compared with loops in float64. The bits do not depend on other rows. */
@Tag("gpu")
@Tag("beside")
@Timeout(120)
class ExpertKernelsGpuTest {

    private static final float UNTOUCHED = 77;

    private CudaDevice device;
    private CurrentStreams streams;
    private NDManager manager;

    /** The logits of a router. */
    private enum Router {
        /** Many are equal: they are small integers, and 0 and -0. */
        EQUAL,
        RANDOM,
        /** All rows choose expert 1. */
        SKEWED
    }

    @BeforeEach
    void open() {
        GpuTests.require(1, NativeLibrary.NVRTC);
        device = CudaDevice.open(Device.gpu(0));
        streams = new CurrentStreams(device);
        manager = NDManager.newBaseManager(Device.gpu(0));
    }

    @AfterEach
    void close() {
        if (manager != null) {
            manager.close();
            streams.close();
            device.close();
        }
    }

    /** Chunks of each size; sizes that fill stages, tiles and groups only partly. */
    @ParameterizedTest
    @CsvSource({
        "BFLOAT16, 4, 2, true, 72, 40, 256, RANDOM",
        "BFLOAT16, 8, 2, true, 264, 72, 64, SKEWED",
        "FLOAT16, 8, 2, false, 2056, 8, 48, RANDOM",
        "BFLOAT16, 128, 8, true, 264, 104, 256, RANDOM",
        "FLOAT16, 128, 8, true, 264, 104, 200, SKEWED",
        "BFLOAT16, 60, 4, false, 520, 776, 33, EQUAL",
        "BFLOAT16, 8, 8, true, 2048, 768, 5, RANDOM",
        "FLOAT16, 256, 16, true, 16, 8, 256, EQUAL",
        "BFLOAT16, 5, 1, false, 8, 16, 130, RANDOM",
        "BFLOAT16, 1, 1, true, 136, 1544, 20, RANDOM"
    })
    void mixturesAreRightAndTheSameWhateverTheNumberOfRows(
            ScalarType type,
            int count,
            int chosen,
            boolean normalizes,
            int hidden,
            int inner,
            int rows,
            Router router) {
        LayerConfig.Experts experts = new LayerConfig.Experts(count, chosen, normalizes);
        SplittableRandom random = new SplittableRandom(count + rows);
        try (Mixture mixture = new Mixture(type, experts, hidden, inner, rows, router, random)) {
            int[] positions = IntStream.range(0, rows).toArray();
            float[] all = mixture.launch(rows, positions);
            mixture.requireNear(all);
            assertArrayEquals(all, mixture.launch(rows, positions), "the second time");
            for (int few : new int[] {1, 2, 3, 8, 17, 32, 50, 100, rows - 1}) {
                if (few < rows) {
                    float[] expected = all.clone();
                    Arrays.fill(expected, few * hidden, expected.length, UNTOUCHED);
                    float[] actual = mixture.launch(few, Arrays.copyOf(positions, few));
                    assertArrayEquals(expected, actual, few + " rows");
                }
            }
            for (int row = 0; row < rows; row += 3) {
                positions[row] = -1;
                Arrays.fill(all, row * hidden, (row + 1) * hidden, 0);
            }
            assertArrayEquals(all, mixture.launch(rows, positions), "rows without tokens");
        }
    }

    /**
     * Chunks of 64 and of 128 rows, several of an expert, and experts without rows; sizes that fill
     * tiles and k-blocks only partly; more pairs than are computed at a time.
     */
    @ParameterizedTest
    @CsvSource({
        "BFLOAT16, 4, 2, true, 72, 40, 256, RANDOM",
        "BFLOAT16, 8, 2, true, 264, 72, 64, SKEWED",
        "FLOAT16, 8, 2, false, 2056, 8, 300, RANDOM",
        "BFLOAT16, 128, 8, true, 264, 104, 700, RANDOM",
        "FLOAT16, 128, 8, true, 264, 104, 600, SKEWED",
        "BFLOAT16, 60, 4, false, 520, 776, 33, EQUAL",
        "BFLOAT16, 8, 8, true, 2048, 768, 5, RANDOM",
        "FLOAT16, 256, 16, true, 16, 8, 2100, EQUAL",
        "BFLOAT16, 5, 1, false, 8, 16, 1300, RANDOM",
        "BFLOAT16, 1, 1, true, 136, 1544, 20, RANDOM"
    })
    void mixturesOfPrefillsAreRightAndTheSameWhateverTheNumberOfRows(
            ScalarType type,
            int count,
            int chosen,
            boolean normalizes,
            int hidden,
            int inner,
            int rows,
            Router router) {
        assumeTrue(WideExperts.isSupported(device), "needs a Hopper GPU");
        LayerConfig.Experts experts = new LayerConfig.Experts(count, chosen, normalizes);
        SplittableRandom random = new SplittableRandom(count + rows);
        try (Mixture mixture = new Mixture(type, experts, hidden, inner, rows, router, random)) {
            float[] all = mixture.prefill(rows);
            mixture.requireNear(all);
            assertArrayEquals(all, mixture.prefill(rows), "the second time");
            for (int few : new int[] {1, 2, 17, 100, rows / 2, rows - 1}) {
                if (few < rows) {
                    float[] expected = Arrays.copyOf(all, few * hidden);
                    assertArrayEquals(expected, mixture.prefill(few), few + " rows");
                }
            }
        }
    }

    /** A NaN in the logits and in x of a row changes no other row. */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void unusualRowsStayInTheirRow(boolean prefill) {
        assumeTrue(!prefill || WideExperts.isSupported(device), "needs a Hopper GPU");
        LayerConfig.Experts experts = new LayerConfig.Experts(8, 3, true);
        SplittableRandom random = new SplittableRandom(3);
        int rows = 12;
        int hidden = 136;
        try (Mixture mixture =
                new Mixture(
                        ScalarType.BFLOAT16, experts, hidden, 72, rows, Router.RANDOM, random)) {
            int[] positions = new int[rows];
            float[] usual = prefill ? mixture.prefill(rows) : mixture.launch(rows, positions);
            mixture.spoil(mixture.logits, 4, Float.NaN);
            mixture.spoil(mixture.x, 7, Float.POSITIVE_INFINITY);
            float[] unusual = prefill ? mixture.prefill(rows) : mixture.launch(rows, positions);
            for (int i = 0; i < usual.length; i++) {
                int row = i / hidden;
                if (row == 4 || row == 7) {
                    assertEquals(Float.NaN, unusual[i], "row " + row);
                } else {
                    assertEquals(usual[i], unusual[i], "row " + row);
                }
            }
        }
    }

    @Test
    void moreRowsThanBuffersHoldAreRefused() {
        LayerConfig.Experts experts = new LayerConfig.Experts(4, 2, true);
        SplittableRandom random = new SplittableRandom(4);
        try (Mixture mixture =
                new Mixture(ScalarType.BFLOAT16, experts, 16, 8, 3, Router.RANDOM, random)) {
            Exception e =
                    assertThrows(
                            IllegalArgumentException.class, () -> mixture.launch(4, new int[4]));
            assertEquals(
                    "4 rows with 2 experts each are 8 pairs, but the buffers hold 6",
                    e.getMessage());
        }
    }

    /** A mixture with random weights, and the rows of a step. */
    private final class Mixture implements AutoCloseable {

        private final NDManager buffers = manager.newSubManager();
        private final ScalarType type;
        private final LayerConfig.Experts experts;
        private final int hidden;
        private final int inner;
        private final int rows;
        private final int stride; // of the logits
        private final NDArray x;
        private final NDArray logits;
        private final NDArray table;
        private final List<ModelWeights.Mlp> mlps = new ArrayList<>();
        private final List<double[][]> values = new ArrayList<>(); // of gates and values; of down
        private final ExpertKernels kernels;

        Mixture(
                ScalarType type,
                LayerConfig.Experts experts,
                int hidden,
                int inner,
                int rows,
                Router router,
                SplittableRandom random) {
            this.type = type;
            this.experts = experts;
            this.hidden = hidden;
            this.inner = inner;
            this.rows = rows;
            stride = experts.count() + 3;
            x = random(random, rows, hidden, 1);
            for (int i = 0; i < experts.count(); i++) {
                NDArray gateUp = random(random, 2 * inner, hidden, 1 / Math.sqrt(hidden));
                NDArray down = random(random, hidden, inner, 1 / Math.sqrt(inner));
                values.add(new double[][] {doubles(gateUp), doubles(down)});
                mlps.add(
                        new ModelWeights.Mlp(
                                new ModelWeights.Linear(gateUp.transpose(), null),
                                new ModelWeights.Linear(down.transpose(), null)));
            }
            float[] scores = new float[rows * stride];
            for (int i = 0; i < scores.length; i++) {
                float normal = (float) random.nextGaussian();
                float integer = (float) Math.rint(normal); // -0, too
                scores[i] =
                        i % stride >= experts.count()
                                ? Float.NaN
                                : router == Router.EQUAL ? integer : 2 * normal;
                if (router == Router.SKEWED && i % stride == 1) {
                    scores[i] = 9;
                }
            }
            logits = narrow(scores, rows, stride);
            table = ExpertKernels.table(buffers, mlps);
            int pairs = Math.min(rows * experts.chosen(), ExpertKernels.MAX_PAIRS);
            kernels = new ExpertKernels(device, type, buffers, pairs, hidden, inner);
            streams.get().synchronize(); // The down projection reads weights early.
        }

        private NDArray random(SplittableRandom random, int rows, int columns, double scale) {
            float[] all = new float[rows * columns];
            for (int i = 0; i < all.length; i++) {
                all[i] = (float) (scale * 3.46 * (random.nextDouble() - 0.5));
            }
            return narrow(all, rows, columns);
        }

        private NDArray narrow(float[] all, int rows, int columns) {
            try (NDArray floats = buffers.create(all, new Shape(rows, columns))) {
                return Torch.cast(floats, type);
            }
        }

        void spoil(NDArray array, int row, float by) {
            try (NDArray value = buffers.full(new Shape(1, 1), by)) {
                Torch.copy(Torch.narrow(Torch.narrow(array, 0, row, 1), 1, 2, 1), value);
            }
        }

        /** Returns the output of some rows, after which there are rows that stay as they are. */
        float[] launch(int count, int[] positions) {
            try (NDManager step = buffers.newSubManager()) {
                NDArray output = Torch.cast(step.full(new Shape(rows, hidden), UNTOUCHED), type);
                NDArray places = step.create(positions);
                kernels.launch(
                        streams.get(),
                        count,
                        new ExpertKernels.Mixture(
                                experts,
                                inner,
                                Torch.dataPointer(table),
                                Torch.dataPointer(logits),
                                stride,
                                Torch.dataPointer(places),
                                Torch.dataPointer(x),
                                Torch.dataPointer(output)));
                return floats(output);
            }
        }

        /** Returns the results of the first rows, as a prefill computes them. */
        float[] prefill(int count) {
            ModelWeights.Linear router = mlps.get(0).gateUp(); // any key
            try (NDManager step = buffers.newSubManager();
                    WideExperts wide =
                            new WideExperts(
                                    device,
                                    streams,
                                    new KernelCompiler(KernelCache.user()),
                                    type,
                                    step)) {
                wide.add(router, mlps);
                NDArray rowsOfX = Torch.narrow(x, 0, 0, count);
                NDArray scores =
                        Torch.narrow(Torch.narrow(logits, 0, 0, count), 1, 0, experts.count());
                NDArray dense = scores.duplicate();
                rowsOfX.attach(step);
                dense.attach(step);
                return floats(wide.compute(rowsOfX, dense, router, experts, inner));
            }
        }

        void requireNear(float[] actual) {
            double[] ofLogits = doubles(logits);
            double[] ofX = doubles(x);
            IntStream.range(0, rows).forEach(row -> requireNear(row, ofLogits, ofX, actual));
        }

        private void requireNear(int row, double[] ofLogits, double[] ofX, float[] actual) {
            double[] scores =
                    Arrays.copyOfRange(ofLogits, row * stride, row * stride + experts.count());
            List<Integer> order =
                    IntStream.range(0, experts.count())
                            .boxed()
                            .sorted(Comparator.comparingDouble(i -> -scores[i] + 0.0))
                            .toList();
            List<Integer> best = order.subList(0, experts.chosen());
            double sum =
                    (experts.normalizes() ? best : order)
                            .stream().mapToDouble(i -> Math.exp(scores[i])).sum();
            double rounding = type == ScalarType.BFLOAT16 ? 0x1p-8 : 0x1p-11;
            double[] expected = new double[hidden];
            double[] bound = new double[hidden];
            for (int expert : best) {
                double weight = Math.exp(scores[expert]) / sum;
                double[] activated = activated(values.get(expert)[0], ofX, row);
                double[] down = values.get(expert)[1];
                IntStream.range(0, hidden)
                        .parallel()
                        .forEach(
                                n -> {
                                    double result = 0;
                                    double most = 0;
                                    double largest = 0;
                                    for (int k = 0; k < inner; k++) {
                                        double product = activated[k] * down[n * inner + k];
                                        result += product;
                                        most += Math.abs(product);
                                        largest = Math.max(largest, Math.abs(product));
                                    }
                                    expected[n] += weight * result;
                                    // A few activations may be rounded to the other side.
                                    double error = rounding * (Math.abs(result) + 4 * largest);
                                    bound[n] += weight * (error + 1e-5 * most);
                                });
            }
            for (int n = 0; n < hidden; n++) {
                double most = bound[n] + rounding * Math.abs(expected[n]) + 1e-6;
                double error = Math.abs(actual[row * hidden + n] - expected[n]);
                if (!(error <= most)) {
                    fail(
                            "%s instead of %s, at most %s off, in row %d, column %d"
                                    .formatted(
                                            actual[row * hidden + n], expected[n], most, row, n));
                }
            }
        }

        /** Returns the inner row of an expert, rounded to the model's type. */
        private double[] activated(double[] gateUp, double[] ofX, int row) {
            float[] all = new float[inner];
            IntStream.range(0, inner)
                    .parallel()
                    .forEach(
                            n -> {
                                double gate = 0;
                                double up = 0;
                                for (int k = 0; k < hidden; k++) {
                                    double factor = ofX[row * hidden + k];
                                    gate += factor * gateUp[n * hidden + k];
                                    up += factor * gateUp[(inner + n) * hidden + k];
                                }
                                all[n] = (float) (gate / (1 + Math.exp(-gate)) * up);
                            });
            try (NDArray rounded = narrow(all, 1, inner)) {
                return doubles(rounded);
            }
        }

        @Override
        public void close() {
            kernels.close();
            buffers.close();
        }
    }

    private static float[] floats(NDArray array) {
        try (NDArray floats = Torch.cast(array, ScalarType.FLOAT32)) {
            return floats.toFloatArray();
        }
    }

    private static double[] doubles(NDArray array) {
        float[] values = floats(array);
        return IntStream.range(0, values.length).mapToDouble(i -> values[i]).toArray();
    }
}
