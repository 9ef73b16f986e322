// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import ai.djl.Device;
import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import java.nio.ByteBuffer;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** Rounding to 16 bits has the bits that libtorch makes. */
class HalfBitsTest {

    private static final int COUNT = 1 << 20;

    /** Of all magnitudes, subnormal and infinite ones and ties among them. */
    private static float[] floats() {
        Random random = new Random(1);
        float[] values = new float[COUNT];
        for (int i = 0; i < COUNT; i++) {
            int bits = random.nextInt();
            // Some end in a half of the last bit that is kept, or in nearly that.
            int end = random.nextInt(4);
            int kept = random.nextBoolean() ? 16 : 13;
            if (end > 0) {
                bits = (bits >>> kept << kept) + (1 << kept - 1) + end - 2;
            }
            values[i] = Float.intBitsToFloat(bits);
            if (i % 2 == 0) {
                values[i] = Math.scalb(values[i], -Math.getExponent(values[i]) + i / 2 % 48 - 30);
            }
        }
        float[] edges = {0f, -0f, 65504f, 65519.996f, 65520f, Float.MAX_VALUE, Float.MIN_VALUE};
        System.arraycopy(edges, 0, values, 0, edges.length);
        values[7] = Float.POSITIVE_INFINITY;
        values[8] = Float.NEGATIVE_INFINITY;
        return values;
    }

    @Test
    void conversionHasTheBitsOfLibtorch() {
        float[] values = floats();
        try (NDManager manager = NDManager.newBaseManager(Device.cpu(), "PyTorch")) {
            NDArray array = manager.create(values);
            ByteBuffer halves = TestMemory.bytes(Torch.cast(array, ScalarType.FLOAT16));
            ByteBuffer brains = TestMemory.bytes(Torch.cast(array, ScalarType.BFLOAT16));
            for (int i = 0; i < COUNT; i++) {
                short half = HalfBits.float16(values[i]);
                short brain = HalfBits.bfloat16(values[i]);
                if (Float.isNaN(values[i])) {
                    assertTrue((half & 0x7fff) > 0x7c00, "" + half);
                    assertTrue((brain & 0x7fff) > 0x7f80, "" + brain);
                } else {
                    String text = "" + values[i];
                    assertEquals(halves.getShort(2 * i), half, text);
                    assertEquals(brains.getShort(2 * i), brain, text);
                }
            }
        }
    }
}
