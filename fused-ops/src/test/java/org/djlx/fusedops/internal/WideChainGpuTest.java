// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import java.util.stream.IntStream;
import org.djlx.collectives.GpuTests;
import org.djlx.fusedops.QuantizedReference;
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

/** Compares wide chains with loops in float64 that round to e4m3 where the kernel does. */
@Tag("gpu")
@Timeout(120)
class WideChainGpuTest {

    private static final int K = 128; // columns of x with one scale
    private static final float EPSILON = 1e-5f;

    private CudaDevice device;
    private CurrentStreams streams;
    private NDManager manager;

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

    /**
     * A weight quantized on the GPU and its bias; also both in float64 as the kernel reads them.
     */
    private final class Weight {

        final WideChain.Weight onGpu;
        final double[] values;
        final double[] bias;
        final int width;
        final int depth;

        Weight(
                QuantizeKernels quantize,
                SplittableRandom random,
                ScalarType type,
                int width,
                int depth,
                boolean hasBias) {
            this.width = width;
            this.depth = depth;
            NDArray weight = random(random, width, depth, 1 / Math.sqrt(depth), type);
            NDArray biasArray = random(random, 1, width, 0.5, type);
            long elements =
                    Torch.dataPointer(
                            Torch.empty(manager, new Shape(width, depth), ScalarType.UINT8));
            long scales =
                    Torch.dataPointer(Torch.empty(manager, new Shape(width), ScalarType.FLOAT32));
            quantize.quantize(
                    Torch.dataPointer(weight),
                    new QuantizeKernels.Matrix(8, elements, scales, width, depth));
            long biasAddress = hasBias ? Torch.dataPointer(biasArray) : 0;
            onGpu = new WideChain.Weight(elements, scales, biasAddress, width, depth);
            values = QuantizedReference.fp8(doubles(weight), depth);
            bias = hasBias ? doubles(biasArray) : new double[width];
        }

        /** Returns {@code factors * (x weightᵀ) + bias}, with a factor for each row of x. */
        double[] multiply(double[] x, double[] factors) {
            double[] product = new double[factors.length * width];
            for (int row = 0; row < factors.length; row++) {
                for (int n = 0; n < width; n++) {
                    double sum = 0;
                    for (int k = 0; k < depth; k++) {
                        sum += x[row * depth + k] * values[n * depth + k];
                    }
                    product[row * width + n] = sum * factors[row] + bias[n];
                }
            }
            return product;
        }
    }

