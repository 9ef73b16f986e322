// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.internal.host;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import org.djlx.collectives.CollectiveException;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.store.HashStore;
import org.djlx.collectives.store.Store;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class SharedSegmentTest {

    /** The rank that created the memory may die before the others map it. */
    @Test
    void deadRankIsNamed() throws Exception {
        Process process = new ProcessBuilder("true").start();
        process.waitFor();
        BackendOptions options = new BackendOptions(Duration.ofSeconds(30));
        try (Store store = new HashStore()) {
            GroupContext creator = new GroupContext("g", 0, 2, store, options, null);
            GroupContext other = new GroupContext("g", 1, 2, store, options, null);
            String said = "\n/proc/" + process.pid() + "/fd/3\nhost " + Liveness.HOST + "\nchunk 1";
            Thread rank0 =
                    new Thread(
                            () -> {
                                creator.exchange("segment", said.getBytes(StandardCharsets.UTF_8));
                                creator.exchange("mapped", new byte[0]);
                            });
            rank0.start();
            String message =
                    assertThrows(
                                    CollectiveException.class,
                                    () -> SharedSegment.map(other, 4096, List.of("chunk 1")))
                            .getMessage();
            rank0.join();
            String expected = "rank 1: the process of rank 0 (pid " + process.pid() + ") has ended";
            assertTrue(message.contains(expected), message);
        }
    }
}
