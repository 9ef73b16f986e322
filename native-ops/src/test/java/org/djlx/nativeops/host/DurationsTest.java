// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class DurationsTest {

    @ParameterizedTest
    @CsvSource({
        "PT0S, 0 ns",
        "PT0.0000005S, 500 ns",
        "PT0.0005S, 500 µs",
        "PT0.03S, 30 ms",
        "PT3S, 3 s",
        "PT1.5S, 1.5 s",
        "PT2M5S, 2 min 5 s",
        "PT30M, 30 min",
        "PT1H3M, 1 h 3 min",
        "PT1H59S, 1 h"
    })
    void choosesTheUnit(Duration duration, String text) {
        assertEquals(text, Durations.text(duration));
    }
}
