// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.sampling;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class LogitsTest {

    private final NDManager manager = NDManager.newBaseManager();

    @AfterEach
    void close() {
        manager.close();
    }

    private Logits of(int rows, float... values) {
        return Logits.of(manager.create(values, new Shape(rows, values.length / rows)));
    }

    @Test
    void takesTheFirstOfEqualLogits() {
        Logits.DeviceToken best = of(1, 1, 3, 2, 3).deviceTokens().get(0);
        assertEquals(1, best.token());
        assertEquals(3, best.logit());
        double sum = Math.exp(1) + 2 * Math.exp(3) + Math.exp(2);
        assertEquals(Math.log(sum), best.logSumExp(), 1e-6);
    }

    @Test
    void showsNumbersThatAreNotFiniteInTheSum() {
        List<Logits.DeviceToken> best =
                of(3, 0, Float.NaN, 1, Float.POSITIVE_INFINITY, 1, 2).deviceTokens();
        assertFalse(Double.isFinite(best.get(0).logSumExp()));
        assertFalse(Double.isFinite(best.get(1).logSumExp()));
        assertEquals(2, best.get(2).logit());
    }

    @Test
    void readsRowsThatAreNotContiguous() {
        float[] padded = {1, 2, 3, 99, 9, 8, 7, 77};
        try (NDArray all = manager.create(padded, new Shape(2, 4))) {
            List<Logits.DeviceToken> best = Logits.of(all.get(":, :3")).deviceTokens();
            assertEquals(2, best.get(0).token());
            assertEquals(3, best.get(0).logit());
            assertEquals(0, best.get(1).token());
            assertEquals(9, best.get(1).logit());
            double logSumExp = 9 + Math.log1p(Math.exp(-1) + Math.exp(-2));
            assertEquals(logSumExp, best.get(1).logSumExp(), 1e-6);
        }
    }

    @Test
    void partsAreJoinedAndOrdered() {
        Logits first = of(2, 1, 2, 4, 3);
        Logits second = of(1, 5, 6);
        Logits joined = Logits.concat(List.of(first, second));
        assertEquals(3, joined.count());
        assertThrows(IndexOutOfBoundsException.class, () -> joined.toArray(3));
        Logits ordered = Logits.concat(List.of(first, second), List.of(2, 0, 1));
        assertArrayEquals(new float[] {5, 6}, ordered.toArray(0));
        assertArrayEquals(new float[] {1, 2}, ordered.toArray(1));
        assertArrayEquals(new float[] {4, 3}, ordered.toArray(2));
        List<Integer> tokens =
                ordered.deviceTokens().stream().map(Logits.DeviceToken::token).toList();
        assertEquals(List.of(1, 1, 0), tokens);
        assertArrayEquals(new float[] {5, 6}, Logits.concat(List.of(second)).toArray(0));
    }
}
