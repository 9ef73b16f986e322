// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;

class ThreadBindingTest {

    @Test
    void aBoundThreadMayRunOnThatCoreOnly() throws Exception {
        int cores = Runtime.getRuntime().availableProcessors();
        for (int index : new int[] {0, cores - 1, cores, -1}) {
            Thread thread = new Thread(() -> assertBound(index));
            Throwable[] failure = new Throwable[1];
            thread.setUncaughtExceptionHandler((t, e) -> failure[0] = e);
            thread.start();
            thread.join();
            assertEquals(null, failure[0]);
        }
    }

    private static void assertBound(int index) {
        int core = ThreadBinding.bindToCore(index);
        try {
            String status = Files.readString(Path.of("/proc/thread-self/status"));
            assertTrue(status.contains("Cpus_allowed_list:\t" + core + "\n"), status);
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }
}
