// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.ops;

import static org.junit.jupiter.api.Assertions.assertEquals;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.ByteBuffer;
import java.util.Random;
import java.util.stream.IntStream;
import org.djlx.collectives.GpuTests;
import org.djlx.fusedops.kernel.Product;
import org.djlx.fusedops.kernel.RmsNormKernels;
import org.djlx.llm.model.Quantization;
import org.djlx.llm.model.QuantizedReference;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Quantized rows compared with {@link QuantizedReference}. */
@Tag("gpu")
@Tag("beside")
@Timeout(120)
class QuantizeKernelsGpuTest {

    private static final int ROWS = 37;
    private static final WeightFormat FP8 = new WeightFormat(Quantization.FP8);
    private static final WeightFormat INT4 = new WeightFormat(Quantization.INT4);

    private NDManager manager;

    @BeforeEach
    void open() {
        GpuTests.require(1, NativeLibrary.NVRTC);
        manager = NDManager.newBaseManager(Device.gpu(0));
    }

    @AfterEach
    void close() {
        if (manager != null) {
            manager.close();
        }
    }

    /** Returns normal numbers, with a row of zeros and one of tiny numbers. */
    private NDArray random(int rows, int depth, ScalarType type) {
        Random random = new Random(depth);
        float[] values = new float[rows * depth];
        for (int i = 0; i < values.length; i++) {
            int row = i / depth;
            values[i] = (float) random.nextGaussian() * (row == 3 ? 0 : row == 4 ? 1e-6f : 1);
        }
        try (NDArray floats = manager.create(values, new Shape(rows, depth))) {
            return Torch.cast(floats, type);
        }
    }

    private static double[] doubles(NDArray array) {
        try (NDArray floats = Torch.cast(array, ScalarType.FLOAT32)) {
            float[] values = floats.toFloatArray();
            return IntStream.range(0, values.length).mapToDouble(i -> values[i]).toArray();
        }
    }

    private static byte[] bytes(NDArray array) {
        ByteBuffer buffer = array.toByteBuffer();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes;
    }

    private QuantizeKernels.Matrix matrix(int bits, NDArray elements, NDArray scales, int depth) {
        return new QuantizeKernels.Matrix(
                bits, Torch.dataPointer(elements), Torch.dataPointer(scales), ROWS, depth);
    }

    private NDArray elements(int bits, int depth, ScalarType type) {
        long size = (bits == 8 ? FP8 : INT4).rowBytes(depth);
        return Torch.empty(manager, new Shape(ROWS, size), type);
    }

    private NDArray scales(int bits, int depth) {
        long count = (bits == 8 ? FP8 : INT4).rowScales(depth);
        return Torch.empty(manager, new Shape(ROWS, count), ScalarType.FLOAT32);
    }

    /** The last group of a row may be filled in part. */
    @ParameterizedTest
    @CsvSource({"FLOAT16, 72", "BFLOAT16, 128", "BFLOAT16, 1032", "FLOAT16, 4096"})
    void int4IsTheNearest(ScalarType type, int depth) {
        NDArray x = random(ROWS, depth, type);
        NDArray elements = elements(4, depth, ScalarType.UINT8);
        NDArray scales = scales(4, depth);
        NDArray back = Torch.empty(manager, x.getShape(), type);
        try (QuantizeKernels kernels = new QuantizeKernels(Device.gpu(0), type, INT4)) {
            QuantizeKernels.Matrix matrix = matrix(4, elements, scales, depth);
            kernels.quantize(Torch.dataPointer(x), matrix);
            kernels.dequantize(matrix, Torch.dataPointer(back));
        }
        double[] expected = QuantizedReference.int4(doubles(x), depth);
        byte[] halves = bytes(elements);
        double[] factors = doubles(scales);
        double[] rounded = doubles(back);
        double rounding = type == ScalarType.BFLOAT16 ? 0x1p-8 : 0x1p-11;
        int groups = (int) INT4.rowScales(depth);
        for (int i = 0; i < expected.length; i++) {
            int group = i / depth * groups + i % depth / QuantizeKernels.SET;
            int within = i % depth % QuantizeKernels.SET; // int4.cuh tells its byte.
            int inBytes = within % 32 / 8 * 16 + within / 32 % 2 * 8 + within % 8;
            int both = halves[group * QuantizeKernels.SET / 2 + inBytes];
            int q = (within < QuantizeKernels.SET / 2 ? both : both >> 4) & 15;
            assertEquals(expected[i], (q - 8) * factors[group], 0, "of " + i);
            assertEquals(expected[i], rounded[i], rounding * Math.abs(expected[i]) + 1e-7);
        }
    }

