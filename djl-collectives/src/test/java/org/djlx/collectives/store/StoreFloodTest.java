// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.store;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Client requests cannot bring down a store's server. */
@Tag("slow")
class StoreFloodTest {

    @Test
    @Timeout(300)
    void serverWithASmallHeapSurvivesAFlood() throws Exception {
        Process process =
                new ProcessBuilder(
                                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                                "-Xmx256m",
                                "-XX:+ExitOnOutOfMemoryError",
                                "-cp",
                                System.getProperty("java.class.path"),
                                StoreFloodMain.class.getName())
                        .redirectErrorStream(true)
                        .start();
        try {
            String output =
                    new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            assertEquals(0, process.waitFor(), output);
            assertTrue(output.contains("survived"), output);
        } finally {
            process.destroyForcibly();
        }
    }
}
