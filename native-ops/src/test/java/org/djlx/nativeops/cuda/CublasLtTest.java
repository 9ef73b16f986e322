// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.cuda;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import java.util.Random;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Products of cuBLASLt against DJL's in float64. */
@Tag("gpu")
class CublasLtTest {

    @BeforeEach
    void requireGpu() {
        Gpus.require(1);
        Throwable cause = NativeLibrary.CUBLASLT.unavailabilityCause();
        Assumptions.assumeTrue(cause == null, () -> "cuBLASLt: " + cause);
    }

    @Test
    void multipliesMatricesOfAnySizeAsFloat64Does() {
        Random random = new Random(5);
        Device gpu = Device.gpu(0);
        try (NDManager manager = NDManager.newBaseManager(gpu, "PyTorch");
                CudaDevice device = CudaDevice.open(gpu);
                CublasLt cublas = CublasLt.create(device)) {
            CudaStream stream = CudaStream.wrap(device, Torch.currentCudaStream(gpu));
            for (ScalarType type :
                    List.of(
                            ScalarType.FLOAT32,
                            ScalarType.FLOAT64,
                            ScalarType.FLOAT16,
                            ScalarType.BFLOAT16)) {
                for (int i = 0; i < 40; i++) {
                    int m = 1 + random.nextInt(i < 20 ? 20 : 300);
                    int n = 1 + random.nextInt(i < 20 ? 20 : 300);
                    int k = 1 + random.nextInt(i < 20 ? 20 : 300);
                    NDArray a = operand(manager, type, m, k, random.nextInt(3));
                    NDArray b = operand(manager, type, k, n, random.nextInt(3));
                    NDArray out = Torch.empty(manager, new Shape(m, n), type);
                    long addresses =
                            Torch.dataPointer(out) | Torch.dataPointer(a) | Torch.dataPointer(b);
                    int alignment = (int) Math.min(16, Long.lowestOneBit(addresses));
                    String what = type + " " + layout(a) + " " + layout(b) + " " + alignment;
                    try (CublasLtMatmul matmul =
                            cublas.plan(type, type, layout(out), layout(a), layout(b), alignment)
                                    .orElseThrow(() -> new AssertionError(what))) {
                        matmul.run(
                                stream,
                                Torch.dataPointer(out),
                                Torch.dataPointer(a),
                                Torch.dataPointer(b));
                        stream.synchronize();
                    }
                    check(type, out, a, b, k);
                }
            }
            assertThrows(
                    IllegalArgumentException.class,
                    () ->
                            cublas.plan(
                                    ScalarType.FLOAT32,
                                    ScalarType.FLOAT32,
                                    MatrixLayout.contiguous(2, 3),
                                    MatrixLayout.contiguous(2, 4),
                                    MatrixLayout.contiguous(5, 3),
                                    16));
        }
    }