    /**
     * Multiplies as between two attentions. The first case has sizes that are not multiples of
     * tiles, k-blocks, slots or splits, and biases. The second one has more tiles than thread
     * blocks, of the activation and of the stored product.
     */
    @ParameterizedTest
    @CsvSource({
        "BFLOAT16, 64, 528, 1040, 1168, 712, true",
        "BFLOAT16, 9, 144, 272, 17040, 33840, false",
        "FLOAT16, 33, 4096, 1024, 2048, 40, false",
        "BFLOAT16, 17, 2048, 2048, 512, 3072, false"
    })
    void layerMatchesLoops(
            ScalarType type,
            int rows,
            int attention,
            int hidden,
            int inner,
            int stored,
            boolean hasBiases) {
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        DecoderKernels.Model model = new DecoderKernels.Model(type, 8, 8, 128, 4, 16, 16);
        try (DecoderKernels kernels = new DecoderKernels(device, compiler, model);
                QuantizeKernels quantize = new QuantizeKernels(Device.gpu(0), type)) {
            int[] depths = {attention, hidden, inner};
            WideChain chain = kernels.wideChain(manager, streams.get(), hidden, depths, stored);
            assumeTrue(chain != null, "a chain needs a Hopper GPU");
            SplittableRandom random = new SplittableRandom(hidden);
            Weight attentionOut = new Weight(quantize, random, type, hidden, attention, hasBiases);
            Weight gateUp = new Weight(quantize, random, type, 2 * inner, hidden, hasBiases);
            Weight down = new Weight(quantize, random, type, hidden, inner, hasBiases);
            Weight last = new Weight(quantize, random, type, stored, hidden, hasBiases);
            NDArray attended = random(random, rows, attention, 1, type);
            NDArray residual = random(random, rows, hidden, 1, type);
            NDArray mlpNorm = random(random, 1, hidden, 1, type);
            NDArray lastNorm = random(random, 1, hidden, 1, type);
            int stride = stored + 8;
            NDArray afterAttention = random(random, rows, hidden, 1, type);
            NDArray afterMlp = random(random, rows, hidden, 1, type);
            NDArray output = random(random, rows, stride, 1, type);
            double[] outputBefore = doubles(output);
            WideChain.Input input = new WideChain.Input(Torch.dataPointer(attended), 0);
            List<WideChain.Link> links =
                    List.of(
                            WideChain.Link.add(
                                    attentionOut.onGpu,
                                    Torch.dataPointer(residual),
                                    Torch.dataPointer(afterAttention),
                                    Torch.dataPointer(mlpNorm)),
                            WideChain.Link.activate(gateUp.onGpu),
                            WideChain.Link.add(
                                    down.onGpu,
                                    Torch.dataPointer(afterAttention),
                                    Torch.dataPointer(afterMlp),
                                    Torch.dataPointer(lastNorm)),
                            WideChain.Link.store(last.onGpu, Torch.dataPointer(output), stride));
            // Each launch, also one of fewer rows, must give the bits of the first one.
            List<NDArray> results = List.of(afterAttention, afterMlp, output);
            List<double[]> firstResults = new ArrayList<>();
            for (int launchRows : new int[] {rows, rows, (rows + 1) / 2, rows}) {
                chain.launch(streams.get(), launchRows, input, EPSILON, links);
                for (int i = 0; i < results.size(); i++) {
                    double[] result = doubles(results.get(i));
                    if (firstResults.size() < results.size()) {
                        firstResults.add(result);
                    }
                    int size = launchRows * (result.length / rows);
                    assertArrayEquals(
                            Arrays.copyOf(firstResults.get(i), size), Arrays.copyOf(result, size));
                }
            }
            double[] ones = IntStream.range(0, rows).mapToDouble(i -> 1).toArray();
            double[] x = rounded(doubles(attended), attention);
            double[] sum = add(doubles(residual), attentionOut.multiply(x, ones), type);
            requireNear(sum, firstResults.get(0), hidden, 0.005);
            x = rounded(scaled(sum, doubles(mlpNorm)), hidden);
            x = activated(gateUp.multiply(x, factors(sum, rows)), inner);
            sum = add(sum, down.multiply(rounded(x, inner), ones), type);
            requireNear(sum, firstResults.get(1), hidden, 0.01);
            x = rounded(scaled(sum, doubles(lastNorm)), hidden);
            double[] product = last.multiply(x, factors(sum, rows));
            double[] firstOutput = firstResults.get(2);
            requireNear(product, columns(firstOutput, stride, 0, stored), stored, 0.02);
            assertArrayEquals(
                    columns(outputBefore, stride, stored, stride),
                    columns(firstOutput, stride, stored, stride));
        }
    }

