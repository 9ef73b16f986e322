// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.model;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.djlx.training.nn.RotaryEmbedding;
import org.junit.jupiter.api.Test;

class RopeTest {

    @Test
    void scalesAsLlama3() {
        double[] plain =
                RotaryEmbedding.builder().setHeadSize(128).optBase(500_000).build().frequencies();
        double[] scaled = Rope.llama3(500_000, 64, 8, 1, 4, 8192).frequencies(128, 0, 8192);
        scaled =
                RotaryEmbedding.builder()
                        .setHeadSize(128)
                        .optFrequencies(scaled, 1)
                        .build()
                        .frequencies();
        int between = 0;
        for (int i = 0; i < plain.length; i++) {
            double wave = 2 * Math.PI / plain[i];
            if (wave < 8192 / 4.0) {
                assertEquals(plain[i], scaled[i]);
            } else if (wave > 8192) {
                assertEquals(plain[i] / 8, scaled[i]);
            } else {
                double smooth = (8192 / wave - 1) / 3;
                double expected = (1 - smooth) * plain[i] / 8 + smooth * plain[i];
                assertEquals(expected, scaled[i], 1e-15);
                between++;
            }
        }
        assertEquals(6, between);
        assertEquals(plain[63] / 8, scaled[63]);
    }
}
