// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.cudap2p;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.api.Test;

class NcclLimitTest {

    @Test
    void thereIsNoLimitIfNcclIsFasterForNoSize() {
        assertEquals(Long.MAX_VALUE, NcclLimit.limit(new double[] {}));
        assertEquals(Long.MAX_VALUE, NcclLimit.limit(new double[] {6, 14, 28, 47, 53, 74}));
        // Within 5 % the kernels are kept, because CUDA graphs can capture them.
        assertEquals(Long.MAX_VALUE, NcclLimit.limit(new double[] {100, 95}));
    }

    @Test
    void limitIsHalfOfTheSmallestSizeForWhichNcclIsFaster() {
        assertEquals(1 << 19, NcclLimit.limit(new double[] {100, 94}));
        assertEquals(8 << 20, NcclLimit.limit(new double[] {6, 14, 28, 47, 53, 44, 200, 150}));
    }
}
