// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.safetensors;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.IntStream;
import org.djlx.collectives.GpuTests;
import org.djlx.nativeops.NativeLibrary;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Slices that are read to a GPU are those that are read to the CPU. */
@Tag("gpu")
@Timeout(100)
class SafetensorsGpuTest {

    private static final Device GPU = Device.gpu(0);

    @TempDir private Path folder;

    @BeforeEach
    void requireGpu() {
        GpuTests.require(1, NativeLibrary.CUDA);
    }

    private Safetensors written(NDManager manager, Shape shape) throws IOException {
        Path file = folder.resolve("written.safetensors");
        manager.getEngine().setRandomSeed(6);
        SafetensorsWriter.write(
                file,
                List.of(TensorSpec.of("w", ScalarType.FLOAT32, shape)),
                spec -> manager.randomUniform(-1, 1, shape));
        return Safetensors.open(file);
    }

    /** Of more than a piece, of rows longer than a piece, and of a few bytes. */
    @Test
    void slicesEqualThoseOnTheCpu() throws IOException {
        Shape[] shapes = {
            new Shape(3001, 4003), new Shape(3, 5_000_011), new Shape(5, 7, 3), new Shape(9)
        };
        for (Shape shape : shapes) {
            try (NDManager cpu = NDManager.newBaseManager(Device.cpu(), "PyTorch");
                    NDManager gpu = NDManager.newBaseManager(GPU, "PyTorch");
                    Safetensors tensors = written(cpu, shape)) {
                for (int dimension = 0; dimension < shape.dimension(); dimension++) {
                    long size = shape.get(dimension);
                    long[] sizes = shape.getShape().clone();
                    sizes[dimension] = size - 2;
                    NDArray expected = cpu.zeros(new Shape(sizes));
                    tensors.read("w", dimension, 1, size - 1, expected);
                    for (NDArray array : destinations(gpu, sizes)) {
                        tensors.read("w", dimension, 1, size - 1, array);
                        assertArrayEquals(
                                expected.toFloatArray(),
                                array.toType(DataType.FLOAT32, true).toFloatArray(),
                                () -> shape + " along any of its dimensions");
                        array.close();
                    }
                    expected.close();
                }
            }
        }
    }

    /** One that is copied to as it is, one that is converted, and one that libtorch copies to. */
    private static NDArray[] destinations(NDManager manager, long[] sizes) {
        NDArray plain = manager.zeros(new Shape(sizes));
        NDArray wide = manager.zeros(new Shape(sizes), DataType.FLOAT64);
        NDArray learned = manager.zeros(new Shape(sizes));
        learned.setRequiresGradient(true);
        return new NDArray[] {plain, wide, learned};
    }

    @Test
    void threadsReadAtOnce() throws IOException {
        try (NDManager cpu = NDManager.newBaseManager(Device.cpu(), "PyTorch");
                Safetensors tensors = written(cpu, new Shape(512, 40_009))) {
            NDArray whole = cpu.zeros(new Shape(512, 40_009));
            tensors.read("w", whole);
            float[] expected = whole.toFloatArray();
            IntStream.range(0, 8)
                    .parallel()
                    .forEach(
                            part -> {
                                try (NDManager own = NDManager.newBaseManager(GPU, "PyTorch")) {
                                    NDArray rows =
                                            Torch.empty(
                                                    own, new Shape(64, 40_009), ScalarType.FLOAT32);
                                    tensors.read("w", 0, part * 64, (part + 1) * 64, rows);
                                    float[] read = rows.toFloatArray();
                                    float[] own64 = new float[read.length];
                                    System.arraycopy(
                                            expected, part * read.length, own64, 0, read.length);
                                    assertArrayEquals(own64, read);
                                }
                            });
        }
    }

    @Test
    void closedFilesAreNotRead() throws IOException {
        try (NDManager cpu = NDManager.newBaseManager(Device.cpu(), "PyTorch");
                NDManager gpu = NDManager.newBaseManager(GPU, "PyTorch")) {
            Safetensors tensors = written(cpu, new Shape(9));
            NDArray array = gpu.zeros(new Shape(9));
            tensors.read("w", array);
            tensors.close();
            assertThrows(IllegalArgumentException.class, () -> tensors.read("w", array));
        }
    }
}
