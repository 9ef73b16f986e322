// SPDX-License-Identifier: Apache-2.0
package org.djlx.nativeops.host;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class FlockTest {

    @TempDir private Path folder;

    @Test
    void oneHolderAtATime() throws Exception {
        Path file = folder.resolve("a.lock");
        try (Flock first = Flock.tryAcquire(file)) {
            assertNotNull(first);
            assertNull(Flock.tryAcquire(file));
        }
        try (Flock again = Flock.tryAcquire(file)) {
            assertNotNull(again);
        }
        assertTrue(Files.exists(file));
    }

    /**
     * A holder may delete the file. A lock of the deleted file does not exclude other processes.
     */
    @Test
    void deletedFileIsNotHeld() throws Exception {
        Path file = folder.resolve("a.lock");
        try (Flock old = Flock.tryAcquire(file)) {
            assertNotNull(old);
            Files.delete(file);
            try (Flock other = Flock.tryAcquire(file)) {
                assertNotNull(other);
                assertNull(Flock.tryAcquire(file));
            }
        }
    }

    /** A file may be deleted after it was found and before it is opened. */
    @Test
    void holdersThatDeleteTheFileExcludeEachOther() throws Exception {
        Path file = folder.resolve("a.lock");
        AtomicInteger holders = new AtomicInteger();
        Callable<Void> holder =
                () -> {
                    for (int i = 0; i < 5000; i++) {
                        try (Flock lock = Flock.tryAcquire(file)) {
                            if (lock != null) {
                                assertEquals(1, holders.incrementAndGet());
                                holders.decrementAndGet();
                                Files.delete(file);
                            }
                        }
                    }
                    return null;
                };
        ExecutorService threads = Executors.newFixedThreadPool(3);
        try {
            for (Future<Void> each : threads.invokeAll(List.of(holder, holder, holder))) {
                each.get();
            }
        } finally {
            threads.shutdownNow();
        }
    }

    /** util-linux's flock takes the same lock, as Python's filelock does. */
    @Test
    void excludesOtherPrograms() throws Exception {
        Path file = folder.resolve("a.lock");
        Process holder =
                new ProcessBuilder("flock", file.toString(), "sh", "-c", "echo held; read end")
                        .start();
        try (BufferedReader lines = holder.inputReader()) {
            assertEquals("held", lines.readLine());
            assertNull(Flock.tryAcquire(file));
            holder.getOutputStream().close();
            assertEquals(0, waited(holder));
        }
        try (Flock lock = Flock.tryAcquire(file)) {
            assertNotNull(lock);
            Process refused = new ProcessBuilder("flock", "-n", file.toString(), "true").start();
            assertEquals(1, refused.waitFor());
        }
    }

    private static int waited(Process holder) throws InterruptedException, IOException {
        int code = holder.waitFor();
        return code == 1 ? 0 : code; // read ends with 1 at the end of its input.
    }
}
