// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.pytorch.engine.PtNDArray;
import ai.djl.pytorch.jni.JniUtils;
import java.nio.ByteBuffer;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class TorchGradientTest {

    // What a GPU has is never memory of the JVM.
    private final NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch");
    private NDArray leaf;

    @BeforeEach
    void makeLeaf() {
        leaf = create(1, 2, 3);
        leaf.setRequiresGradient(true);
    }

    @AfterEach
    void close() {
        manager.close();
    }

    /** In memory of libtorch: what DJL creates of values stays the JVM's. */
    private NDArray create(float... values) {
        return manager.create(values).add(0);
    }

    private void backward() {
        try (NDArray ones = manager.ones(leaf.getShape())) {
            JniUtils.backward((PtNDArray) leaf, (PtNDArray) ones, false, false);
        }
    }

    private float[] gradient() {
        try (NDArray gradient = JniUtils.getGradient((PtNDArray) leaf)) {
            return gradient.toFloatArray();
        }
    }

    @Test
    void gradientThatIsSetKeepsItsMemoryAndGrows() {
        backward();
        try (NDArray gradient = create(4, 5, 6)) {
            Torch.setGradient(leaf, gradient);
            TorchInPlace.add(gradient, gradient); // It is the same memory,
        }
        assertArrayEquals(new float[] {8, 10, 12}, gradient()); // which it keeps.
        backward(); // This adds to it.
        assertArrayEquals(new float[] {9, 11, 13}, gradient());
        assertArrayEquals(new float[] {1, 2, 3}, leaf.toFloatArray());
    }

    @Test
    void removedGradientBeginsAnew() {
        Torch.setGradient(leaf, null);
        assertNull(JniUtils.getGradient((PtNDArray) leaf));
        backward();
        try (NDArray before = JniUtils.getGradient((PtNDArray) leaf)) {
            Torch.setGradient(leaf, null);
            assertNull(JniUtils.getGradient((PtNDArray) leaf));
            assertArrayEquals(new float[3], leaf.getGradient().toFloatArray());
            assertArrayEquals(new float[] {1, 1, 1}, before.toFloatArray()); // Who has it keeps it.
            backward();
            backward();
            assertArrayEquals(new float[] {2, 2, 2}, gradient());
            assertArrayEquals(new float[] {1, 1, 1}, before.toFloatArray());
        }
    }

    @Test
    void gradientHoldersCountsOpenArrays() {
        assertEquals(0, Torch.gradientHolders(leaf));
        backward();
        assertEquals(0, Torch.gradientHolders(leaf));
        try (NDArray one = leaf.getGradient();
                NDArray other = leaf.getGradient()) {
            assertEquals(2, Torch.gradientHolders(leaf));
            assertArrayEquals(one.toFloatArray(), other.toFloatArray());
        }
        assertEquals(0, Torch.gradientHolders(leaf));
    }

    @Test
    void settingGradientsRepeatedlyLeaksNothing() {
        try (NDArray gradient = create(4, 5, 6)) {
            for (int i = 0; i < 100_000; i++) {
                Torch.setGradient(leaf, i % 2 == 0 ? gradient : null);
            }
            assertNull(JniUtils.getGradient((PtNDArray) leaf));
            Torch.setGradient(leaf, gradient);
        }
        assertArrayEquals(new float[] {4, 5, 6}, gradient());
    }

    @Test
    void gradientsThatDoNotFitAreRefused() {
        NDArray other = create(1, 2);
        assertRefused(leaf, other, "(2)");
        assertRefused(leaf, create(1, 2, 3).toType(DataType.FLOAT64, true), "FLOAT64");
        NDArray required = create(1, 2, 3);
        required.setRequiresGradient(true);
        assertRefused(leaf, required, "not require a gradient");
        assertRefused(other, create(1, 2), "does not require a gradient");
        NDArray ofTheJvm =
                manager.create(ByteBuffer.allocateDirect(12), new Shape(3), DataType.FLOAT32);
        assertRefused(leaf, ofTheJvm, "in libtorch's memory");
        assertNull(JniUtils.getGradient((PtNDArray) leaf));
    }

    private static void assertRefused(NDArray array, NDArray gradient, String why) {
        String found =
                assertThrows(
                                IllegalArgumentException.class,
                                () -> Torch.setGradient(array, gradient))
                        .getMessage();
        assertTrue(found.contains(why), found);
    }
}
