// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.torch;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class ExtentsTest {

    @Test
    void stridesOfContiguousTensorsAreProductsOfLaterSizes() {
        assertArrayEquals(new long[0], Extents.contiguousStrides(new long[0]));
        assertArrayEquals(new long[] {12, 4, 1}, Extents.contiguousStrides(new long[] {2, 3, 4}));
        assertArrayEquals(new long[] {4, 4, 1}, Extents.contiguousStrides(new long[] {2, 0, 4}));
    }

    @Test
    void spanReachesFromTheFirstToTheLastElement() {
        assertEquals(4, Extents.byteSpan(new long[0], new long[0], 4));
        assertEquals(96, Extents.byteSpan(new long[] {2, 3, 4}, new long[] {12, 4, 1}, 4));
        assertEquals(2 * (10 + 6 + 1), Extents.byteSpan(new long[] {3, 4}, new long[] {5, 2}, 2));
        assertEquals(8, Extents.byteSpan(new long[] {1000}, new long[] {0}, 8));
        assertEquals(0, Extents.byteSpan(new long[] {5, 0}, new long[] {Long.MAX_VALUE, 1}, 8));
    }

    @Test
    void overflowIsRefused() {
        long huge = 1L << 40;
        assertThrows(
                IllegalArgumentException.class,
                () -> Extents.contiguousStrides(new long[] {huge, huge, huge}));
        assertThrows(
                IllegalArgumentException.class,
                () -> Extents.byteSpan(new long[] {huge}, new long[] {huge}, 1));
        assertThrows(
                IllegalArgumentException.class,
                () -> Extents.byteSpan(new long[] {Long.MAX_VALUE}, new long[] {1}, 2));
        assertThrows(
                IllegalArgumentException.class,
                () ->
                        Extents.byteSpan(
                                new long[] {2, 2}, new long[] {Long.MAX_VALUE, Long.MAX_VALUE}, 1));
    }

    @Test
    void contiguityIgnoresStridesOfOneOrNoElement() {
        assertTrue(Extents.isContiguous(new long[0], new long[0]));
        assertTrue(Extents.isContiguous(new long[] {2, 3}, new long[] {3, 1}));
        assertTrue(Extents.isContiguous(new long[] {1, 3}, new long[] {77, 1}));
        assertTrue(Extents.isContiguous(new long[] {2, 0}, new long[] {5, 9}));
        assertFalse(Extents.isContiguous(new long[] {2, 3}, new long[] {1, 2}));
        assertFalse(Extents.isContiguous(new long[] {2, 3}, new long[] {4, 1}));
        assertFalse(Extents.isContiguous(new long[] {4}, new long[] {0}));
    }
}
