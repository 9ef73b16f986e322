/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.fusedops.llama;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.Shape;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

class ScoresTest {

    private final NDManager manager = NDManager.newBaseManager();

    @AfterEach
    void close() {
        manager.close();
    }

    private Scores of(int rows, float... values) {
        return Scores.of(manager.create(values, new Shape(rows, values.length / rows)));
    }

    @Test
    void theFirstOfTheHighestIsTheBest() {
        Scores.Best best = of(1, 1, 3, 2, 3).best().get(0);
        assertEquals(1, best.token());
        assertEquals(3, best.score());
        double sum = Math.exp(1) + 2 * Math.exp(3) + Math.exp(2);
        assertEquals(Math.log(sum), best.logSum(), 1e-6);
    }

    @Test
    void whatIsNoNumberIsSeenInItsSum() {
        List<Scores.Best> best = of(3, 0, Float.NaN, 1, Float.POSITIVE_INFINITY, 1, 2).best();
        assertFalse(Double.isFinite(best.get(0).logSum()));
        assertFalse(Double.isFinite(best.get(1).logSum()));
        assertEquals(2, best.get(2).score());
    }

    @Test
    void partsAreJoinedAndOrdered() {
        Scores first = of(2, 1, 2, 4, 3);
        Scores second = of(1, 5, 6);
        Scores joined = Scores.joined(List.of(first, second));
        assertEquals(3, joined.count());
        assertThrows(IndexOutOfBoundsException.class, () -> joined.all(3));
        Scores ordered = joined.inOrder(List.of(2, 0, 1));
        assertArrayEquals(new float[] {5, 6}, ordered.all(0));
        assertArrayEquals(new float[] {1, 2}, ordered.all(1));
        assertArrayEquals(new float[] {4, 3}, ordered.all(2));
        List<Integer> tokens = ordered.best().stream().map(Scores.Best::token).toList();
        assertEquals(List.of(1, 1, 0), tokens);
        assertArrayEquals(new float[] {5, 6}, Scores.joined(List.of(second)).all(0));
    }
}
