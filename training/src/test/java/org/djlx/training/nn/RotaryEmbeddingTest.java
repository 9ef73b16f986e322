// SPDX-License-Identifier: Apache-2.0
package org.djlx.training.nn;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.collectives.TestArrays;
import org.djlx.nativeops.torch.ScalarType;
import org.djlx.nativeops.torch.Torch;
import org.djlx.training.nn.RotaryEmbedding.Table;
import org.junit.jupiter.api.Test;

class RotaryEmbeddingTest {

    private static RotaryEmbedding.Builder builder(int headSize) {
        return RotaryEmbedding.builder().setHeadSize(headSize);
    }

    @Test
    void turnsPairsOfBothHalves() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            RotaryEmbedding rotary = builder(4).optBase(100).build();
            assertArrayEquals(new double[] {1, 0.1}, rotary.frequencies(), 1e-15);
            double[] x = {1, 2, 3, 4, 5, 6, 7, 8};
            Table table = rotary.table(manager, 5, 2, ScalarType.FLOAT64);
            NDArray y = rotary.rotate(manager.create(x, new Shape(2, 1, 4)), table);
            double[] expected = new double[8];
            for (int position = 0; position < 2; position++) {
                for (int i = 0; i < 2; i++) {
                    double angle = (5 + position) * (i == 0 ? 1 : 0.1);
                    int first = position * 4 + i;
                    double cos = Math.cos(angle);
                    double sin = Math.sin(angle);
                    expected[first] = x[first] * cos - x[first + 2] * sin;
                    expected[first + 2] = x[first + 2] * cos + x[first] * sin;
                }
            }
            assertArrayEquals(expected, y.toDoubleArray(), 1e-14);
        }
    }

    @Test
    void aBuilderBuildsSeveral() {
        RotaryEmbedding.Builder builder = builder(4);
        assertArrayEquals(new double[] {1, 0.01}, builder.build().frequencies(), 1e-15);
        RotaryEmbedding other = builder.setHeadSize(2).optBase(100).build();
        assertArrayEquals(new double[] {1}, other.frequencies());
        other = builder.setHeadSize(4).build();
        assertArrayEquals(new double[] {1, 0.1}, other.frequencies(), 1e-15);
    }

    /** Products of queries and keys depend only on the distance of positions. */
    @Test
    void productsDependOnTheDistance() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            RotaryEmbedding rotary = builder(8).build();
            NDArray one = TestArrays.random(manager, ScalarType.FLOAT64, new Shape(1, 1, 8), 1);
            NDArray other = TestArrays.random(manager, ScalarType.FLOAT64, new Shape(1, 1, 8), 2);
            double near = product(rotary, manager, one, 0, other, 3);
            double far = product(rotary, manager, one, 1000, other, 1003);
            double different = product(rotary, manager, one, 0, other, 4);
            assertEquals(near, far, 1e-11);
            assertTrue(Math.abs(near - different) > 1e-3, near + " and " + different);
        }
    }

    private static double product(
            RotaryEmbedding rotary,
            NDManager manager,
            NDArray one,
            long at,
            NDArray other,
            long otherAt) {
        NDArray x = rotary.rotate(one, rotary.table(manager, at, 1, ScalarType.FLOAT64));
        NDArray y = rotary.rotate(other, rotary.table(manager, otherAt, 1, ScalarType.FLOAT64));
        return x.mul(y).sum().getDouble();
    }

    @Test
    void hasTablesOfAnyType() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            RotaryEmbedding rotary = builder(4).build();
            NDArray x = TestArrays.random(manager, ScalarType.BFLOAT16, new Shape(2, 3, 2, 4), 1);
            Table table = rotary.table(manager, 0, 3, ScalarType.BFLOAT16);
            assertEquals(ScalarType.BFLOAT16, Torch.scalarType(rotary.rotate(x, table)));
        }
    }

    @Test
    void refusesWhatDoesNotFit() {
        assertThrows(IllegalArgumentException.class, () -> builder(3).build());
        assertThrows(IllegalArgumentException.class, () -> builder(4).optBase(1).build());
        assertThrows(
                IllegalArgumentException.class,
                () -> builder(4).optFrequencies(new double[1], 1).build());
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            RotaryEmbedding rotary = builder(4).build();
            Table table = rotary.table(manager, 0, 3, ScalarType.FLOAT32);
            IllegalArgumentException e =
                    assertThrows(
                            IllegalArgumentException.class,
                            () -> rotary.rotate(manager.ones(new Shape(2, 1, 4)), table));
            assertTrue(e.getMessage().contains("(2, 1, 4)"), e.getMessage());
        }
    }
}
