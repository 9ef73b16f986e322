// SPDX-License-Identifier: Apache-2.0
package org.djlx.fusedops.internal;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Random;
import java.util.stream.IntStream;
import org.djlx.collectives.GpuTests;
import org.djlx.fusedops.QuantizedReference;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.host.CpuKernels;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Quantized rows compared with those of the CPU's kernels and of {@link QuantizedReference}. */
@Tag("gpu")
@Timeout(120)
class QuantizeKernelsGpuTest {

    private static final int ROWS = 37;

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
        long size = QuantizeKernels.rowBytes(bits, depth);
        return Torch.empty(manager, new Shape(ROWS, size), type);
    }

    private NDArray scales(int bits, int depth) {
        long count = QuantizeKernels.rowScales(bits, depth);
        return Torch.empty(manager, new Shape(ROWS, count), ScalarType.FLOAT32);
    }

    /** The CPU's kernels are the other path; a group may be filled in part. */
    @ParameterizedTest
    @CsvSource({"FLOAT16, 72", "BFLOAT16, 128", "BFLOAT16, 1032", "FLOAT16, 4096"})
    void int4HasTheBitsOfTheCpu(ScalarType type, int depth) {
        assumeTrue(NativeLibrary.CPU_KERNELS.isAvailable(), "no kernels for CPUs");
        NDArray x = random(ROWS, depth, type);
        NDArray elements = elements(4, depth, ScalarType.UINT8);
        NDArray scales = scales(4, depth);
        NDArray back = Torch.empty(manager, x.getShape(), type);
        try (QuantizeKernels kernels = new QuantizeKernels(Device.gpu(0), type);
                NDManager host = NDManager.newBaseManager(Device.cpu())) {
            QuantizeKernels.Matrix matrix = matrix(4, elements, scales, depth);
            kernels.quantize(Torch.dataPointer(x), matrix);
            kernels.dequantize(matrix, Torch.dataPointer(back));
            long bytes = CpuKernels.quantizedBytes(CpuKernels.INT4, ROWS, depth);
            assertEquals(elements.size() + scales.size() * Float.BYTES, bytes);
            NDArray own = Torch.empty(host, x.getShape(), type);
            Torch.copy(own, x);
            NDArray expected = Torch.empty(host, new Shape(bytes), ScalarType.UINT8);
            CpuKernels.djlx_cpu_quantize(
                    1,
                    CpuKernels.INT4,
                    type.code(),
                    ROWS,
                    depth,
                    Torch.dataPointer(own),
                    Torch.dataPointer(expected));
            byte[] all = bytes(expected);
            int size = (int) elements.size();
            assertArrayEquals(Arrays.copyOf(all, size), bytes(elements));
            assertArrayEquals(Arrays.copyOfRange(all, size, all.length), bytes(scales));
            double[] rounded = QuantizedReference.int4(doubles(x), depth);
            double[] actual = doubles(back);
            double rounding = type == ScalarType.BFLOAT16 ? 0x1p-8 : 0x1p-11;
            for (int i = 0; i < actual.length; i++) {
                assertEquals(rounded[i], actual[i], rounding * Math.abs(rounded[i]) + 1e-7);
            }
        }
    }

    @ParameterizedTest
    @CsvSource({"FLOAT16, 16", "BFLOAT16, 2064", "BFLOAT16, 4096"})
    void fp8IsTheNearest(ScalarType type, int depth) {
        NDArray x = random(ROWS, depth, type);
        NDArray elements = elements(8, depth, ScalarType.FLOAT8_E4M3FN);
        NDArray scales = scales(8, depth);
        try (QuantizeKernels kernels = new QuantizeKernels(Device.gpu(0), type)) {
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
    @CsvSource({"FLOAT16, 48", "BFLOAT16, 2064"})
    void activationsAreRoundedLast(ScalarType type, int depth) {
        NDArray x = random(ROWS, 2 * depth, type);
        NDArray elements = elements(8, depth, ScalarType.FLOAT8_E4M3FN);
        NDArray scales = scales(8, depth);
        try (QuantizeKernels kernels = new QuantizeKernels(Device.gpu(0), type)) {
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
}
