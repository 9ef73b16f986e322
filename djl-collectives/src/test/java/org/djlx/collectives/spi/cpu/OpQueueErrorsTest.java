// SPDX-License-Identifier: Apache-2.0
package org.djlx.collectives.spi.cpu;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.djlx.collectives.Work;
import org.djlx.collectives.internal.host.ControlBlock;
import org.djlx.collectives.internal.host.Rendezvous;
import org.djlx.collectives.spi.BackendOptions;
import org.djlx.collectives.spi.GroupContext;
import org.djlx.collectives.spi.Operation;
import org.djlx.collectives.store.HashStore;
import org.djlx.nativeops.host.SharedMemory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class OpQueueErrorsTest {

    /** Its start and end cannot be reported: it belongs to no group's recorder. */
    private static Operation unreportable() {
        BackendOptions options = new BackendOptions(Duration.ofMinutes(1));
        return new GroupContext("alone", 0, 1, new HashStore(), options, null).joining();
    }

    @Test
    void operationsEndIfReportingTheirEndFails() throws Exception {
        try (SharedMemory memory = SharedMemory.create("alone", ControlBlock.byteSize(1))) {
            ControlBlock control = new ControlBlock(memory.memory(), 1);
            Rendezvous rendezvous = new Rendezvous(control, "alone", 0, 1);
            OpQueue queue = new OpQueue("alone", rendezvous, 1);
            for (int i = 0; i < 2; i++) {
                Work failing =
                        queue.submit(
                                unreportable(),
                                () -> {
                                    throw new OutOfMemoryError("on purpose");
                                },
                                () -> {},
                                List.of());
                Throwable end =
                        assertThrows(
                                        ExecutionException.class,
                                        () ->
                                                failing.getFuture()
                                                        .toCompletableFuture()
                                                        .get(30, TimeUnit.SECONDS))
                                .getCause();
                assertTrue(end.getMessage().contains("on purpose"), end::toString);
            }
            Work fine = queue.submit(unreportable(), () -> {}, () -> {}, List.of());
            assertEquals(List.of(), fine.getFuture().toCompletableFuture().get());
            rendezvous.close();
            queue.close();
        }
    }
}