    /**
     * A chain of one matmul that norms its input, and three unusual rows: one with a NaN, one with
     * an infinity, and one of zeros with a single number so small that 448 divided by it is
     * infinite. The first two give NaN, the third gives zeros. All other rows keep their bits.
     */
    @Test
    void unusualRowsStayInTheirRow() {
        int hidden = 400;
        int stored = 72;
        int rows = 12;
        ScalarType type = ScalarType.BFLOAT16;
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        DecoderKernels.Model model = new DecoderKernels.Model(type, 8, 8, 128, 4, 16, 16);
        try (DecoderKernels kernels = new DecoderKernels(device, compiler, model);
                QuantizeKernels quantize = new QuantizeKernels(Device.gpu(0), type)) {
            int[] depths = {hidden};
            WideChain chain = kernels.wideChain(manager, streams.get(), hidden, depths, stored);
            assumeTrue(chain != null, "a chain needs a Hopper GPU");
            SplittableRandom random = new SplittableRandom(5);
            Weight weight = new Weight(quantize, random, type, stored, hidden, false);
            NDArray norm = random(random, 1, hidden, 1, type);
            double[] usual = doubles(random(random, rows, hidden, 1, type));
            double[] unusual = usual.clone();
            unusual[hidden + 3] = Double.NaN;
            unusual[2 * hidden + 300] = Double.POSITIVE_INFINITY;
            Arrays.fill(unusual, 3 * hidden, 4 * hidden, 0);
            unusual[3 * hidden + 7] = 1e-37;
            List<double[]> products = new ArrayList<>();
            for (double[] values : List.of(usual, unusual, usual)) {
                float[] floats = new float[values.length];
                for (int i = 0; i < floats.length; i++) {
                    floats[i] = (float) values[i];
                }
                NDArray input = Torch.cast(manager.create(floats, new Shape(rows, hidden)), type);
                NDArray output = Torch.empty(manager, new Shape(rows, stored), type);
                chain.launch(
                        streams.get(),
                        rows,
                        new WideChain.Input(Torch.dataPointer(input), Torch.dataPointer(norm)),
                        EPSILON,
                        List.of(
                                WideChain.Link.store(
                                        weight.onGpu, Torch.dataPointer(output), stored)));
                products.add(doubles(output));
            }
            double[] x = rounded(scaled(usual, doubles(norm)), hidden);
            double[] expected = weight.multiply(x, factors(usual, rows));
            requireNear(expected, products.get(0), stored, 0.01);
            assertArrayEquals(products.get(0), products.get(2));
            double[] product = products.get(1);
            for (int i = 0; i < product.length; i++) {
                int row = i / stored;
                if (row == 1 || row == 2) {
                    assertTrue(Double.isNaN(product[i]), row + ": " + product[i]);
                } else if (row == 3) {
                    assertTrue(Math.abs(product[i]) < 1e-30, "tiny row: " + product[i]);
                } else {
                    assertEquals(products.get(0)[i], product[i], "row " + row);
                }
            }
        }
    }

    @Test
    void invalidChainsAreRejected() {
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        DecoderKernels.Model model =
                new DecoderKernels.Model(ScalarType.BFLOAT16, 8, 8, 128, 4, 16, 16);
        try (DecoderKernels kernels = new DecoderKernels(device, compiler, model)) {
            int[] depths = {256};
            WideChain chain = kernels.wideChain(manager, streams.get(), 256, depths, 256);
            assumeTrue(chain != null, "a chain needs a Hopper GPU");
            long address = 256; // never read
            WideChain.Weight weight = new WideChain.Weight(address, address, 0, 256, 256);
            WideChain.Link store = WideChain.Link.store(weight, address, 256);
            WideChain.Link add = WideChain.Link.add(weight, address, 2 * address, address);
            WideChain.Weight deep = new WideChain.Weight(address, address, 0, 256, 512);
            WideChain.Link tooDeep = WideChain.Link.store(deep, address, 256);
            WideChain.Link half = WideChain.Link.activate(weight);
            requireRejected(chain, 65, 0, List.of(store), "65 rows");
            requireRejected(chain, 0, 0, List.of(store), "0 rows");
            requireRejected(chain, 9, 0, List.of(tooDeep), "a depth of 512");
            requireRejected(chain, 9, 0, List.of(half, store), "but x has 128 columns");
            requireRejected(chain, 9, 0, List.of(), "0 matmuls");
            requireRejected(chain, 9, 0, List.of(add), "matmul 1 of 1 is ADD");
            requireRejected(chain, 9, 0, List.of(store, store), "matmul 1 of 2 is STORE");
            requireRejected(chain, 9, address, List.of(add, store), "1 of 2 is ADD of normed rows");
            requireRejected(chain, 9, 0, List.of(add, add, store), "2 of 3 is ADD of normed rows");
        }
    }

    private void requireRejected(
            WideChain chain,
            int rows,
            long normWeight,
            List<WideChain.Link> links,
            String messagePart) {
        WideChain.Input input = new WideChain.Input(256, normWeight);
        IllegalArgumentException error =
                assertThrows(
                        IllegalArgumentException.class,
                        () -> chain.launch(streams.get(), rows, input, EPSILON, links));
        assertTrue(error.getMessage().contains(messagePart), error.getMessage());
    }

    /** Returns columns [begin, end) of rows that are {@code stride} elements apart. */
    private static double[] columns(double[] rows, int stride, int begin, int end) {
        return IntStream.range(0, rows.length)
                .filter(i -> i % stride >= begin && i % stride < end)
                .mapToDouble(i -> rows[i])
                .toArray();
    }

