/*
 * Licensed under the Apache License, Version 2.0: see the file LICENSE at the root of this project.
 * SPDX-License-Identifier: Apache-2.0
 */
package org.djlx.samples.common;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class DurationsTest {

    @ParameterizedTest
    @CsvSource({"3, 3 s", "59, 59 s", "125, 2 min 5 s", "3780, 1 h 3 min"})
    void hasTwoUnits(long seconds, String text) {
        assertEquals(text, Durations.text(Duration.ofSeconds(seconds)));
    }
}
