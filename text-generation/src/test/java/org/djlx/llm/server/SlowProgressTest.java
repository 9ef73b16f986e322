// SPDX-License-Identifier: Apache-2.0
package org.djlx.llm.server;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

class SlowProgressTest {

    private final List<String> lines = new ArrayList<>();

    @Test
    void quickWorkPrintsNothing() {
        SlowProgress progress = new SlowProgress(Duration.ofHours(1), lines::add);
        progress.accept("loading");
        progress.accept("done");
        assertEquals(List.of(), lines);
    }

    @Test
    void slowWorkPrintsItsFirstLineToo() throws InterruptedException {
        SlowProgress progress = new SlowProgress(Duration.ofMillis(500), lines::add);
        progress.accept("loading");
        progress.accept("10 %");
        Thread.sleep(600);
        progress.accept("20 %");
        progress.accept("done");
        assertEquals(List.of("loading", "20 %", "done"), lines);
    }
}