    /** Rounds rows to e4m3, with a scale for each {@value #K} columns. */
    private static double[] rounded(double[] rows, int depth) {
        double[] rounded = new double[rows.length];
        for (int row = 0; row < rows.length; row += depth) {
            for (int begin = row; begin < row + depth; begin += K) {
                int size = Math.min(K, row + depth - begin);
                double[] chunk = Arrays.copyOfRange(rows, begin, begin + size);
                System.arraycopy(QuantizedReference.fp8(chunk, size), 0, rounded, begin, size);
            }
        }
        return rounded;
    }

    /** Returns 1 over the root mean square of each row. */
    private static double[] factors(double[] values, int rows) {
        int size = values.length / rows;
        double[] factors = new double[rows];
        for (int row = 0; row < rows; row++) {
            double squares = 0;
            for (int i = 0; i < size; i++) {
                squares += values[row * size + i] * values[row * size + i];
            }
            factors[row] = 1 / Math.sqrt(squares / size + EPSILON);
        }
        return factors;
    }

    /** Multiplies each row by the weight of a norm. */
    private static double[] scaled(double[] rows, double[] weight) {
        double[] scaled = new double[rows.length];
        for (int i = 0; i < rows.length; i++) {
            scaled[i] = rows[i] * weight[i % weight.length];
        }
        return scaled;
    }

    /** Returns {@code silu(gates) * values}. Each row has gates, then values. */
    private static double[] activated(double[] gatesAndValues, int width) {
        double[] activated = new double[gatesAndValues.length / 2];
        for (int i = 0; i < activated.length; i++) {
            int gate = i / width * 2 * width + i % width;
            double x = gatesAndValues[gate];
            activated[i] = x / (1 + Math.exp(-x)) * gatesAndValues[gate + width];
        }
        return activated;
    }

    /** Returns {@code residual + product}, rounded to the type. */
    private double[] add(double[] residual, double[] product, ScalarType type) {
        float[] sums = new float[residual.length];
        for (int i = 0; i < sums.length; i++) {
            sums[i] = (float) (residual[i] + product[i]);
        }
        try (NDArray wide = manager.create(sums);
                NDArray rounded = Torch.cast(wide, type)) {
            return doubles(rounded);
        }
    }

    /**
     * Requires that the root mean square of errors is at most {@code bound} times that of the
     * expected values. In a single row it may be 4 times as large, in a single column 8 times.
     */
    private static void requireNear(double[] expected, double[] actual, int width, double bound) {
        int rows = expected.length / width;
        double[] rowErrors = new double[rows];
        double[] columnErrors = new double[width];
        double meanSquare = 0;
        double error = 0;
        for (int i = 0; i < expected.length; i++) {
            double square = Math.pow(expected[i] - actual[i], 2);
            rowErrors[i / width] += square / width;
            columnErrors[i % width] += square / rows;
            error += square / expected.length;
            meanSquare += expected[i] * expected[i] / expected.length;
        }
        requireNear("all elements", error, meanSquare, bound);
        double worstRow = Arrays.stream(rowErrors).max().orElseThrow();
        requireNear("the worst row", worstRow, meanSquare, 4 * bound);
        double worstColumn = Arrays.stream(columnErrors).max().orElseThrow();
        requireNear("the worst column", worstColumn, meanSquare, 8 * bound);
    }

    private static void requireNear(
            String where, double squaredError, double meanSquare, double bound) {
        double relative = Math.sqrt(squaredError / meanSquare);
        assertTrue(
                relative <= bound,
                () -> "relative error of " + where + ": " + relative + ", allowed: " + bound);
    }

    private NDArray random(
            SplittableRandom random, int rows, int columns, double deviation, ScalarType type) {
        float[] values = new float[rows * columns];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) (random.nextGaussian() * deviation);
        }
        try (NDArray floats = manager.create(values, new Shape(rows, columns))) {
            return Torch.cast(floats, type);
        }
    }

    private static double[] doubles(NDArray array) {
        try (NDArray floats = Torch.cast(array, ScalarType.FLOAT32)) {
            float[] values = floats.toFloatArray();
            return IntStream.range(0, values.length).mapToDouble(i -> values[i]).toArray();
        }
    }
}
