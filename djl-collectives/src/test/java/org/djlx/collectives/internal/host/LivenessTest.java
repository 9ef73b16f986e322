// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(120)
class LivenessTest {

    @Test
    void distinguishesLiveFromDeadProcesses() throws Exception {
        long self = ProcessHandle.current().pid();
        assertTrue(Liveness.isAlive(self, Liveness.startTime(self)));
        // Another process with the same id.
        assertFalse(Liveness.isAlive(self, Liveness.startTime(self) + 1));
        Process process = new ProcessBuilder("sleep", "100").start();
        long start = Liveness.startTime(process.pid());
        assertTrue(Liveness.isAlive(process.pid(), start));
        process.destroyForcibly();
        process.waitFor();
        assertFalse(Liveness.isAlive(process.pid(), start));
        assertEquals(-1, Liveness.startTime(process.pid()));
    }

    @Test
    void incompleteTextIsAnIoException() throws Exception {
        String rest = " 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0";
        assertEquals(4711, Liveness.startTime("7 (a) b) R" + rest));
        assertEquals(-1, Liveness.startTime("7 (a) Z"));
        for (String text : List.of("", "7 (jav", "7 (java)", "7 (java) R", "7 (java) R 1 2")) {
            assertThrows(IOException.class, () -> Liveness.startTime(text), text);
        }
    }

    /** Liveness works in a process without free file descriptors. */
    @Test
    void worksWithoutFreeFileDescriptors() throws Exception {
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        Process process =
                new ProcessBuilder(
                                "sh",
                                "-c",
                                "ulimit -n 200 && exec \"$@\"",
                                "sh",
                                java,
                                "-Xmx64m",
                                "-cp",
                                System.getProperty("java.class.path"),
                                LivenessMain.class.getName())
                        .redirectErrorStream(true)
                        .start();
        String output = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
        assertTrue(process.waitFor(100, TimeUnit.SECONDS), output);
        assertTrue(output.contains("living: true, dead: false"), output);
    }
}
