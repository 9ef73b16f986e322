// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.fail;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.Arrays;
import java.util.SplittableRandom;
import java.util.stream.IntStream;
import org.djlx.collectives.GpuTests;
import org.djlx.fusedops.QuantizedReference;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.cuda.CudaAttribute;
import org.djlx.nativeops.cuda.CudaDevice;
import org.djlx.nativeops.cuda.CurrentStreams;
import org.djlx.nativeops.cuda.KernelCache;
import org.djlx.nativeops.cuda.KernelCompiler;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Matmuls of few rows compared with loops in float64. The bits do not depend on the number of rows.
 */
@Tag("gpu")
@Timeout(120)
class DecoderKernelsGpuTest {

    private static final int GAP = 3; // elements between rows of the output, which stay as they are
    private static final float UNTOUCHED = 77;

    private CudaDevice device;
    private CurrentStreams streams;
    private NDManager manager;
    private int bits = 16; // of weights
    private QuantizeKernels quantizer; // null if they are not quantized

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

    /** Widths for each variant of stripes, and depths that fill a stage only partly. */
    @ParameterizedTest(name = "{0}, gated: {1}, weights of {2} bits")
    @CsvSource({
        "FLOAT16, false, 16",
        "FLOAT16, true, 16",
        "BFLOAT16, false, 16",
        "BFLOAT16, true, 16",
        "FLOAT16, false, 8",
        "BFLOAT16, false, 8",
        "BFLOAT16, true, 8",
        "FLOAT16, false, 4",
        "BFLOAT16, false, 4",
        "BFLOAT16, true, 4"
    })
    void productsAreRightAndTheSameWhateverTheNumberOfRows(
            ScalarType type, boolean gated, int weightBits) {
        bits = weightBits;
        int wave = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT) * (gated ? 8 : 16);
        try (DecoderKernels kernels = kernels(type);
                QuantizeKernels quantize = new QuantizeKernels(Device.gpu(0), type)) {
            quantizer = quantize;
            check(kernels, type, gated, 40, bits == 8 ? 2064 : 2056);
            int shallow = bits == 8 ? 80 : 72;
            check(kernels, type, gated, 2 * wave - 5, 528);
            check(kernels, type, gated, 3 * wave - 5, 528);
            check(kernels, type, gated, 4 * wave - 5, shallow);
            check(kernels, type, gated, 7 * wave - 5, shallow);
            check(
                    kernels,
                    type,
                    gated,
                    14 * wave - 5,
                    shallow); // Blocks have two groups of stripes.
        }
    }

    private DecoderKernels kernels(ScalarType type) {
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        int rows = bits == 16 ? DecoderKernels.MATMUL_ROWS : DecoderKernels.QUANTIZED_ROWS;
        return new DecoderKernels(
                device, compiler, new DecoderKernels.Model(type, bits, rows, 128, 4, 16));
    }

    private void check(
            DecoderKernels kernels, ScalarType type, boolean gated, int width, int depth) {
        int most = DecoderKernels.MATMUL_ROWS;
        SplittableRandom random = new SplittableRandom(width);
        try (NDArray x = random(random, most, depth, type);
                NDArray weight = random(random, gated ? 2 * width : width, depth, type);
                NDArray bias = random(random, 1, gated ? 2 * width : width, type)) {
            float[] all = multiply(kernels, gated, most, x, weight, bias, width, null);
            double[] values = doubles(weight);
            values =
                    switch (bits) {
                        case 8 -> QuantizedReference.fp8(values, depth);
                        case 4 -> QuantizedReference.int4(values, depth);
                        default -> values;
                    };
            requireNear(doubles(x), values, floats(bias), all, gated, width, depth, type);
            for (int rows : new int[] {1, 8, 13, 16, 29, 32, 50}) {
                float[] expected = all.clone();
                Arrays.fill(expected, rows * (width + GAP), expected.length, UNTOUCHED);
                float[] few = multiply(kernels, gated, rows, x, weight, bias, width, null);
                assertArrayEquals(expected, few, rows + " rows, width " + width);
            }
        }
    }

    /**
     * Widths for each variant of stripes, and for two groups of stripes; rows of less and more than
     * a pack per thread.
     */
    @ParameterizedTest
    @CsvSource({
        "FLOAT16, 0, 72, 16",
        "BFLOAT16, 2, 72, 16",
        "BFLOAT16, 3, 72, 16",
        "BFLOAT16, 4, 72, 16",
        "BFLOAT16, 7, 72, 16",
        "BFLOAT16, 14, 1032, 16",
        "BFLOAT16, 0, 2056, 16",
        "BFLOAT16, 0, 4096, 16",
        "FLOAT16, 0, 8192, 16",
        "BFLOAT16, 3, 1040, 8",
        "BFLOAT16, 14, 80, 8",
        "BFLOAT16, 0, 4096, 4",
        "FLOAT16, 7, 1032, 4",
        "BFLOAT16, 2, 72, 4"
    })
    void productsNormAsTheKernelForNormsDoes(
            ScalarType type, int waves, int depth, int weightBits) {
        bits = weightBits;
        int wave = device.attribute(CudaAttribute.MULTIPROCESSOR_COUNT) * 16;
        int width = waves == 0 ? 40 : waves * wave - 5;
        KernelCompiler compiler = new KernelCompiler(KernelCache.user());
        try (DecoderKernels kernels = kernels(type);
                QuantizeKernels quantize = new QuantizeKernels(Device.gpu(0), type);
                RmsNormKernels norms = new RmsNormKernels(device, streams, compiler, 1)) {
            quantizer = quantize;
            assertFalse(kernels.canNorm(2, depth));
            assumeTrue(kernels.canNorm(1, depth), "no room for a row of " + depth);
            for (boolean gated : new boolean[] {false, true}) {
                checkNorm(kernels, norms, type, gated, width, depth);
            }
        }
    }

    private void checkNorm(
            DecoderKernels kernels,
            RmsNormKernels norms,
            ScalarType type,
            boolean gated,
            int width,
            int depth) {
        int rows = 1;
        SplittableRandom random = new SplittableRandom(width);
        float epsilon = 1e-5f;
        try (NDArray x = random(random, rows, depth, type);
                NDArray residual = random(random, rows, depth, type);
                NDArray factors = random(random, 1, depth, type);
                NDArray weight = random(random, gated ? 2 * width : width, depth, type);
                NDArray sum = random(random, rows, depth, type);
                NDArray normed = random(random, rows, depth, type);
                NDArray newResidual = random(random, rows, depth, type)) {
            norms.add(
                    new RmsNormKernels.Rows(
                            Torch.dataPointer(sum),
                            Torch.dataPointer(normed),
                            Torch.dataPointer(x),
                            Torch.dataPointer(residual),
                            Torch.dataPointer(factors),
                            type,
                            rows,
                            depth),
                    epsilon);
            float[] expected = multiply(kernels, gated, rows, normed, weight, null, width, null);
            DecoderKernels.Norm norm =
                    new DecoderKernels.Norm(
                            Torch.dataPointer(factors),
                            Torch.dataPointer(residual),
                            Torch.dataPointer(newResidual),
                            epsilon);
            float[] actual = multiply(kernels, gated, rows, x, weight, null, width, norm);
            assertArrayEquals(expected, actual);
            assertArrayEquals(floats(sum), floats(newResidual));
        }
    }

    private NDArray random(SplittableRandom random, int rows, int columns, ScalarType type) {
        float[] values = new float[rows * columns];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) random.nextGaussian();
        }
        try (NDArray floats = manager.create(values, new Shape(rows, columns))) {
            return Torch.cast(floats, type);
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

    /** Returns the weight, quantized if {@link #bits} says so, and its scales. */
    private QuantizeKernels.Matrix stored(NDArray weight, NDManager buffers) {
        long rows = weight.getShape().get(0);
        long depth = weight.getShape().get(1);
        if (bits == 16) {
            return new QuantizeKernels.Matrix(bits, Torch.dataPointer(weight), 0, rows, depth);
        }
        Shape bytes = new Shape(rows, QuantizeKernels.rowBytes(bits, depth));
        Shape scales = new Shape(rows, QuantizeKernels.rowScales(bits, depth));
        QuantizeKernels.Matrix matrix =
                new QuantizeKernels.Matrix(
                        bits,
                        Torch.dataPointer(Torch.empty(buffers, bytes, ScalarType.UINT8)),
                        Torch.dataPointer(Torch.empty(buffers, scales, ScalarType.FLOAT32)),
                        rows,
                        depth);
        quantizer.quantize(Torch.dataPointer(weight), matrix);
        return matrix;
    }

    private float[] multiply(
            DecoderKernels kernels,
            boolean gated,
            int rows,
            NDArray x,
            NDArray weight,
            NDArray bias,
            int width,
            DecoderKernels.Norm norm) {
        Shape shape = new Shape(DecoderKernels.MATMUL_ROWS, width + GAP);
        try (NDArray floats = manager.full(shape, UNTOUCHED);
                NDArray output = Torch.cast(floats, Torch.scalarType(x));
                NDManager buffers = manager.newSubManager()) {
            QuantizeKernels.Matrix stored = stored(weight, buffers);
            kernels.matmul(
                    streams.get(),
                    gated,
                    rows,
                    Torch.dataPointer(output),
                    Torch.dataPointer(x),
                    stored.elements(),
                    stored.scales(),
                    bias == null ? 0 : Torch.dataPointer(bias),
                    width,
                    x.getShape().get(1),
                    width + GAP,
                    norm);
            return floats(output);
        }
    }

    private static void requireNear(
            double[] x,
            double[] weight,
            float[] bias,
            float[] actual,
            boolean gated,
            int width,
            int depth,
            ScalarType type) {
        double rounding = type == ScalarType.BFLOAT16 ? 0x1p-8 : 0x1p-11;
        for (int row = 0; row < DecoderKernels.MATMUL_ROWS; row++) {
            for (int n = 0; n < width; n++) {
                double[] sum = dot(x, row * depth, weight, n * depth, depth);
                double expected = sum[0] + bias[n];
                double most = sum[1];
                if (gated) {
                    double[] value = dot(x, row * depth, weight, (width + n) * depth, depth);
                    value[0] += bias[width + n];
                    double sigmoid = 1 / (1 + Math.exp(-expected));
                    // The derivative of silu is at most 1.1.
                    most = 1.1 * most * Math.abs(value[0]) + Math.abs(expected) * value[1];
                    expected *= sigmoid * value[0];
                }
                double bound = rounding * Math.abs(expected) + 1e-5 * most + 1e-6;
                double error = Math.abs(actual[row * (width + GAP) + n] - expected);
                if (!(error <= bound)) {
                    fail(error + " at " + row + ", " + n + ", width " + width);
                }
            }
            for (int n = width; n < width + GAP; n++) {
                assertEquals(UNTOUCHED, actual[row * (width + GAP) + n]);
            }
        }
    }

    /** Returns the sum of products, and the sum of their absolute values. */
    private static double[] dot(double[] a, int beginA, double[] b, int beginB, int count) {
        double sum = 0;
        double most = 0;
        for (int i = 0; i < count; i++) {
            double product = a[beginA + i] * b[beginB + i];
            sum += product;
            most += Math.abs(product);
        }
        return new double[] {sum, most};
    }
}
