// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.Device;
import ai.djl.engine.EngineException;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import org.djlx.nativeops.cuda.Gpus;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Products of float8 matrices with one scale each. libtorch 2.7.1 has no kernel for CPUs. */
class TorchScaledMmOutTest {

    @Test
    @Tag("gpu")
    void multipliesAndScales() {
        Gpus.require(1);
        try (NDManager manager = NDManager.newBaseManager(Device.gpu(0), "PyTorch")) {
            NDArray a = float8(manager, 16, 32, 3);
            NDArray b = float8(manager, 48, 32, 5).transpose();
            NDArray out = Torch.empty(manager, new Shape(16, 48), ScalarType.BFLOAT16);
            NDArray aScale = manager.create(new float[] {0.5f});
            NDArray bScale = manager.create(new float[] {0.25f});
            Torch.scaledMmOut(out, a, b, aScale, bScale);
            NDArray product =
                    Torch.cast(a, ScalarType.FLOAT32).matMul(Torch.cast(b, ScalarType.FLOAT32));
            NDArray expected = Torch.cast(product.mul(0.125f), ScalarType.BFLOAT16);
            assertArrayEquals(
                    Torch.cast(expected, ScalarType.FLOAT32).toFloatArray(),
                    Torch.cast(out, ScalarType.FLOAT32).toFloatArray());
        }
    }

    @Test
    void libtorchRefusesTheCpu() {
        try (NDManager manager = NDManager.newBaseManager("PyTorch")) {
            NDArray a = float8(manager, 16, 32, 3);
            NDArray b = float8(manager, 48, 32, 5).transpose();
            NDArray out = Torch.empty(manager, new Shape(16, 48), ScalarType.BFLOAT16);
            NDArray one = manager.ones(new Shape(1));
            assertThrows(EngineException.class, () -> Torch.scaledMmOut(out, a, b, one, one));
            assertThrows(
                    IllegalArgumentException.class, () -> Torch.scaledMmOut(out, a, b, one, null));
        }
    }

    /** Small integers: exact in float8, with sums that are exact in float32. */
    private static NDArray float8(NDManager manager, int rows, int columns, int step) {
        NDArray range = manager.arange(0f, rows * columns).mul(step).mod(9).sub(4);
        return Torch.cast(range.reshape(rows, columns), ScalarType.FLOAT8_E4M3FN);
    }
}