    /** Sets and groups of a row may be filled in part. */
    @ParameterizedTest
    @CsvSource({
        "FLOAT16, 32, 32",
        "BFLOAT16, 96, 64",
        "FLOAT16, 160, 128",
        "BFLOAT16, 1056, 32",
        "FLOAT16, 4096, 64",
        "BFLOAT16, 4096, 128"
    })
    void numbersOfFilesKeepScalesAndZeros(ScalarType type, int depth, int group) {
        WeightFormat format = new WeightFormat(Quantization.INT4, group);
        NDArray x = random(ROWS, depth, type);
        Int4Blocks blocks = Int4Blocks.of(doubles(x), depth, group);
        Shape bytes = new Shape(ROWS, format.rowBytes(depth));
        Shape words = new Shape(ROWS, format.rowScales(depth));
        NDArray elements = Torch.empty(manager, bytes, ScalarType.UINT8);
        NDArray scales = Torch.empty(manager, words, ScalarType.FLOAT32);
        NDArray back = Torch.empty(manager, x.getShape(), type);
        try (QuantizeKernels kernels = new QuantizeKernels(Device.gpu(0), type, format)) {
            QuantizeKernels.Matrix matrix = matrix(4, elements, scales, depth);
            kernels.pack(Torch.dataPointer(manager.create(blocks.words())), matrix);
            kernels.dequantize(matrix, Torch.dataPointer(back));
        }
        double[] expected = blocks.values();
        double[] rounded = doubles(back);
        double rounding = type == ScalarType.BFLOAT16 ? 0x1p-8 : 0x1p-11;
        for (int i = 0; i < expected.length; i++) {
            double bound = 1.01 * rounding * Math.abs(expected[i]);
            assertEquals(expected[i], rounded[i], bound, "of " + i);
        }
    }

    @ParameterizedTest
    @CsvSource({"FLOAT16, 16", "BFLOAT16, 2064", "BFLOAT16, 4096", "FLOAT16, 14336"})
    void fp8IsTheNearest(ScalarType type, int depth) {
        NDArray x = random(ROWS, depth, type);
        NDArray elements = elements(8, depth, ScalarType.FLOAT8_E4M3FN);
        NDArray scales = scales(8, depth);
        try (QuantizeKernels kernels = new QuantizeKernels(Device.gpu(0), type, FP8)) {
            kernels.quantize(Torch.dataPointer(x), matrix(8, elements, scales, depth));
        }
        double[] expected = QuantizedReference.fp8(doubles(x), depth);
        double[] actual = doubles(elements);
        double[] factors = doubles(scales);
        for (int i = 0; i < actual.length; i++) {
            assertEquals(expected[i], actual[i] * factors[i / depth], 0, "of " + i);
        }
    }

