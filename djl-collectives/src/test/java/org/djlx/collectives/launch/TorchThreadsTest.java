// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.launch;

import static org.junit.jupiter.api.Assertions.assertEquals;

import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class TorchThreadsTest {

    @ParameterizedTest
    @CsvSource({"1, 1, 1", "2, 1, 1", "2, 4, 1", "4, 1, 3", "8, 2, 3", "64, 4, 15"})
    void aCoreIsLeft(int cores, int ranks, int threads) {
        assertEquals(threads, TorchThreads.share(cores, ranks));
    }
}