    /** Sizes of weights, whose rows cuBLASLt reads 16 bytes at a time. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT16", "BFLOAT16", "FLOAT32"})
    void sumsInFloat32(ScalarType type) {
        Device gpu = Device.gpu(0);
        try (NDManager manager = NDManager.newBaseManager(gpu, "PyTorch");
                CudaDevice device = CudaDevice.open(gpu);
                CublasLt cublas = CublasLt.create(device)) {
            CudaStream stream = CudaStream.wrap(device, Torch.currentCudaStream(gpu));
            NDArray a = Torch.cast(manager.randomNormal(new Shape(200, 64)), type).transpose();
            NDArray b = Torch.cast(manager.randomNormal(new Shape(200, 96)), type).get(":, 32:80");
            NDArray before = manager.randomNormal(new Shape(64, 48));
            NDArray out = before.duplicate();
            try (CublasLtMatmul matmul =
                    cublas.plan(type, ScalarType.FLOAT32, layout(out), layout(a), layout(b), 16)
                            .orElseThrow()) {
                for (int times = 0; times < 2; times++) {
                    matmul.add(
                            stream,
                            Torch.dataPointer(out),
                            Torch.dataPointer(a),
                            Torch.dataPointer(b));
                    stream.synchronize();
                }
                check(ScalarType.FLOAT32, out.sub(before).div(2), a, b, 200);
                matmul.run(
                        stream, Torch.dataPointer(out), Torch.dataPointer(a), Torch.dataPointer(b));
                stream.synchronize();
            }
            check(ScalarType.FLOAT32, out, a, b, 200);
            assertThrows(
                    IllegalArgumentException.class,
                    () ->
                            cublas.plan(
                                    type,
                                    ScalarType.FLOAT64,
                                    layout(out),
                                    layout(a),
                                    layout(b),
                                    1));
        }
    }

    /**
     * Float8 with scales of the matrices, and of rows and columns. Sums of few products are exact.
     */
    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void scaledProducts(boolean byRow) {
        Device gpu = Device.gpu(0);
        try (NDManager manager = NDManager.newBaseManager(gpu, "PyTorch");
                CudaDevice device = CudaDevice.open(gpu);
                CublasLt cublas = CublasLt.create(device)) {
            int major = device.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR);
            Assumptions.assumeTrue(major >= 9, "the GPU has no float8 tensor cores");
            Assumptions.assumeTrue(!byRow || CublasLtMatmul.scalesByRow(), "cuBLAS is too old");
            CudaStream stream = CudaStream.wrap(device, Torch.currentCudaStream(gpu));
            ScalarType type = ScalarType.FLOAT8_E4M3FN;
            NDArray a = Torch.cast(manager.arange(5 * 32f).mod(4).reshape(5, 32), type);
            NDArray bs = Torch.cast(manager.arange(48 * 32f).mod(3).reshape(48, 32), type);
            NDArray ofA = byRow ? manager.arange(1f, 6f).reshape(5, 1) : manager.create(2f);
            NDArray ofB = byRow ? manager.arange(48f).reshape(1, 48) : manager.create(3f);
            NDArray out = Torch.empty(manager, new Shape(5, 48), ScalarType.BFLOAT16);
            MatrixLayout b = MatrixLayout.contiguous(48, 32).transposed();
            try (CublasLtMatmul matmul =
                    cublas.planScaled(layout(out), layout(a), b, 16, byRow, false).orElseThrow()) {
                matmul.runScaled(
                        stream,
                        Torch.dataPointer(out),
                        Torch.dataPointer(a),
                        Torch.dataPointer(bs),
                        Torch.dataPointer(ofA),
                        Torch.dataPointer(ofB));
                stream.synchronize();
            }
            NDArray left = Torch.cast(a, ScalarType.FLOAT32).mul(ofA);
            NDArray right = Torch.cast(bs, ScalarType.FLOAT32).transpose().mul(ofB);
            NDArray expected = Torch.cast(left.matMul(right), ScalarType.BFLOAT16);
            assertArrayEquals(
                    Torch.cast(expected, ScalarType.FLOAT32).toFloatArray(),
                    Torch.cast(out, ScalarType.FLOAT32).toFloatArray());
        }
    }

    /**
     * Float8 with a scale for each row and column, and as many products as in a layer of 8B. Beside
     * the rounding of both operands to e4m3, 3.7 %, the error of fast sums is small.
     */
    @Test
    void fastSumsHaveASmallError() {
        Device gpu = Device.gpu(0);
        try (NDManager manager = NDManager.newBaseManager(gpu, "PyTorch");
                CudaDevice device = CudaDevice.open(gpu);
                CublasLt cublas = CublasLt.create(device)) {
            int major = device.attribute(CudaAttribute.COMPUTE_CAPABILITY_MAJOR);
            Assumptions.assumeTrue(major >= 9, "the GPU has no float8 tensor cores");
            Assumptions.assumeTrue(CublasLtMatmul.scalesByRow(), "cuBLAS is too old");
            int m = 256;
            int n = 512;
            int k = 14_336;
            CudaStream stream = CudaStream.wrap(device, Torch.currentCudaStream(gpu));
            ScalarType type = ScalarType.FLOAT8_E4M3FN;
            manager.getEngine().setRandomSeed(5);
            NDArray a = Torch.cast(manager.randomNormal(new Shape(m, k)), type);
            NDArray bs = Torch.cast(manager.randomNormal(new Shape(n, k)), type);
            NDArray ones = manager.ones(new Shape(n));
            NDArray out = Torch.empty(manager, new Shape(m, n), ScalarType.BFLOAT16);
            MatrixLayout b = MatrixLayout.contiguous(n, k).transposed();
            NDArray right = Torch.cast(bs, ScalarType.FLOAT64).transpose();
            NDArray expected = Torch.cast(a, ScalarType.FLOAT64).matMul(right);
            double size = Math.sqrt(expected.pow(2).mean().getDouble());
            for (boolean fast : new boolean[] {false, true}) {
                try (CublasLtMatmul matmul =
                        cublas.planScaled(layout(out), layout(a), b, 16, true, fast)
                                .orElseThrow()) {
                    long scales = Torch.dataPointer(ones);
                    matmul.runScaled(
                            stream,
                            Torch.dataPointer(out),
                            Torch.dataPointer(a),
                            Torch.dataPointer(bs),
                            scales,
                            scales);
                    stream.synchronize();
                }
                NDArray difference = Torch.cast(out, ScalarType.FLOAT64).sub(expected);
                double error = Math.sqrt(difference.pow(2).mean().getDouble()) / size;
                System.out.printf("fast %s: relative error %.5f%n", fast, error);
                assertTrue(error < (fast ? 0.004 : 0.002), fast + ": " + error);
            }
        }
    }

    /** A matrix that is contiguous, transposed, or a part of a wider one. */
    private static NDArray operand(NDManager manager, ScalarType type, int m, int n, int form) {
        NDArray floats =
                switch (form) {
                    case 0 -> manager.randomNormal(new Shape(m, n));
                    case 1 -> manager.randomNormal(new Shape(n, m));
                    default -> manager.randomNormal(new Shape(m, n + 5));
                };
        NDArray whole = Torch.cast(floats, type);
        return switch (form) {
            case 0 -> whole;
            case 1 -> whole.transpose();
            default -> whole.get(":, 2:" + (n + 2));
        };
    }

    private static MatrixLayout layout(NDArray matrix) {
        long[] sizes = Torch.sizes(matrix);
        long[] strides = Torch.info(matrix).strides();
        return new MatrixLayout(sizes[0], sizes[1], strides[0], strides[1]);
    }

    private static void check(ScalarType type, NDArray out, NDArray a, NDArray b, int k) {
        NDArray left = Torch.cast(a, ScalarType.FLOAT64);
        NDArray right = Torch.cast(b, ScalarType.FLOAT64);
        double[] want = left.matMul(right).toDoubleArray();
        double[] bound = left.abs().matMul(right.abs()).toDoubleArray();
        double[] got = Torch.cast(out, ScalarType.FLOAT64).toDoubleArray();
        double rounding =
                switch (type) {
                    case FLOAT64 -> 0x1p-53;
                    case FLOAT32 -> 0x1p-24;
                    case FLOAT16 -> 0x1p-11;
                    default -> 0x1p-8;
                };
        double accumulation = type == ScalarType.FLOAT64 ? 0x1p-53 : 0x1p-24;
        for (int i = 0; i < want.length; i++) {
            double tolerance =
                    rounding * Math.abs(want[i]) + (k + 2) * accumulation * bound[i] + 0x1p-25;
            assertEquals(want[i], got[i], tolerance, type + " element " + i);
        }
    }
}