    @ParameterizedTest
    @CsvSource({"FLOAT16, 48", "BFLOAT16, 2064", "BFLOAT16, 14336"})
    void activationsAreRoundedLast(ScalarType type, int depth) {
        NDArray x = random(ROWS, 2 * depth, type);
        NDArray elements = elements(8, depth, ScalarType.FLOAT8_E4M3FN);
        NDArray scales = scales(8, depth);
        try (QuantizeKernels kernels = new QuantizeKernels(Device.gpu(0), type, FP8)) {
            kernels.activate(Torch.dataPointer(x), matrix(8, elements, scales, depth));
        }
        double[] both = doubles(x);
        double[] actual = doubles(elements);
        double[] factors = doubles(scales);
        for (int i = 0; i < actual.length; i++) {
            int row = i / depth;
            double gate = both[row * 2 * depth + i % depth];
            double value = both[row * 2 * depth + depth + i % depth];
            double expected = gate / (1 + Math.exp(-gate)) * value;
            // Half of the last of 4 bits, or of the smallest number; and 16 bits before.
            double bound = (0x1p-4 + 0x1p-7) * Math.abs(expected) + 1.01 * 0x1p-10 * factors[row];
            assertEquals(expected, actual[i] * factors[row], bound + 1e-7, "of " + i);
        }
    }

    /**
     * The new residual is rounded once. The scales of rows are overwritten by those of the result.
     */
    @ParameterizedTest
    @CsvSource({
        "FLOAT16, 48, false",
        "BFLOAT16, 2064, true",
        "BFLOAT16, 4096, true",
        "BFLOAT16, 8192, true",
        "FLOAT16, 8200, true"
    })
    void normsAreRoundedLast(ScalarType type, int depth, boolean isScaled) {
        float epsilon = 1e-5f;
        NDArray partial = random(ROWS, depth, type);
        NDArray residual = random(ROWS + 1, depth, type).get("1:"); // other numbers
        NDArray weight = random(1, depth, type);
        NDArray sum = Torch.empty(manager, partial.getShape(), type);
        NDArray elements = elements(8, depth, ScalarType.FLOAT8_E4M3FN);
        NDArray scales = manager.arange(1f, 1f + ROWS).div(ROWS);
        NDArray columns = manager.arange(1f, 1f + depth).div(depth);
        double[] ofRows = doubles(scales);
        double[] ofColumns = doubles(columns);
        RmsNormKernels.Rows rows =
                new RmsNormKernels.Rows(
                        Torch.dataPointer(sum),
                        0,
                        Torch.dataPointer(partial),
                        Torch.dataPointer(residual),
                        Torch.dataPointer(weight),
                        type,
                        ROWS,
                        depth);
        try (QuantizeKernels kernels = new QuantizeKernels(Device.gpu(0), type, FP8)) {
            long scale = Torch.dataPointer(scales);
            kernels.norm(
                    rows,
                    isScaled ? new Product.Scales(scale, Torch.dataPointer(columns), true) : null,
                    epsilon,
                    matrix(8, elements, scales, depth));
        }
        double[] added = doubles(partial);
        double[] before = doubles(residual);
        double[] sums = doubles(sum);
        double[] weights = doubles(weight);
        double[] actual = doubles(elements);
        double[] factors = doubles(scales);
        double rounding = type == ScalarType.BFLOAT16 ? 0x1p-8 : 0x1p-11;
        for (int row = 0; row < ROWS; row++) {
            double squares = 0;
            for (int k = 0; k < depth; k++) {
                int i = row * depth + k;
                double addend = added[i] * (isScaled ? ofRows[row] * ofColumns[k] : 1);
                double expected = before[i] + addend;
                // The addend is computed in float32, with two roundings.
                double bound = rounding * Math.abs(expected) + 0x1p-22 * Math.abs(addend);
                assertEquals(expected, sums[i], bound + 1e-7, "sum of " + i);
                squares += sums[i] * sums[i];
            }
            for (int k = 0; k < depth; k++) {
                int i = row * depth + k;
                double expected = sums[i] / Math.sqrt(squares / depth + epsilon) * weights[k];
                double bound =
                        (0x1p-4 + 0x1p-7) * Math.abs(expected) + 1.01 * 0x1p-10 * factors[row];
                assertEquals(expected, actual[i] * factors[row], bound + 1e-7, "of " + i);
            }
        }
    }
}
