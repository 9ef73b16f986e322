// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.nio.ByteBuffer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

class TorchZerosTest {

    // Without dimensions, without elements, and larger than libtorch fills at once.
    private static final Shape[] SHAPES = {
        new Shape(), new Shape(0), new Shape(2, 0, 3), new Shape(2, 3), new Shape(70_001)
    };

    private final NDManager manager = NDManager.newBaseManager("PyTorch");

    @AfterEach
    void close() {
        manager.close();
    }

    private static void assertZeros(NDArray array, Shape shape, ScalarType type) {
        assertEquals(type, Torch.scalarType(array));
        assertEquals(shape, array.getShape());
        long[] strides = Extents.contiguousStrides(shape.getShape());
        assertArrayEquals(strides, Torch.info(array).strides());
        if (shape.size() > 0) {
            ByteBuffer bytes = TestMemory.bytes(array);
            assertEquals(shape.size() * type.itemSize(), bytes.remaining());
            while (bytes.hasRemaining()) {
                assertEquals(0, bytes.get());
            }
        }
    }

    @ParameterizedTest
    @EnumSource(ScalarType.class)
    void zerosOfEveryTypeAndShape(ScalarType type) {
        for (Shape shape : SHAPES) {
            NDArray zeros = Torch.zeros(manager, shape, type);
            assertSame(manager, zeros.getManager());
            assertZeros(zeros, shape, type);
            NDArray ones = Torch.cast(manager.ones(shape), type);
            assertZeros(Torch.zerosLike(ones), shape, type);
            TorchInPlace.zero(ones);
            assertZeros(ones, shape, type);
        }
    }

    @Test
    void zerosLikeTakesManagerAndShapeButNoStridesOrGradient() {
        try (NDManager own = manager.newSubManager()) {
            NDArray array = own.ones(new Shape(2, 3));
            array.setRequiresGradient(true);
            NDArray zeros = Torch.zerosLike(array.transpose());
            assertSame(own, zeros.getManager());
            assertZeros(zeros, new Shape(3, 2), ScalarType.FLOAT32);
            assertFalse(Torch.requiresGradient(zeros));
        }
    }

    @Test
    void zeroRespectsStrides() {
        NDArray array = manager.ones(new Shape(2, 3));
        TorchInPlace.zero(array.transpose().get("1:"));
        assertArrayEquals(new float[] {1, 0, 0, 1, 0, 0}, array.toFloatArray());
    }

    @Test
    void wrongArgumentsAreRefused() {
        assertThrows(IllegalArgumentException.class, () -> Torch.zeros(manager, null, null));
        assertThrows(IllegalArgumentException.class, () -> Torch.zerosLike(null));
        assertThrows(IllegalArgumentException.class, () -> TorchInPlace.zero(null));
        NDArray closed = manager.ones(new Shape(2));
        closed.close();
        assertThrows(IllegalArgumentException.class, () -> Torch.zerosLike(closed));
    }
}
